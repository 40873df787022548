"""Which queues and tasks have a history: a cell lists them, a thousand at most."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection

import msgspec

from ..chance import uniform
from ..message import Cell, Swap, decoded, version_of
from ..store import Store
from .chunk import HOURS
from .recorder import OTHER, SeriesName

NAMES_MAX = 1000
EVERYTHING: SeriesName = ("", "")  # the sum over all queues and tasks
OVERFLOW: SeriesName = (OTHER, OTHER)
CELL = "history/names"
TRIES = 20
_PAUSE_S = 0.005  # between two tries, at random and growing

Days = dict[SeriesName, int]  # the last day on which a queue and task did something, in days since the epoch


def id_of(name: SeriesName) -> str:
    """The part of a cell's key that encodes a queue and task."""
    queue, task = name
    return hashlib.blake2b(f"{queue}\0{task}".encode(), digest_size=8).hexdigest()


def read_names(store: Store) -> Days:
    """The queues and tasks that did something in the last 35 days. Raises StoreError."""
    return _days(store.cells.read([CELL])[0])


class SeriesNames:
    """The list, as one process knows it. `retries` counts swaps that another process won."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Days = {}
        self.retries = 0

    def list(self, names: Collection[SeriesName], now_ms: int) -> dict[SeriesName, SeriesName]:
        """Put these on the list; the name under which each is kept. Raises StoreError."""
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
        return before  # the next flush tries again


_decode = msgspec.msgpack.Decoder(list[tuple[str, str, int]]).decode


def _days(cell: Cell | None) -> Days:
    return {(queue, task): day for queue, task, day in decoded(cell, _decode, [])}
