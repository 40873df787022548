"""Texts as the screens show them: without secrets, and unable to act on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ..duration import rfc3339
from ..redact import clip, one_line, redact

COUNTS = 4  # names whose counts a line lists
READ_MAX, CELL_MAX = 20_000, 500  # characters of a text that are searched for secrets, and shown in a row


@lru_cache(maxsize=8192, typed=True)
def shown(text: str) -> str:
    """The text on one line, with secrets and unseen characters hidden; a long one is cut."""
    return one_line(clip(text, READ_MAX, CELL_MAX))


def line(text: str) -> str:
    """The same without a cut, for the lines of a story."""
    return one_line(redact(text))


def count(number: int, what: str) -> str:
    """A number of things.

    >>> count(1, "message"), count(1200, "message")
    ('1 message', '1,200 messages')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def clock(at_ms: int) -> str:
    """The time of day, in UTC."""
    return rfc3339(at_ms)[11:19] + "Z"


def pairs(record: Iterable[tuple[str, Any]]) -> Sequence[str]:
    """Fields as aligned lines, without the empty ones."""
    kept = [(name, str(value)) for name, value in record if value not in (None, "", 0, {}, ())]
    wide = max((len(name) for name, _ in kept), default=0)
    return [f"{name:<{wide}}  {value}" for name, value in kept]
