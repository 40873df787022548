"""Texts as the screens show them: without secrets, and unable to act on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ..duration import rfc3339
from ..redact import clip, one_line, redact

COUNTS = 4  # the most counts in one line
READ_MAX, CELL_MAX = 20_000, 500  # characters of a text that are searched for secrets, and that a cell shows


@lru_cache(maxsize=8192, typed=True)
def shown(text: str) -> str:
    """Return a text in one line of at most CELL_MAX characters, without secrets, and with invisible
    characters escaped."""
    return one_line(clip(text, READ_MAX, CELL_MAX))


def line(text: str) -> str:
    """Return a text in one line as `shown` does, but of any length, for the lines of a story."""
    return one_line(redact(text))


def count(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> count(1, "message"), count(1200, "message")
    ('1 message', '1,200 messages')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def clock(at_ms: int) -> str:
    """Return the time of day of a time in ms, in UTC."""
    return rfc3339(at_ms)[11:19] + "Z"


def pairs(record: Iterable[tuple[str, Any]]) -> Sequence[str]:
    """Return the fields that are not empty as lines, with their values aligned."""
    kept = [(name, str(value)) for name, value in record if value not in (None, "", 0, {}, ())]
    wide = max((len(name) for name, _ in kept), default=0)
    return [f"{name:<{wide}}  {value}" for name, value in kept]
