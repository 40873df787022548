"""Every type an annotation may name arrives as an equal value of the same type, whatever the value is."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bodies import EVERY, Money, Tree, aware, codec_of, text

from redrive.errors import EncodeError, Unreadable

CODECS = {name: codec_of(annotation) for name, (annotation, _) in EVERY.items()}


def same(found: Any, sent: Any) -> bool:
    """Equal, of one type, and for numbers digit by digit."""
    if isinstance(sent, Decimal | float):
        return repr(found) == repr(sent)
    return found == sent and type(found) is type(sent)


@pytest.mark.parametrize("name", EVERY)
def test_every_value_of_the_type_arrives_as_it_was_sent(name: str) -> None:
    codec = CODECS[name]

    @given(EVERY[name][1])
    def arrives(value: Any) -> None:
        (found,), _ = codec.decode(codec.encode((value,), {}))
        assert same(found, value)
        assert same(codec.decode_result(codec.encode_result(value)), value)

    arrives()


@given(st.data(), st.sets(st.sampled_from(sorted(set(EVERY) - {"none"})), min_size=1, max_size=6))
def test_all_of_them_travel_together_as_fields_of_one_argument(data: st.DataObject, names: set[str]) -> None:
    fields = {f"f{at}": EVERY[name] for at, name in enumerate(sorted(names))}
    kind = msgspec.defstruct("Whole", [(at, annotation) for at, (annotation, _) in fields.items()])
    value = kind(**{at: data.draw(strategy) for at, (_, strategy) in fields.items()})
    codec = codec_of(list[kind])  # type: ignore[valid-type]
    assert codec.decode(codec.encode(([value],), {}))[0] == ([value],)


@given(aware)
def test_an_aware_datetime_keeps_its_offset(when: datetime) -> None:
    codec = CODECS["aware datetime"]
    (found,), _ = codec.decode(codec.encode((when,), {}))
    assert found.utcoffset() == when.utcoffset()


# -- odd values and bodies


@pytest.mark.parametrize("sign", [1, -1])
def test_a_whole_number_is_exact_up_to_4300_digits_and_refused_beyond(sign: int) -> None:
    codec = CODECS["int"]
    for digits in (18, 19, 20, 21, 300, 4_299):
        assert codec.decode(codec.encode((sign * (10**digits - 1),), {}))[0] == (sign * (10**digits - 1),)
    with pytest.raises(EncodeError, match="4300 digits"):
        codec.encode((sign * 10**4_300,), {})


@pytest.mark.parametrize("annotation", [int, float, Decimal, Any, dict[str, Any]], ids=str)
def test_a_number_of_a_million_digits_is_unreadable_or_read(annotation: Any) -> None:
    codec = codec_of(annotation)
    for number in (b"9" * 10**6, b"-" + b"9" * 5_000, b"1e999999999", b"1E-999999999", b"0." + b"1" * 10**5):
        with contextlib.suppress(Unreadable):
            (found,), _ = codec.decode(b'{"value":' + number + b"}")
            assert isinstance(found, int | float | Decimal) and found < math.inf


def test_ten_megabytes_of_text_and_numbers_travel() -> None:
    for annotation, value in ((str, "ü" * 5_000_000), (list[int], list(range(10**6))), (bytes, bytes(7_500_000))):
        codec = codec_of(annotation)
        body = codec.encode((value,), {})
        assert len(body) > 6_000_000
        assert codec.decode(body) == ((value,), {})


def test_ten_megabytes_that_do_not_fit_are_refused_in_a_few_words() -> None:
    body = b'{"value":"' + b"x" * 10_000_000 + b'"}'
    with pytest.raises(Unreadable) as caught:
        CODECS["enum of text"].decode(body)
    assert len(str(caught.value)) < 500
    with pytest.raises(TypeError) as refused:
        CODECS["enum of text"].encode(("x" * 10_000_000,), {})
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("depth", [100, sys.getrecursionlimit(), 50_000])
@pytest.mark.parametrize("annotation", [Any, Tree, list[Any]], ids=str)
def test_nesting_of_any_depth_is_read_or_unreadable(annotation: Any, depth: int) -> None:
    opened, closed = (b'{"value":1,"children":[', b"]}") if annotation is Tree else (b"[", b"]")
    try:
        codec_of(annotation).decode(b'{"value":' + opened * depth + closed * depth + b"}")
    except Unreadable:
        assert depth > 100


def test_a_tree_nested_too_deep_to_write_is_an_encode_error() -> None:
    tree = Tree(1)
    for _ in range(50_000):
        tree = Tree(1, [tree])
    with pytest.raises(EncodeError):
        CODECS["recursive dataclass"].encode((tree,), {})
    flat, tree = tree, Tree(1)  # taken apart one by one: freeing it whole would recurse as deep
    while flat.children:
        flat = flat.children.pop()


def test_nan_and_infinity_travel_as_keys() -> None:
    codec = codec_of(dict[float, None])
    (found,), _ = codec.decode(codec.encode(({math.inf: None, math.nan: None},), {}))
    assert repr(found) == "{inf: None, nan: None}"


@given(text, st.sampled_from(["\ud800", "\udc80", "\udfff\ud800"]), text)
def test_lone_surrogates_are_an_encode_error_wherever_they_stand(before: str, lone: str, after: str) -> None:
    word = before + lone + after
    for value in (word, {word: 1}, [word], Money(Decimal(1), word), Path(word.replace("\0", ""))):  # type: ignore[arg-type]
        with pytest.raises(EncodeError, match="'t'"):
            CODECS["plain"].encode((value,), {})


def test_escaped_lone_surrogates_in_a_stored_body_are_unreadable() -> None:
    for body in (b'{"value":"\\ud800"}', b'{"value":{"\\udfff":1}}', b'{"value":"\xed\xa0\x80"}'):
        with pytest.raises(Unreadable):
            CODECS["plain"].decode(body)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class Spiteful:
    n: int

    def __post_init__(self) -> None:
        raise Mute


def test_an_error_whose_text_fails_is_unreadable_by_its_name() -> None:
    with pytest.raises(Unreadable, match="Mute"):
        codec_of(Spiteful).decode(b'{"value":{"n":1}}')


def test_what_json_cannot_hold_by_kind_is_refused_by_its_name() -> None:
    names: dict[Any, str] = {1j: "complex", range(3): "range", object: "type", Callable: "ABCMeta"}
    for value, name in names.items():
        with pytest.raises(EncodeError, match=name):
            CODECS["plain"].encode((value,), {})
