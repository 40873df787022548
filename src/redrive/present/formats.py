"""Write times, numbers, shares and durations for people and programs: one form of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..duration import rfc3339
from ..fault.model import kind_word as kind_word

if TYPE_CHECKING:
    pass


def timestamp(ms: int | None) -> str | None:
    """A time in RFC 3339, in UTC; None for none."""
    return None if ms is None else rfc3339(ms)
