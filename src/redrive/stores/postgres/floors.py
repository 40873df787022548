"""The floors of one process, and how claims, waits and looks of the PostgreSQL store use them.

An exchange takes the `parts` of each queue that it claims from, sends the looks that are due after its claims, and
passes their results to `saw` once it has committed. So a look sees its own exchange's claims as gone, but uncommitted
claims of others as still there: no floor rises above a message that a rollback restores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ...errors import StoreUnavailable
from ...message import PRIORITIES
from ..pool import heirs
from . import floor as postgres_floor
from .floor import (
    FIRST,
    DueSpan,
    Floor,
    FloorLook,
    IndexPlace,
    LookAllowance,
)
from .rows import ints, numbers, texts

WAKE = len(PRIORITIES)  # index, after the priorities, of the floor for messages that wait to join groups


class IndexParts(NamedTuple):
    """The parts of the due index that claims of a queue read, as arguments of a statement; `wake_ms` is the start of
    the part for messages that wait to join their groups."""

    priorities: bytes
    lows_ms: bytes
    lanes: bytes
    seqs: bytes
    untils_ms: bytes
    wake_ms: int


class Looking(NamedTuple):
    """The looks that were sent, each with its floor."""

    floors: Sequence[Floor]
    looks: Sequence[FloorLook]
    queues: Sequence[str]
    orders: Sequence[int]

    def args(self) -> tuple[bytes, ...]:
        low = [look.low for look in self.looks]
        return texts(self.queues), ints(self.orders), *_places(low), numbers([look.until_ms for look in self.looks])


def _places(places: Sequence[IndexPlace]) -> tuple[bytes, bytes, bytes]:
    return numbers([p[0] for p in places]), texts([p[1] for p in places]), numbers([p[2] for p in places])


NO_PARTS: Mapping[str, IndexParts] = {}


def wake_ms(parts: Mapping[str, IndexParts], queue: str) -> int:
    """The due time from which messages may wait to join groups of the queue."""
    return parts[queue].wake_ms if queue in parts else FIRST[0]


class Floors:
    """The floors of one store in one process. Thread-safe."""

    def __init__(self, at_s: Callable[[], float] = time.monotonic) -> None:
        self._at_s = at_s
        self._allowance = LookAllowance()
        self._queues: dict[str, tuple[Floor, ...]] = {}
        self._quiet_s: dict[str, float] = {}  # by queue: time of the next look while no floor is kept
        self.kept = False  # True if any floor is kept
        self._expects = False  # True if a floor is kept, or may be soon, as a look is in progress
        self.on_kept: Callable[[], None] = lambda: None  # called when a floor is kept
        self.in_child()
        heirs.add(self)

    def in_child(self) -> None:
        """Replace the lock after a fork: another thread of the parent may have held it."""
        self._lock = threading.Lock()

    def parts(self, queues: Iterable[str], now_ms: Callable[[], int]) -> Mapping[str, IndexParts]:
        """The parts that claims must read, for those queues that have floors."""
        if not self.kept:
            return NO_PARTS
        now = now_ms()
        with self._lock:
            known = {queue: self._queues.get(queue, ()) for queue in queues}
            return {q: _parts(floors, now) for q, floors in known.items() if any(floor.kept for floor in floors)}

    def meet(
        self,
        queues: Sequence[str],
        look: Callable[[Looking], list[tuple[Any, ...]]],
        now_ms: Callable[[], int],
        patience_ms: float,
    ) -> None:
        """Look before the first claim from a queue. Otherwise a process that starts after many deletions would read
        past all of them twice, in the claim and in a look. If the look exceeds `patience_ms`, so would a claim: then
        claims start near the end, and scans cover the rest in pieces. Errors of a faster look are raised."""
        new = [queue for queue in queues if queue not in self._queues]
        looking = self.looking(new) if new else None
        if looking is None:
            return
        began_s = self._at_s()
        try:
            self.saw(looking, look(looking), now_ms())
        except StoreUnavailable:
            cost_ms = (self._at_s() - began_s) * 1000
            with self._lock:
                if cost_ms < patience_ms:
                    for queue in new:  # forget the floor, so that the next call searches again
                        self._queues.pop(queue, None)
                    raise
                for floor in looking.floors:
                    floor.assume(now_ms(), cost_ms, began_s)
                self.kept = True

    def looking(self, queues: Sequence[str]) -> Looking | None:
        """The looks to send with claims of these queues; None if none is due."""
        at_s = self._at_s()
        if not self.kept and all(at_s < self._quiet_s.get(queue, 0.0) for queue in queues):
            return None
        made = Looking([], [], [], [])
        with self._lock:
            self._expects = True
            for queue in dict.fromkeys(queues):
                floors = self._queues.get(queue)
                if floors is None:
                    floors = self._queues[queue] = _floors()
                self._quiet_s[queue] = at_s + postgres_floor.OPEN_EVERY_S
                for order, floor in enumerate(floors):
                    for look in floor.looks(at_s, self._allowance):
                        for part, value in zip(made, (floor, look, queue, order), strict=True):
                            part.append(value)  # type: ignore[attr-defined]
        if self.kept:
            self.on_kept()
        return made if made.looks else None

    def saw(self, looking: Looking, rows: Iterable[tuple[Any, ...]], now_ms: int) -> None:
        """Update the floors by the results of these looks, once their transaction is committed."""
        at_s = self._at_s()
        with self._lock:
            for n, due_ms, lane, seq, cost_ms in rows:
                first = None if due_ms is None else (due_ms, lane, seq)
                floor, look = looking.floors[n - 1], looking.looks[n - 1]
                floor.saw(look, first, cost_ms, now_ms, at_s, self._allowance)
            known = [*chain.from_iterable(self._queues.values())]
            self.kept = any(floor.kept for floor in known)
            self._expects = self.kept or any(floor.asks for floor in known)

    def expect(self, queue: str, spots: Sequence[DueSpan]) -> None:
        """Record that messages may have been written with due times in these ranges; an empty name means any queue."""
        if self._expects and spots:
            with self._lock:
                for name in [queue] if queue else [*self._queues]:
                    for floor in self._queues.get(name, ()):
                        for low_ms, until_ms in spots:
                            floor.expect(low_ms, until_ms)


def _parts(floors: Sequence[Floor], now_ms: int) -> IndexParts:
    parts = [(order, part) for order in PRIORITIES for part in floors[order].ranges(now_ms)]
    (wake,) = floors[WAKE].ranges(now_ms)
    return IndexParts(
        ints([order for order, _ in parts]),
        *_places([part.low for _, part in parts]),
        numbers([part.until_ms for _, part in parts]),
        wake.low[0],
    )


def _floors() -> tuple[Floor, ...]:
    return *(Floor() for _ in PRIORITIES), Floor(scattered=False)
