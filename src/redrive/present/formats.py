"""Write times, numbers, shares and durations for people and programs: one form of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..duration import rfc3339
from ..fault.model import kind_word as kind_word

if TYPE_CHECKING:
    pass

from ..duration import show
from .table import Column as Column


def timestamp(ms: int | None) -> str | None:
    """A time in RFC 3339, in UTC; None for none."""
    return None if ms is None else rfc3339(ms)


def age_text(seconds: float | None) -> str:
    return "–" if seconds is None else show(seconds) if seconds else "0s"
