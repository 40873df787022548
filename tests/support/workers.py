"""Shared by the worker's tests: stores that watch or fail, an observer that remembers, and waiting for a state."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from redrive import App, Backoff, Retry
from redrive.errors import StoreUnavailable
from redrive.events import DeliveryEvent, Event, Notice
from redrive.message import ClaimRequest, Counts, Exchange, LeaseStatus, Message, Receipt, Settled, Settlement, Swap
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore

PATIENCE_S = 30.0  # long, for a busy machine: what is waited for comes at once or never
SOON = Retry(max_attempts=3, backoff=Backoff.fixed("10ms"))


async def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Return once the condition holds; fail where it never does."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "what was waited for did not come"
        await asyncio.sleep(0.003)


def store_in(folder: Path, kind: str) -> Store:
    return MemoryStore() if kind == "memory" else SqliteStore(folder / "work.db")


class Heard:
    """Every event of an app's workers, in order."""

    def __init__(self, app: App) -> None:
        self.events: list[Event] = []
        app.subscribe(self.events.extend)

    @property
    def fates(self) -> list[DeliveryEvent]:
        return [event for event in self.events if isinstance(event, DeliveryEvent)]

    @property
    def outcomes(self) -> list[str]:
        return [fate.outcome for fate in self.fates]

    @property
    def notices(self) -> list[str]:
        return [event.name for event in self.events if isinstance(event, Notice)]


class Crowd:
    """How many are in at once, now and at most."""

    def __init__(self) -> None:
        self.now = self.most = self.total = 0
        self._lock = threading.Lock()

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._lock:
                self.now -= 1


class Watched(SqliteStore):
    """A SQLite store that knows what is claimed and not settled, and fails in the ways named in `down`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "work.db")
        self.down: set[str] = set()
        self.refused = 0
        self.held: set[Receipt] = set()
        self.most_held = 0
        self.asked: list[ClaimRequest] = []
        self.extended: list[tuple[float, int, list[Receipt]]] = []  # when, for how long, which

    def _refuse(self, what: str) -> None:
        if what in self.down:
            self.refused += 1
            raise StoreUnavailable(f"{what} is out")

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        self._refuse("exchange")
        self.asked.extend(asks)
        result = super().exchange(settlements, asks, swaps=swaps)
        for settlement, word in zip(settlements, result.settled, strict=True):
            if word is not Settled.STALE:
                self.held.discard(settlement.receipt)
        self.held.update(delivery.receipt for delivery in result.deliveries)
        self.most_held = max(self.most_held, len(self.held))
        return result

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        self._refuse("extend")
        self.extended.append((time.monotonic(), lease_ms, list(receipts)))
        return super().extend(receipts, lease_ms=lease_ms, alone=alone)

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        self._refuse("wait")
        super().wait(asks, timeout_ms=timeout_ms)

    def counts(self, queue: str | None = None) -> Counts:
        self._refuse("counts")
        return super().counts(queue)


def stored(app: App, id: str) -> Message:
    message = app.store.find([id])[0]
    assert message is not None, "it is gone"
    return message
