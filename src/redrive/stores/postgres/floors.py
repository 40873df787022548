"""The claim floors of one process, and all that other modules know of floors.

An exchange asks how to read its queues (`reads`), sends the looks that are due after its claims (`look`), and takes in
their results once it has committed. So a look sees its own exchange's claims as gone, but uncommitted claims of others
as still there: no floor rises above a message that a rollback restores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ...errors import StoreUnavailable
from ...message import PRIORITIES
from ..pool import heirs
from . import floor as postgres_floor
from .floor import FIRST, Floor, FloorLook, IndexPlace, LookAllowance
from .notifications import DueSpan
from .rows import ints, numbers, texts
from .session import Session
from .statements import AnyConnection, Cursor, Statements

WAKE = len(PRIORITIES)  # index of the floor for messages that wait to join groups, after the priorities'


class _Parts(NamedTuple):
    """The parts of the due index that claims of a queue read, as arguments of a statement; `wake_ms` is where the part
    for messages that wait to join their groups starts."""

    priorities: bytes
    lows_ms: bytes
    lanes: bytes
    seqs: bytes
    untils_ms: bytes
    wake_ms: int


class IndexReads:
    """How statements read each queue: the whole due index, or only the parts above the floors of the queue."""

    def __init__(self, st: Statements, parts: Mapping[str, _Parts]) -> None:
        self._st, self._parts = st, parts

    def do(self, c: AnyConnection, name: str, queue: str, *args: Any) -> Cursor:
        """Run on this queue one of the two forms of the statement `name`: for the whole due index or for its parts."""
        parts = self._parts.get(queue)
        if parts is None:
            return self._st.do(c, name, queue, *args)
        return self._st.do(c, f"{name}_above", queue, *args, *parts)

    def look(self, c: AnyConnection, queues: Sequence[str], now: int | None) -> Cursor:
        """Send the query for the server's time, and whether a message that waits to join a group is due."""
        if not self._parts:
            return self._st.do(c, "look", texts(queues), now)
        return self._st.do(c, "look_above", texts(queues), now, numbers([self.wake_ms(queue) for queue in queues]))

    def wake_ms(self, queue: str) -> int:
        """Return the due time from which to read the messages of the queue that wait to join groups."""
        parts = self._parts.get(queue)
        return FIRST[0] if parts is None else parts.wake_ms


class SentLook:
    """The looks that were sent in one query, each with its floor."""

    def __init__(self, floors: Floors) -> None:
        self._floors = floors
        self.sought: list[tuple[Floor, FloorLook]] = []
        self._queues: list[str] = []
        self._orders: list[int] = []
        self._read: Cursor | None = None

    def add(self, queue: str, order: int, floor: Floor, look: FloorLook) -> None:
        self.sought.append((floor, look))
        self._queues.append(queue)
        self._orders.append(order)

    def send(self, st: Statements, c: AnyConnection) -> None:
        lows, untils = [look.low for _, look in self.sought], [look.until_ms for _, look in self.sought]
        args = texts(self._queues), ints(self._orders), *_places(lows), numbers(untils)
        self._read = st.do(c, "look_behind", *args)

    def take(self, now_ms: int) -> None:
        """Fetch the results of the looks and update their floors. Call it once the looks' transaction is committed."""
        assert self._read is not None
        self._floors.saw(self.sought, self._read.fetchall(), now_ms)


class Floors:
    """The floors of one store in one process. Thread-safe."""

    kept: bool

    def __init__(self, link: Session, st: Statements) -> None:
        self._link, self._st, self._whole = link, st, IndexReads(st, {})
        self._at_s: Callable[[], float] = time.monotonic
        self._allowance = LookAllowance()
        self._queues: dict[str, tuple[Floor, ...]] = {}
        self._quiet_s: dict[str, float] = {}  # by queue without a floor: when to look next
        self.kept = False  # True if any floor is kept
        self._expects = False  # True: a floor is kept, or a look in progress may set one
        self.on_kept: Callable[[], None] = lambda: None  # called for each search for due looks while a floor is kept
        self.in_child()
        heirs.add(self)

    def in_child(self) -> None:
        """Replace the lock after a fork, as another thread of the parent may have held it."""
        self._lock = threading.Lock()

    def reads(self, queues: Collection[str]) -> IndexReads:
        """Return how claims must read these queues now."""
        if not self.kept:
            return self._whole
        now = self._st.now_ms()
        with self._lock:
            known = {queue: self._queues.get(queue, ()) for queue in queues}
            kept = {q: _parts(floors, now) for q, floors in known.items() if any(floor.kept for floor in floors)}
        return IndexReads(self._st, kept)

    def meet(self, queues: Sequence[str]) -> None:
        """Look before the first claim from a queue. Otherwise a process that starts after many deletions would read
        past all of them twice, in a claim and a look. If the look exceeds half the URL's timeout, so would a claim:
        then claims start near the end, and scans cover the rest in pieces. A look that fails sooner raises."""
        new = sorted({*queues} - self._queues.keys())
        look = self._due(new) if new else None
        if look is None:
            return
        began_s = self._at_s()
        try:
            self._read(look)
            look.take(self._st.now_ms())
        except StoreUnavailable:
            cost_ms = (self._at_s() - began_s) * 1000
            with self._lock:
                if cost_ms < self._link.url.timeout_s * 500:
                    for queue in new:  # forget the floor, so that the next exchange looks again
                        self._queues.pop(queue, None)
                    raise
                for floor, _ in look.sought:
                    floor.assume(self._st.now_ms(), cost_ms, began_s)
                self.kept = True

    def look(self, c: AnyConnection, queues: Sequence[str]) -> SentLook | None:
        """Send the looks that are due in these queues, in the transaction of their claims; None if none is due."""
        if not self.kept:
            at_s = self._at_s()
            for queue in queues:
                if at_s >= self._quiet_s.get(queue, 0.0):
                    break
            else:
                return None
        look = self._due(queues)
        if look is not None:
            look.send(self._st, c)
        return look

    def look_alone(self, queues: Sequence[str]) -> None:
        """Send the looks that are due, in a read of their own: a waiting thread has no exchange to send them with."""
        look = self._due(queues) if self.kept else None
        if look is not None:
            self._read(look)
            look.take(self._st.now_ms())

    def expect(self, queue: str, spots: Sequence[DueSpan]) -> None:
        """Record that messages of the queue (empty: any queue) may have been written with due times in `spots`."""
        if self._expects and spots:
            with self._lock:
                for name in [queue] if queue else [*self._queues]:
                    for floor in self._queues.get(name, ()):
                        for low_ms, until_ms in spots:
                            floor.expect(low_ms, until_ms)

    def _read(self, look: SentLook) -> None:
        self._link.read(lambda c: look.send(self._st, c))

    def _due(self, queues: Iterable[str]) -> SentLook | None:
        at_s, look = self._at_s(), SentLook(self)
        with self._lock:
            self._expects = True
            for queue in dict.fromkeys(queues):
                floors = self._queues.get(queue)
                if floors is None:
                    floors = self._queues[queue] = *(Floor() for _ in PRIORITIES), Floor(scattered=False)
                self._quiet_s[queue] = at_s + postgres_floor.OPEN_EVERY_S
                for order, floor in enumerate(floors):
                    for part in floor.looks(at_s, self._allowance):
                        look.add(queue, order, floor, part)
        if self.kept:
            self.on_kept()
        return look if look.sought else None

    def saw(self, sought: Sequence[tuple[Floor, FloorLook]], rows: Iterable[tuple[Any, ...]], now_ms: int) -> None:
        """Update the floors by the rows that these looks returned: the first message each found, and its cost."""
        at_s = self._at_s()
        with self._lock:
            for n, due_ms, lane, seq, cost_ms in rows:
                floor, look = sought[n - 1]
                first = None if due_ms is None else (due_ms, lane, seq)
                floor.saw(look, first, cost_ms, now_ms, at_s, self._allowance)
            known = [*chain.from_iterable(self._queues.values())]
            self.kept = any(floor.kept for floor in known)
            self._expects = self.kept or any(floor.asks for floor in known)


def _parts(floors: Sequence[Floor], now_ms: int) -> _Parts:
    parts = [(order, part) for order in PRIORITIES for part in floors[order].ranges(now_ms)]
    (wake,) = floors[WAKE].ranges(now_ms)
    return _Parts(
        ints([order for order, _ in parts]),
        *_places([part.low for _, part in parts]),
        numbers([part.until_ms for _, part in parts]),
        wake.low[0],
    )


def _places(places: Sequence[IndexPlace]) -> tuple[bytes, bytes, bytes]:
    return numbers([p[0] for p in places]), texts([p[1] for p in places]), numbers([p[2] for p in places])
