"""The language of selectors: what it says, what it prints, and where it points when it is wrong."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigError, SelectorError
from redrive.message import REASONS
from redrive.triage.select.parser import DEPTH_MAX, LENGTH_MAX, parse
from redrive.triage.select.terms import FIELDS, Node, Pattern

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
FREE = (
    "task",
    "queue",
    "error",
    "fingerprint",
    "key",
    "group",
    "id",
    "text",
    "correlation",
    "trace",
    "args.a",
    "args.order.0.id",
)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


PATTERNS = st.lists(st.sampled_from(["*", "a", "crm.push", "x-1"]) | TEXTS.map(quoted), min_size=1, max_size=4).map(
    "".join
)
OPS = st.sampled_from(["<", "<=", ">", ">="])
AGES = st.tuples(OPS, st.integers(0, 10**13)).map(lambda a: f"{a[0]}{a[1]}ms")
NUMBERS = st.tuples(OPS | st.sampled_from(["", "="]), st.integers(0, 10**17)).map(lambda n: f"{n[0]}{n[1]}")
DECIMALS = st.tuples(OPS | st.just("="), st.decimals(-(10**9), 10**9, places=4)).map(lambda n: f"{n[0]}{n[1]:f}")


def terms(field: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    many = st.lists(values, min_size=1, max_size=3).map(lambda found: f"{field}:({' , '.join(found)})")
    return values.map(lambda found: f"{field}:{found}") | many


TERM = st.one_of(
    st.sampled_from(FREE).flatmap(lambda field: terms(field, PATTERNS)),
    terms("reason", st.sampled_from(REASONS) | TEXTS.map(quoted) | st.just("ex*")),
    terms("lane", st.sampled_from(["dead", "quarantine", "parked"])),
    terms("header.x-y", PATTERNS),
    st.sampled_from(["acme", "a*b", "x-7*", '"or"', '"a:b"', '"-x"', '"=" ', '"a b"*', '"Not"']),
    st.sampled_from(["age", "failed", "due"]).flatmap(lambda field: terms(field, AGES)),
    st.sampled_from(["redrives", "attempt", "crashes"]).flatmap(lambda field: terms(field, NUMBERS)),
    terms("args.n", DECIMALS),
    terms("label", PATTERNS.map("customer=".__add__)),
)


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, st.sampled_from([" ", " or ", " OR ", " and "]), inner).map(
        lambda p: f"({p[0]}{p[1]}{p[2]})"
    )
    return pair | st.tuples(st.sampled_from(["-", "not ", "- "]), inner).map("".join)


SELECTORS = st.recursive(TERM, joined, max_leaves=8)


@given(SELECTORS)
def test_a_selection_prints_what_parses_to_the_same(text: str) -> None:
    node = parse(text)
    assert parse(str(node)) == node
    assert str(parse(str(node))) == str(node)


@given(
    st.text(max_size=40) | st.lists(st.sampled_from([*'():,-*"<>=', "task", "or", "not", "age", "5", " "])).map("".join)
)
def test_whatever_is_written_is_read_or_refused_with_a_pointer_inside_it(text: str) -> None:
    error = refusal(text)
    if error is not None:
        assert error.text == text and 0 <= error.at <= len(text)
        shown, carets = error.pointer.split("\n")
        assert set(carets) == {" ", "^"} and len(carets.rstrip("^")) <= len(shown)


def refusal(text: str) -> SelectorError | None:
    try:
        parse(text)
    except SelectorError as error:
        return error
    return None


@pytest.mark.parametrize(
    "text, printed",
    [
        ("", ""),
        ("  queue:crm   failed:<6h ", "queue:crm failed:<6h"),
        ("task:a AND NOT task:b", "task:a -task:b"),
        ("task:a or task:b queue:c", "task:a or task:b queue:c"),
        ("(task:a or task:b) queue:c", "(task:a or task:b) queue:c"),
        ("((task:a) (task:b))", "task:a task:b"),
        ("-(task:a task:b)", "-(task:a task:b)"),
        ("reason:( exhausted , elapsed )", "reason:(exhausted,elapsed)"),
        ("key:order:42", "key:order:42"),
        ('text:"no * here, \\"really\\""*end', 'text:"no * here, \\"really\\""*end'),
        ("failed:<90m", "failed:<1h30m"),
        ("age:>=2026-01-31T15:04:05+01:00", "age:>=2026-01-31T14:04:05.000Z"),
        ("attempt:=3", "attempt:3"),
        ('reason:"of my own"', 'reason:"of my own"'),
        ('reason:"exhausted"', "reason:exhausted"),
        ("args.a.b:>04.50", "args.a.b:>4.5"),
    ],
)
def test_forms_and_what_they_are_printed_as(text: str, printed: str) -> None:
    assert str(parse(text)) == printed


@pytest.mark.parametrize(
    "text, marked, says",
    [
        ("quee:crm", "quee", "did you mean queue:"),
        ("queue:crm -resaon:x", "resaon", "did you mean reason:"),
        ("reason:exausted", "exausted", "did you mean exhausted?"),
        ("reason:(elapsed,late)", "late", "reasons: exhausted, permanent"),
        ("queue=crm", "queue=crm", "expected a colon: queue:"),
        ("http://x", "http", "put it in quotes"),
        ("header:x", "header", "such as header.tenant:acme"),
        ('""', '""', "expected some text of it"),
        ("*", "*", "expected some text of it"),
        ("age:2h", "2h", "such as age:<6h"),
        ("failed:<6x", "<6x", "neither an age nor a time"),
        ("failed:<2026-01-31T15:04:05", "<2026-01-31T15:04:05", "neither an age nor a time"),
        ("redrives:>1.5", ">1.5", "expected a whole number"),
        ("args.n:>x", ">x", "no number"),
        ("args:1", "args", "such as args.order.id:42"),
        ("args.a..b:1", "args.a..b", "expected its path"),
        ("lane:quarentine", "quarentine", "did you mean quarantine?"),
        ("lane:sceduled", "sceduled", "did you mean scheduled?"),
        ("queue:a (task:b", "(", "never closed"),
        ("queue:a) task:b", ")", "never opened"),
        ("()", "()", "nothing between"),
        ("task:", "", "a value is missing after task:"),
        ("task: b", " ", "a value is missing after task:"),
        ("task:(a,)", ")", "a value is missing after task:"),
        ("task:(a b)", "b", "goes on without a comma"),
        ("task:a,b", ",", "several values: task:(a,b)"),
        ('text:"a b', '"', "never closed"),
        ("task:a or", "", "a term is expected"),
        ("or task:a", "or", "a term is expected"),
        ("task:a\0", "\0", "cannot be stored"),
    ],
)
def test_a_mistake_is_pointed_at(text: str, marked: str, says: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse(text)
    error = caught.value
    assert says in f"{error.what}; {error.why}"
    shown, carets = error.pointer.split("\n")
    begin = len(carets) - len(carets.lstrip())
    assert shown[begin : begin + carets.count("^")].rstrip() == marked.replace("\0", "").rstrip()
    assert error.at == text.rindex(marked) if marked else error.at == len(text)
    assert isinstance(error, ConfigError) and error.pointer in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_mistake_far_inside_is_shown_with_what_is_around_it() -> None:
    with pytest.raises(SelectorError) as caught:
        parse("task:a or " * 100 + "tsk:b")
    shown, carets = caught.value.pointer.split("\n")
    assert len(shown) < 80 and shown[carets.index("^") :] == "tsk:b"


def test_nesting_and_length_are_bounded() -> None:
    parse("(" * (DEPTH_MAX - 1) + "task:a" + ")" * (DEPTH_MAX - 1))
    for text in ("-" * 5000 + "task:a", "(" * 5000 + "task:a", "task:" + "a" * LENGTH_MAX):
        with pytest.raises(SelectorError, match="expected at most"):
            parse(text)


@pytest.mark.parametrize(
    "parts, fits, not_",
    [
        (("a",), ["a"], ["", "A", "aa"]),
        (("",), [""], ["a"]),
        (("", ""), ["", "a\nb"], []),
        (("a", "b"), ["ab", "axb", "abb"], ["a", "abc"]),
        (("ab", "ba"), ["abba", "ab ba"], ["aba"]),
        (("", "x", "y", ""), ["xy", "-x-y-"], ["yx"]),
    ],
)
def test_stars_stand_for_any_text(parts: tuple[str, ...], fits: list[str], not_: list[str]) -> None:
    assert all(Pattern(parts).fits(text) for text in fits)
    assert not any(Pattern(parts).fits(text) for text in not_)


@pytest.mark.parametrize("value", ["customer", "*", "cust*=7", '"=7"', "=7", '"a b=7"', "a/b=7", f"{'n' * 64}=7"])
def test_a_label_without_a_name_is_pointed_at(value: str) -> None:
    with pytest.raises(SelectorError, match="which label is meant") as refused:
        parse(f"queue:crm label:({value},a=b)")
    assert "label:customer=7" in str(refused.value)


def test_a_label_prints_as_it_is_written() -> None:
    written = 'label:customer=7 -label:region=* label:(a.b_c-d=x*y,e="a b")'
    assert str(parse(written)) == 'label:customer=7 -label:region=* label:(a.b_c-d=x*y,"e=a b")'


def test_every_field_can_be_asked_for() -> None:
    values = {"age": ">1h", "failed": "<1h", "attempt": "1", "redrives": "1", "crashes": "1", "lane": "dead"}
    values["label"] = "customer=7"
    values["due"] = "<1h"
    nodes: list[Node] = [
        parse(f"{field}.a:1" if field in ("args", "header") else f"{field}:{values.get(field, 'permanent')}")
        for field in FIELDS
    ]
    assert len(set(map(str, nodes))) == len(FIELDS)
