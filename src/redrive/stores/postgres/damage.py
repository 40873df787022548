"""Unreadable rows of the PostgreSQL store: read their readable parts, and move them to quarantine.

The server enforces the types of columns. Damage is possible in JSON texts, words and numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ...message import DAMAGED, Damage, Lane, Message
from ..meta import read_deferral, read_meta
from . import groups
from .rows import MEMBER, ids, read_faults, to_message
from .session import Session
from .statements import AnyConnection, Statements

UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError)
META, DEFERRAL = 15, 16  # indexes in the rare columns of a row
COUNTS = {"crashes": 0, "crashes_alone": 1, "redrives": 2, "held_ms": 5, "attempts_allowed": 7}  # index in rare columns
AGAIN_S = 60.0  # pause before the next search, after one that found nothing


def readable(row: tuple[Any, ...]) -> Message:
    """Decode a row of COLUMNS; if it is unreadable, return a message of its readable parts, with the damage."""
    try:
        if row[3] >= 0 and row[4] >= 0:
            return to_message(row)
    except UNREADABLE:
        pass
    return stand_in(row)[0]


class Beyond:
    """Quarantines messages with a counter or time at the end of its range. A statement that would add to that number
    fails for all its messages; after such a failure they are searched for."""

    moved: list[Message]

    def __init__(self, link: Session, st: Statements) -> None:
        self._link, self._st = link, st
        self.moved = list[Message]()
        self._none_s = -AGAIN_S  # when the last search that found nothing was made

    def mend(self) -> bool:
        """Find and quarantine such messages; True if there were any. Does nothing for AGAIN_S after a vain search."""
        if time.monotonic() - self._none_s < AGAIN_S:
            return False
        rows = self._link.read(lambda c: self._st.rows(c, "beyond"))
        if not rows:
            self._none_s = time.monotonic()
            return False
        names = {(queue, group) for _, queue, group in rows if group is not None}

        def work(c: AnyConnection) -> list[str]:
            now = self._st.now()
            if names:
                groups.lock(self._st, c, names, now)
            moved = self._st.rows(c, "set_aside_beyond", ids([row[0] for row in rows]), now)
            groups.admit(self._st, c, names, now)
            return [id for (id,) in moved]

        moved = self._link.run(work, wake={queue for _, queue, _ in rows})
        stored = self._link.read(lambda c: self._st.rows(c, "find", ids(moved)))
        self.moved += [
            replace(readable(row), damage=Damage("a number of it is at the end of its range")) for row in stored
        ]
        return bool(moved)

    def take(self) -> list[Message]:
        """Return the messages that were quarantined since the last call, for reporting, and forget them."""
        moved, self.moved = self.moved, []
        return moved


def stand_in(row: tuple[Any, ...], *, claimed: bool = False) -> tuple[Message, Mapping[str, str]]:
    """The readable parts of a row as a message, and the unreadable columns with reasons. `claimed`: after a claim."""
    parts, wrong = [*row], dict[str, str]()
    rare = None if row[9] is None or row[9][0] == MEMBER else msgspec.json.decode(row[9])
    raw = {"task": row[1], "fence": str(row[3]), "attempt": str(row[4]), "lane": row[12], "faults": row[10] or ""}
    if rare is not None:
        raw |= {"meta": rare[META] or "", "deferral": rare[DEFERRAL] or ""}
        for name, at in COUNTS.items():
            if rare[at] is not None and rare[at] < 0:
                raw[name], wrong[name], rare[at] = str(rare[at]), f"{rare[at]} counts nothing", None
        for name, at, read in (("meta", META, read_meta), ("deferral", DEFERRAL, read_deferral)):
            if rare[at] is not None and not _reads(read, rare[at], name, wrong):
                rare[at] = None
        parts[9] = msgspec.json.encode(rare)
    if not _reads(read_faults, row[10], "faults", wrong):
        parts[10] = None
    if not _reads(Lane, row[12], "lane", wrong):
        parts[12] = Lane.QUARANTINE.value
    if row[3] < claimed:
        parts[3], wrong["fence"] = 0, f"{row[3] - claimed} is no fence"
    if row[4] < claimed:
        parts[4], wrong["attempt"] = 0, f"{row[4] - claimed} counts nothing"
    why = "; ".join(f"column {name}: {why}" for name, why in wrong.items())
    return replace(to_message(tuple(parts)), reason=DAMAGED, damage=Damage(why, raw)), wrong


def _reads(read: Callable[[Any], Any], value: Any, name: str, wrong: dict[str, str]) -> bool:
    try:
        read(value)
    except UNREADABLE as error:
        wrong[name] = str(error)
    return name not in wrong


def with_kept(message: Message, kept: str) -> Message:
    """Return a quarantined message with its row from before the quarantine, `kept`, as its damage."""
    before = msgspec.json.decode(kept)
    raw = {name: value if isinstance(value, str) else str(value) for name, value in before["damaged"].items()}
    return replace(message, damage=Damage(before["why"], {name: v for name, v in raw.items() if v != "None"}))
