"""Texts as the screens show them: without secrets, and unable to act on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ..duration import rfc3339
from ..redact import clip, one_line, redact

COUNTS = 4  # the most counts in one line
READ_MAX, CELL_MAX = 20_000, 500  # characters of a text that are searched for secrets, and that a row has


@lru_cache(maxsize=8192, typed=True)
def shown(text: str) -> str:
    """Return a text in one line, cut, without secrets, and with invisible characters escaped."""
    return one_line(clip(text, READ_MAX, CELL_MAX))


def line(text: str) -> str:
    """Return a text in one line, as `shown` does but uncut, for the lines of a story."""
    return one_line(redact(text))


def count(number: int, what: str) -> str:
    """A number of things.

    >>> count(1, "message"), count(1200, "message")
    ('1 message', '1,200 messages')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def clock(at_ms: int) -> str:
    """Return the time of day, in UTC."""
    return rfc3339(at_ms)[11:19] + "Z"


def pairs(record: Iterable[tuple[str, Any]]) -> Sequence[str]:
    """Align fields in lines, without the empty ones."""
    kept = [(name, str(value)) for name, value in record if value not in (None, "", 0, {}, ())]
    wide = max((len(name) for name, _ in kept), default=0)
    return [f"{name:<{wide}}  {value}" for name, value in kept]
