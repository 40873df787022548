"""Rows of the PostgreSQL store that cannot be read: what of them can be, and setting them aside.

The server keeps every column to its type. What can be damaged is the JSON in its texts, its words and its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ...message import DAMAGED, Damage, Lane, Message
from ..meta import read_deferral, read_meta
from .rows import read_faults, to_message

UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError)
META, DEFERRAL = 15, 16  # places in the rare columns
MENDED = frozenset(("meta", "faults", "deferral", "fence", "lane"))


def readable(row: tuple[Any, ...]) -> Message:
    """One row of COLUMNS; of one that cannot be read what of it can be, with its damage."""
    try:
        return to_message(row)
    except UNREADABLE:
        return stand_in(row)[0]


def stand_in(row: tuple[Any, ...]) -> tuple[Message, Mapping[str, str]]:
    """What of it can be read; and which columns cannot, with why."""
    parts, wrong = [*row], dict[str, str]()
    rare = None if row[9] is None else msgspec.json.decode(row[9])
    raw = {"task": row[1], "fence": str(row[3]), "lane": row[12], "faults": row[10] or ""}
    if rare is not None:
        raw |= {"meta": rare[META] or "", "deferral": rare[DEFERRAL] or ""}
        for name, at, read in (("meta", META, read_meta), ("deferral", DEFERRAL, read_deferral)):
            if rare[at] is not None and not _reads(read, rare[at], name, wrong):
                rare[at] = None
        parts[9] = msgspec.json.encode(rare)
    if not _reads(read_faults, row[10], "faults", wrong):
        parts[10] = None
    if not _reads(Lane, row[12], "lane", wrong):
        parts[12] = Lane.QUARANTINE.value
    if row[3] < 0:
        parts[3], wrong["fence"] = 0, f"{row[3]} is no fence"
    why = "; ".join(f"column {name}: {why}" for name, why in wrong.items())
    return replace(to_message(tuple(parts)), reason=DAMAGED, damage=Damage(why, raw)), wrong


def _reads(read: Callable[[Any], Any], value: Any, name: str, wrong: dict[str, str]) -> bool:
    try:
        read(value)
    except UNREADABLE as error:
        wrong[name] = str(error)
    return name not in wrong


def with_kept(message: Message, kept: str) -> Message:
    """It with what its row was before it was set aside."""
    found = msgspec.json.decode(kept)
    raw = {name: value if isinstance(value, str) else str(value) for name, value in found["damaged"].items()}
    return replace(message, damage=Damage(found["why"], {name: v for name, v in raw.items() if v != "None"}))
