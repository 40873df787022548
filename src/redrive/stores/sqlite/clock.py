"""The time of an SQLite store: its mark in the file, and times of day as times of the store. See held_clock.py."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...message import Draft, Settlement
from .held_clock import KEY, HeldClock, Host, finding

Read = Callable[..., list[tuple[Any, ...]]]


class StoreClock:
    """Held against the clocks of `host`; or `clock_ms`, where a test gives that."""

    def __init__(self, sql: Mapping[str, str], clock_ms: Callable[[], int] | None, host: Host | None) -> None:
        self._sql, self._held = sql, HeldClock(host)
        self._is_held = clock_ms is None
        self.now_ms: Callable[[], int] = clock_ms or self._held.now_ms
        self.now: Callable[[], float] = clock_ms or self._held.now

    # -- the mark

    def begin(self, c: sqlite3.Connection) -> None:
        """At the beginning of a commit: no other process can change the mark until its end."""
        if self._is_held and self._held.begin():
            mark = self._held.sync(self._mark_in(c), lambda: bool(c.execute(self._sql["nothing_leased"]).fetchone()[0]))
            if mark is not None:
                c.execute(self._sql["write_clock"], (KEY, mark))

    def undo(self) -> None:
        """That commit was undone."""
        self._held.forget()

    def begin_within(self, c: sqlite3.Connection) -> None:
        """In a transaction of somebody else's, who may undo it: the mark stays as it is."""
        if self._is_held and self._held.begin():
            self._held.look(self._mark_in(c))

    def look(self, read: Read) -> None:
        """See, now and then, whether another process has changed the mark."""
        if self._is_held and self._held.wants_look:
            self._held.look(next((row[0] for row in read(self._sql["read_clock"], KEY)), None))

    def _mark_in(self, c: sqlite3.Connection) -> bytes | None:
        row = c.execute(self._sql["read_clock"], (KEY,)).fetchone()
        return None if row is None else row[0]

    # -- times of day

    def timed(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """The drafts with times of day as times of the store."""
        if not self._is_apart():
            return drafts
        return [
            draft
            if draft.due_ms is None and draft.deadline_ms is None
            else replace(draft, due_ms=self._of_day(draft.due_ms), deadline_ms=self._of_day(draft.deadline_ms))
            for draft in drafts
        ]

    def timed_all(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        """The same for follow-ups."""
        if not self._is_apart():
            return settlements
        return [replace(s, follow_ups=self.timed(s.follow_ups)) if s.follow_ups else s for s in settlements]

    def _of_day(self, wall_ms: int | None) -> int | None:
        return None if wall_ms is None else self._held.of_day(wall_ms)

    def _is_apart(self) -> bool:
        return self._is_held and self._held.is_apart and self._held.ahead_ms() != 0

    def findings(self) -> list[str]:
        """What a doctor says of it."""
        found = finding(self._held.ahead_ms()) if self._is_held else None
        return [] if found is None else [found]
