"""The list of queues and tasks with a history: one cell, a thousand entries at most."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection

import msgspec

from ..chance import uniform
from ..counters import OTHER
from ..message import Cell, Swap, decoded, version_of
from ..store import Store
from .chunk import HOURS
from .recorder import SeriesName

NAMES_MAX = 1000
EVERYTHING: SeriesName = ("", "")  # the name under which the sum over all queues and tasks is stored
OVERFLOW: SeriesName = (OTHER, OTHER)
CELL = "history/names"
TRIES = 20
_PAUSE_S = 0.005  # the longest pause after the first lost swap, in seconds; pauses are random and grow

Days = dict[SeriesName, int]  # by queue and task: the last day with any activity, in days since the epoch


def id_of(name: SeriesName) -> str:
    """Return the part of a cell's key that stands for a queue and task."""
    queue, task = name
    return hashlib.blake2b(f"{queue}\0{task}".encode(), digest_size=8).hexdigest()


def read_names(store: Store) -> Days:
    """Return the queues and tasks with activity in the last 35 days, each with its last day. Raises StoreError."""
    return _days(store.cells.read([CELL])[0])


class SeriesNames:
    """The list of queues and tasks, as this process last read it. `retries` counts swaps that another process won."""

    retries: int

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Days = {}
        self.retries = 0

    def list(self, names: Collection[SeriesName], now_ms: int) -> dict[SeriesName, SeriesName]:
        """Add these names to the list; return the name under which to count each: OVERFLOW beyond NAMES_MAX."""
        day = now_ms // HOURS.span_ms
        if any(self._known.get(name, -1) < day for name in names):
            self._known = self._list(names, day)
        return {name: name if name in self._known else OVERFLOW for name in names}

    def _list(self, names: Collection[SeriesName], day: int) -> Days:
        for tried in range(TRIES):
            cell = self._store.cells.read([CELL])[0]
            before = _days(cell)
            days = {name: last for name, last in before.items() if day - last <= HOURS.kept_ms // HOURS.span_ms}
            for name in names:
                if name in days or len(days) < NAMES_MAX:
                    days[name] = max(day, days.get(name, day))
            if days == before:
                return days
            value = msgspec.msgpack.encode([[*name, last] for name, last in sorted(days.items())])
            if self._store.cells.swap([Swap(CELL, version_of(cell), value)], durable=False)[0]:
                return days
            self.retries += 1
            time.sleep(uniform(0, _PAUSE_S * (tried + 1)))
        return before  # all tries were lost, so the next flush tries again


_decode = msgspec.msgpack.Decoder(list[tuple[str, str, int]]).decode


def _days(cell: Cell | None) -> Days:
    return {(queue, task): day for queue, task, day in decoded(cell, _decode, [])}
