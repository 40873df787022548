"""A store that counts the calls that reach it, and the messages that they return."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from redrive.message import Cell, Page, Swap
from redrive.store import Store
from redrive.store.cells import Cells
from redrive.store.wrapper import StoreWrapper

READS = (
    *("counts", "counts_by_queue", "queues", "due_counts", "peek", "find", "ids_from", "failure_groups", "groups"),
    *("paused", "info", "check", "doctor", "batch_counts", "batch_ids", "changed_batches"),
)
WRITES = ("put", "exchange", "extend", "triage", "restore", "cancel", "configure", "configure_group", "retain")


class CountedStore(StoreWrapper):
    """Passes every call on. `calls` counts those that go to the engine, `messages` how many messages came back.
    `tell` is called for each, from the thread that calls."""

    def __init__(self, inner: Store, tell: Callable[[str], object] = lambda name: None) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.messages = 0
        self._lock, self._tell = threading.Lock(), tell
        self.cells = _CountedCells(inner.cells, self.count)

    def count(self, name: str, messages: int = 0) -> None:
        with self._lock:
            self.calls[name] += 1
            self.messages += messages
        self._tell(name)

    def reset(self) -> None:
        """Begin again at nothing."""
        with self._lock:
            self.calls.clear()
            self.messages = 0


def _counted(name: str) -> Callable[..., Any]:
    def call(self: CountedStore, *args: Any, **named: Any) -> Any:
        found = getattr(self.inner, name)(*args, **named)
        self.count(name, len(found.messages) if isinstance(found, Page) else 0)
        return found

    return call


for _name in (*READS, *WRITES):
    setattr(CountedStore, _name, _counted(_name))


class _CountedCells:
    def __init__(self, inner: Cells, count: Callable[[str], None]) -> None:
        self._inner, self._count = inner, count

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        self._count("cells.read")
        return self._inner.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        self._count("cells.swap")
        return self._inner.swap(swaps, durable=durable)
