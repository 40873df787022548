"""Message ids: UUID version 7 (RFC 9562), so that a later id sorts after an earlier one, and index pages fill
in order."""

from __future__ import annotations

import hashlib
import os
import re

_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_VARIANT = "89ab"


def new_id(now_ms: int) -> str:
    """Return a new id made at `now_ms`: 48 bits of milliseconds, 74 random bits."""
    time, r = f"{now_ms & 0xFFFF_FFFF_FFFF:012x}", os.urandom(10).hex()
    return f"{time[:8]}-{time[8:]}-7{r[:3]}-{_VARIANT[int(r[3], 16) & 3]}{r[4:7]}-{r[7:19]}"


def derived_id(now_ms: int, text: str) -> str:
    """Return an id made at `now_ms`, the same each time for this text: all other bits are of its hash."""
    r = hashlib.sha256(text.encode()).hexdigest()
    return f"{new_id(now_ms)[:15]}{r[:3]}-{_VARIANT[int(r[3], 16) & 3]}{r[4:7]}-{r[7:19]}"


def first_and_last(begin: str) -> tuple[str, str] | None:
    """Return the bounds, inclusive, of the ids with this beginning, given with or without hyphens. None if it is empty,
    longer than an id or not hexadecimal.

    >>> first_and_last("0199f3a1-00")
    ('0199f3a1-0000-0000-0000-000000000000', '0199f3a1-00ff-ffff-ffff-ffffffffffff')
    """
    digits = begin.strip().lower().replace("-", "")
    if not 0 < len(digits) <= 32 or digits.strip("0123456789abcdef"):
        return None
    low, high = (f"{digits:{fill}<32}" for fill in "0f")
    first, last = (f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}" for d in (low, high))
    return first, last


def is_id(text: str) -> bool:
    """Return True if `text` has the form of an id that `new_id` returns."""
    return _FORM.fullmatch(text) is not None


def part_id(whole: str, name: str) -> str:
    """Return the id of a part of a batch: a nested batch, or a step of a workflow."""
    return f"{whole}/{name}"


def wholes_of(id: str) -> list[str]:
    """Return the ids of a batch and of the batches that it is a part of, the innermost first."""
    names = id.split("/")
    return ["/".join(names[:n]) for n in range(len(names), 0, -1)]


def root_of(id: str) -> str:
    """Return the id of the outermost of these."""
    return id.partition("/")[0]
