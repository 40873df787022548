"""What the source of a program says of its messages: which templates are found, and what they may not change."""

from __future__ import annotations

import linecache
from typing import Any

import pytest

from redrive.fault import classify

MODULE = """
TEXT = "plan %s has no seats"


class Refused(Exception):
    pass


def fail(value):
    {body}


def call(value):
    fail(value)
"""


def fingerprint(body: str, value: object, *, source: bool = True, above: str = "", broken: bool = False) -> str:
    """Of what `body` raises with the value, in a module that has its source at hand or has not."""
    text = above + MODULE.replace("{body}", body)
    filename = f"/srv/{abs(hash((body, source, above, broken)))}/shop.py"
    if source:
        kept = text.replace("def fail(value):", "def fail(value:") if broken else text
        linecache.cache[filename] = (len(kept), None, kept.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"__name__": "shop"}
    exec(compile(text, filename, "exec"), scope)
    try:
        scope["call"](value)
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        return classify(error).fingerprint
    raise AssertionError("nothing was raised")


LIMIT = 'raise Refused(f"tenant {value} is over its limit")'
# Bodies with values that one fingerprint held already: the rules for texts alone knew them.
KNOWN = [
    (LIMIT, [17, 4_711, "2f1c9a3e-1111-4222-8333-444455556666", "9f8e7d6c5b4a"]),
    ('raise Refused(f"order {value!r} failed")', ["a", "Bob Smith", "x-1"]),
    ("raise Refused(\"order '%s' failed\" % value)", ["a", "Bob Smith", "x-1"]),
    ('raise Refused(f"cannot fetch {value}")', ["https://a.example.com/x", "http://b.test/?q=1"]),
    ('raise Refused(f"cannot mail {value}: refused")', ["ann@example.com", "bob.smith@mail.example.org"]),
    ('raise Refused(f"cannot read {value} at all")', ["/srv/in/a.csv", "/mnt/data/tenant-7/b.csv"]),
    ('raise Refused(f"no answer from {value} yet")', ["api.shop.invalid", "cache-01.shop.invalid"]),
    ('raise Refused(f"customer {value} has no card")', ["cus_NffrFeUfNV2Hib", "cus_AbCdEfGhIjKlMn"]),
    ('raise Refused("%d rows of %s are left" % (value, value))', [17, 250]),
    ('raise Refused(f"the partner answered {value}", value)', [404, 404]),
]


@pytest.mark.parametrize(("body", "values"), KNOWN)
def test_what_was_one_group_keeps_its_fingerprint(body: str, values: list[object]) -> None:
    """Notes, owners, mutes and standing rules are kept by fingerprint; they hold on to new failures, too."""
    found = {fingerprint(body, value, source=source) for value in values for source in (True, False)}
    assert len(found) == 1


def test_a_fingerprint_does_not_depend_on_where_the_line_stands() -> None:
    moved = "# moved down\n" * 40
    assert fingerprint(LIMIT, "acme") == fingerprint(LIMIT, "globex", above=moved)


def test_without_source_words_stay_and_a_source_that_cannot_be_read_is_none() -> None:
    assert fingerprint(LIMIT, "acme", source=False) != fingerprint(LIMIT, "globex", source=False)
    assert fingerprint(LIMIT, "acme", broken=True) == fingerprint(LIMIT, "acme", source=False)


@pytest.mark.parametrize(
    ("body", "one", "other"),
    [
        ('raise Refused(f"the payment failed: {value.reason}" if 0 else f"paid: {value}")', "no", "yes"),
        ('raise Refused(value % "acme")', "tenant %s is over its limit", "tenant %s has no plan"),
        ("raise Refused(TEXT % value)", "basic", "gold"),
        ('text = "gate {} is shut"; raise Refused(text.format(value))', "north", "south gate"),
        ("""raise Refused(f"{value} part{'s' if value > 1 else ''} {'are' if value > 1 else 'is'} lost")""", 1, 7),
    ],
)
def test_where_a_template_may_stand(body: str, one: str, other: str) -> None:
    alike = "value %" not in body
    assert (fingerprint(body, one) == fingerprint(body, other)) is alike


@pytest.mark.parametrize(
    ("body", "one", "other"),
    [
        # what fills the place tells what went wrong
        ('error = value; raise Refused(f"cannot pay: {error}")', "declined", "expired"),
        ('code = value; raise Refused(f"cannot pay ({code})")', "card_declined", "expired_card"),
        ('code = value; raise Refused(f"cannot call ({code})")', "AccessDenied", "SlowDown"),
        ('status = value; raise Refused(f"status {status} is wrong")', 404, 500),
        ('raise Refused(f"cannot pay: {type(value).__name__}")', "a text", 17.5),
        ('raise Refused(f"cannot sync: {value}")', "the server is down for now", "nobody may do this on Sundays"),
        ('raise Refused(f"cannot sync {value}")', "x: the key is missing", "x: the key is wrong"),
        ('raise Refused(f"tenant {value} is over its limit")', None, "acme"),
        # the program's own words fill it
        ("""raise Refused(f"export failed: {'timed out' if value else 'no such bucket'}")""", True, False),
        # no word is between the places
        ('raise Refused(f"{value}: {value}")', "declined", "expired"),
        # another message of the function, which looks as if the template had made it
        (
            'if value == "x": raise Refused("user profile is locked")\n    raise Refused(f"user {value} is locked")',
            "x",
            "y",
        ),
        (
            'if value == "x": raise Refused(f"no {value} for you")\n    raise Refused(f"no {value} for you today")',
            "x",
            "y",
        ),
    ],
)
def test_different_failures_are_not_joined(body: str, one: object, other: object) -> None:
    assert fingerprint(body, one) != fingerprint(body, other)


class Odd(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")


class Hostile(Exception, metaclass=Odd):
    text = "{" * 500


@pytest.mark.parametrize(
    "error",
    [
        Hostile("tenant acme is over its limit"),
        ValueError("{} %s" * 400),
        type("Shown", (Exception,), {"message": "%" * 900 + "{" * 900, "__str__": lambda self: "x" * 10_000})(),
        type("Nowhere", (Exception,), {"__module__": 7})("x"),
    ],
)
def test_an_odd_class_or_text_is_classified_all_the_same(error: Exception) -> None:
    assert len(classify(error).fingerprint) == 16 and classify(error).fingerprint != "0" * 16


def test_a_text_of_many_places_is_taken_apart_in_no_time() -> None:
    import time

    body = 'raise Refused("%s and %s and %s and %s and %s and %s x" % ((value,) * 6))'
    start = time.process_time()
    fingerprint(body, "and " * 80)
    fingerprint(body, " and and" * 60)
    assert time.process_time() - start < 1
