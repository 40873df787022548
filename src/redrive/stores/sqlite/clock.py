"""The clock of an SQLite store, which does not jump when the machine's clock is set.

A lease, a delay and a timeout are lengths of time, which the wall clock does not measure: set forward by an hour, every
lease has run out; set back, no message becomes due for an hour. So the store keeps a mark: a point in its own time from
which the machine's steady clock counts on. Until the wall clock is set, both show the same time.

- Set back: the store's time is ahead of the wall clock. It never goes back. It runs slower by a tenth until the wall
  clock has caught up. So nothing is early, and due messages are late by a ninth of their delay at most.
- Set forward: the store's time is behind. It continues as before, so no lease runs out early. If the wall clock stays
  ahead for ten minutes, the store's time is set to it, as soon as no lease runs.

`next_mark` decides that, as a pure function of marks and clock readings. `HeldClock` applies it in this process,
`StoreClock` reads and writes the mark in the file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...duration import show
from ...files import UNKNOWN_BOOT, boot_id
from ...message import Draft, Settlement
from ...system import steady_clock
from .rows import Read

KEY = "clock"  # key of the cell that holds the mark
STEP_MS = 1000  # a wall clock that differs by more than this was set
SLOWER = 0.1
WAIT_MS = 10 * 60_000  # how long the wall clock must stay ahead before the store's time follows
AWAY_MS = 24 * 3600_000  # a store's time further ahead at the machine's start is from a wrong clock
SAVE_EVERY_MS = 60_000
LOOK_EVERY_MS = 1000  # how often a process checks if another one has changed the mark
QUIET_EVERY_MS = 10_000  # how often a process checks that no lease runs, once the store's time may follow


class Host(Protocol):
    """The clocks of a machine. Tests use their own."""

    @property
    def start(self) -> str:
        """Identifies this boot of the machine, and the time namespace of the steady clock; empty if unknown."""
        ...

    def wall_s(self) -> float:
        """Return the time of the wall clock in seconds. People and programs may set this clock."""
        ...

    def steady_s(self) -> float:
        """Return the seconds since an arbitrary point. This clock counts evenly until the machine restarts."""
        ...


class MachineClocks:
    """The clocks of the machine on which this process runs."""

    def __init__(self) -> None:
        boot = boot_id()
        self.start: str = "" if boot.startswith(UNKNOWN_BOOT) else f"{boot}{_time_namespace()}"
        self.wall_s: Callable[[], float] = time.time
        self.steady_s: Callable[[], float] = steady_clock()


def _time_namespace() -> str:
    """The time namespace of this process, as containers may have steady clocks of their own; empty if unknown."""
    try:
        return f"/{Path('/proc/self/ns/time').stat().st_ino}"
    except OSError:
        return ""


class ClockMark(Struct, frozen=True, array_like=True):
    """When the steady clock of boot `start` showed `steady_ms`, the store's time was `time_ms`, and the wall clock was
    `offset_ms` ahead of the steady clock. `behind_since_ms`: what the steady clock showed when the store's time fell
    behind the wall clock; None if it is not behind."""

    start: str
    steady_ms: float
    time_ms: float
    offset_ms: float
    behind_since_ms: float | None = None

    def time_at(self, steady_ms: float) -> float:
        """Return the store's time, in ms, when the steady clock shows `steady_ms`."""
        elapsed = steady_ms - self.steady_ms
        ahead = self.time_ms - self.steady_ms - self.offset_ms
        return self.time_ms + elapsed - max(0.0, min(ahead, elapsed * SLOWER))

    def is_off(self, wall_ms: float, steady_ms: float) -> bool:
        """True if the wall clock was set after the mark was made."""
        return abs(wall_ms - steady_ms - self.offset_ms) > STEP_MS


def next_mark(
    mark: ClockMark | None,
    start: str,
    wall_ms: float,
    steady_ms: float,
    is_quiet: Callable[[float], bool] = lambda now_ms: False,
) -> ClockMark:
    """Return the new mark, or `mark` itself if the clocks still agree with it. `is_quiet` returns True if no lease runs
    at a time of the store's; it is only called if the new mark depends on that."""
    offset = wall_ms - steady_ms
    if mark is None:
        return ClockMark(start, steady_ms, wall_ms, offset)
    if mark.start != start or steady_ms < mark.steady_ms - STEP_MS:
        is_wrong = mark.time_ms - wall_ms > AWAY_MS
        return ClockMark(start, steady_ms, wall_ms if is_wrong else max(wall_ms, mark.time_ms), offset)
    now = mark.time_at(steady_ms)
    since = None
    if wall_ms - now > STEP_MS:
        since = steady_ms if mark.behind_since_ms is None else mark.behind_since_ms
        if steady_ms - since >= WAIT_MS and is_quiet(now):
            return ClockMark(start, steady_ms, wall_ms, offset)
    changed = mark.is_off(wall_ms, steady_ms) or (since is None) != (mark.behind_since_ms is None)
    if changed or steady_ms - mark.steady_ms >= SAVE_EVERY_MS:
        return ClockMark(start, steady_ms, now, offset if changed else mark.offset_ms, since)
    return mark


class HeldClock:
    """The store's time in this process. `sync` takes the mark from the store: at most once a second while the clock was
    not set, otherwise in each commit."""

    def __init__(self, host: Host | None = None) -> None:
        self._host = host or MachineClocks()
        self._steady_s, self._wall_s = self._host.steady_s, self._host.wall_s
        self._looked_ms = self._asked_ms = float("-inf")
        self._good_until_ms = float("-inf")  # by the steady clock: commits before this need no `sync`
        self._was_set = False  # True: the wall clock was set after the mark was made
        self._unsaved: tuple[ClockMark | None] | None = None  # (old mark,) until the commit
        self._take(None)

    def _take(self, mark: ClockMark | None) -> None:
        self._mark = mark
        self._offset_ms, self._since_ms = (
            (0.0, 0.0) if mark is None else (mark.offset_ms, mark.time_ms - mark.steady_ms)
        )
        self._ahead_ms = self._since_ms - self._offset_ms
        self._was_set = False

    def now(self) -> float:
        """Return the store's time in ms; without a mark, the time of the wall clock."""
        mark = self._mark
        if mark is None:
            return self._wall_s() * 1000
        steady = self._steady_s() * 1000
        return steady + self._since_ms if self._ahead_ms <= 0 else mark.time_at(steady)

    def now_ms(self) -> int:
        return int(self.now())

    @property
    def is_apart(self) -> bool:
        """True if the store's time and the wall clock may differ, as seen at the last commit."""
        return self._was_set or not -STEP_MS < self._ahead_ms < STEP_MS

    def ahead_ms(self) -> float:
        """Return by how many ms the store's time is ahead of the wall clock; 0 if the wall clock was not set."""
        steady, wall = self._read()
        ahead = 0.0 if self._mark is None else self._mark.time_at(steady) - wall
        return ahead if abs(ahead) > STEP_MS else 0.0

    def of_day(self, wall_ms: int) -> int:
        """Return what the store's time will be, in ms, when the wall clock shows `wall_ms`."""
        ahead, left = self.ahead_ms(), wall_ms - self._wall_s() * 1000
        if ahead < 0:
            return wall_ms + int(ahead) if left < self._wait_ms() else wall_ms  # the store's time will have followed
        return wall_ms + int(ahead - max(0.0, min(ahead, left * SLOWER)))

    def _wait_ms(self) -> float:
        """Return for how many ms the store's time surely does not follow a wall clock that is ahead of it."""
        since = None if self._mark is None else self._mark.behind_since_ms
        return WAIT_MS if since is None else since + WAIT_MS - self._steady_s() * 1000

    def _read(self) -> tuple[float, float]:
        """Read both clocks at one moment: read again if the process was paused between the readings."""
        while True:
            before_s, wall_s, steady_s = self._steady_s(), self._wall_s(), self._steady_s()
            if steady_s - before_s < STEP_MS / 4000:
                return steady_s * 1000, wall_s * 1000

    # -- agreement with other processes

    def begin(self) -> bool:
        """Prepare for a commit that begins; returns True if it must call `sync`."""
        self._unsaved = None
        steady = self._steady_s() * 1000
        if steady < self._good_until_ms and -STEP_MS < self._wall_s() * 1000 - steady - self._offset_ms < STEP_MS:
            return False
        steady, wall = self._read()
        self._was_set = self._mark is not None and self._mark.is_off(wall, steady)
        return bool(self._host.start)

    def sync(self, stored: bytes | None, is_quiet: Callable[[float], bool]) -> bytes | None:
        """Set the clock by the stored mark, while no other process can write one; returns a new mark to write, or None.
        If the mark is not written in the end, the caller must call `forget`."""
        kept, (steady, wall) = read(stored), self._read()
        self._unsaved = (self._mark,)
        mark = next_mark(kept, self._host.start, wall, steady, lambda now: self._ask(is_quiet, now, steady))
        self._take(mark)
        self._looked_ms = steady
        self._good_until_ms = steady + LOOK_EVERY_MS if mark.behind_since_ms is None else steady
        return None if mark is kept else _encode(mark)

    def _ask(self, is_quiet: Callable[[float], bool], now_ms: float, steady_ms: float) -> bool:
        if steady_ms - self._asked_ms < QUIET_EVERY_MS:
            return False
        self._asked_ms = steady_ms
        return is_quiet(now_ms)

    def forget(self) -> None:
        """Return to the mark before `sync`, after the commit with the new mark was rolled back."""
        if self._unsaved is not None:
            self._take(self._unsaved[0])
            self._unsaved = None
            self._good_until_ms = self._asked_ms = float("-inf")

    @property
    def wants_look(self) -> bool:
        """True if it is time to read the stored mark outside of commits."""
        return self._steady_s() * 1000 - self._looked_ms >= LOOK_EVERY_MS and bool(self._host.start)

    def look(self, stored: bytes | None) -> None:
        """Set the clock by a stored mark, read outside of commits, unless this process has a newer mark."""
        kept, mark, (steady, wall) = read(stored), self._mark, self._read()
        self._looked_ms = steady
        if kept is None or kept.start != self._host.start:
            if mark is None:
                self._take(next_mark(kept, self._host.start, wall, steady))
        elif mark is None or mark.start != kept.start or kept.steady_ms > mark.steady_ms:
            self._take(kept)
            self._was_set = kept.is_off(wall, steady)


def finding(ahead_ms: float) -> str | None:
    """Return the doctor's line about a store's time that is `ahead_ms` ahead of the wall clock; None for 0."""
    if not ahead_ms:
        return None
    by, how = show(round(abs(ahead_ms) / 1000)), "back" if ahead_ms > 0 else "forward"
    then = "ahead of it, and comes back by running slower by a tenth: until then delays are longer by a ninth at most"
    if ahead_ms < 0:
        then = "behind it, and follows once that has lasted ten minutes and no lease runs"
    return f"the clock of this machine was set {how} while messages were waiting: the store's time is {by} {then}"


_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(ClockMark).decode


def read(stored: bytes | None) -> ClockMark | None:
    """Decode a stored mark; None if there is none or it is unreadable."""
    try:
        return None if stored is None else _decode(stored)
    except (msgspec.DecodeError, ValueError, TypeError):
        return None


class StoreClock:
    """The clock of a store, made from the clocks of `host`. In tests `clock_ms` replaces it."""

    def __init__(self, sql: Mapping[str, str], clock_ms: Callable[[], int] | None, host: Host | None) -> None:
        self._sql, self._held = sql, HeldClock(host)
        self._is_held = clock_ms is None
        self.now_ms: Callable[[], int] = clock_ms or self._held.now_ms
        self.now: Callable[[], float] = clock_ms or self._held.now

    # -- the mark

    def begin(self, c: sqlite3.Connection) -> None:
        """Agree with other processes at the beginning of a commit, while none of them can change the mark."""
        if self._is_held and self._held.begin():
            mark = self._held.sync(
                self._mark_in(c), lambda now: bool(c.execute(self._sql["no_lease_runs"], (now,)).fetchone()[0])
            )
            if mark is not None:
                c.execute(self._sql["write_clock"], (KEY, mark))

    def undo(self) -> None:
        """Undo what `begin` did, after its commit was rolled back."""
        self._held.forget()

    def begin_within(self, c: sqlite3.Connection) -> None:
        """Read the mark in the caller's transaction, and write none, as that transaction may be rolled back."""
        if self._is_held and self._held.begin():
            self._held.look(self._mark_in(c))

    def look(self, read: Read) -> None:
        """Read the mark, at most once a second, to see if another process has changed it."""
        if self._is_held and self._held.wants_look:
            self._held.look(next((row[0] for row in read(self._sql["read_clock"], KEY)), None))

    def _mark_in(self, c: sqlite3.Connection) -> bytes | None:
        row = c.execute(self._sql["read_clock"], (KEY,)).fetchone()
        return None if row is None else row[0]

    # -- times by the wall clock

    def timed(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Return the drafts with due times and deadlines converted from the wall clock to the store's time."""
        if not self._is_apart():
            return drafts
        return [
            draft
            if draft.due_ms is None and draft.deadline_ms is None
            else replace(draft, due_ms=self._of_day(draft.due_ms), deadline_ms=self._of_day(draft.deadline_ms))
            for draft in drafts
        ]

    def timed_all(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        """Return the settlements with times of follow-ups converted from the wall clock to the store's time."""
        if not self._is_apart():
            return settlements
        return [replace(s, follow_ups=self.timed(s.follow_ups)) if s.follow_ups else s for s in settlements]

    def _of_day(self, wall_ms: int | None) -> int | None:
        return None if wall_ms is None else self._held.of_day(wall_ms)

    def _is_apart(self) -> bool:
        return self._is_held and self._held.is_apart and self._held.ahead_ms() != 0

    def findings(self) -> list[str]:
        """Return the doctor's lines about the clock: at most one."""
        one = finding(self._held.ahead_ms()) if self._is_held else None
        return [] if one is None else [one]
