"""A store on the stand-in of SQS, with a clock."""

from __future__ import annotations

from typing import Any

from redrive.fault import Fault, Kind
from redrive.message import (
    ClaimRequest,
    Delivery,
    Draft,
    Settled,
    Settlement,
)
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.store import SqsStore
from redrive.testing.clock import ManualClock
from redrive.testing.sqs import SqsServer

FAULT = Fault(kind=Kind.TRANSIENT, error="ConnectionError", text="refused", fingerprint="a" * 16)


class Own:
    """Cells that a store may close."""

    def __init__(self, clock: ManualClock) -> None:
        self._store = MemoryStore(clock)
        self.read, self.swap = self._store.cells.read, self._store.cells.swap

    def close(self) -> None:
        self._store.close()


class World:
    """A stand-in, and stores on it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = SqsServer(self.clock)
        self.stores: list[SqsStore] = []

    def open(self, options: str = "", *, cells: bool = True, triage: bool = False) -> SqsStore:
        url = f"sqs://eu-central-1/shop?create=true&poll=0&endpoint={self.server.url}{options}"
        resting = MemoryStore(self.clock) if triage else None
        self.stores.append(SqsStore(url, clock_ms=self.clock, cells=Own(self.clock) if cells else None, triage=resting))
        return self.stores[-1]

    def queue(self, name: str) -> Any:
        return self.server.account.queues[f"shop-{name}"]

    def lying(self, name: str) -> int:
        """How many messages a queue holds, visible or not."""
        return sum(int(count) for count in self.queue(name).counts(self.clock()).values())


def put(store: SqsStore, **parts: Any) -> str:
    return store.put([Draft(task="push", **parts)])[0].id


def claim(store: SqsStore, limit: int = 10, queue: str = "default", lease_ms: int = 30_000) -> list[Delivery]:
    return store.exchange([], [ClaimRequest(queue, limit, lease_ms, worker="w")]).deliveries


def settle(store: SqsStore, delivery: Delivery, decision: Any, **parts: Any) -> Settled:
    return store.exchange([Settlement(delivery.receipt, decision, **parts)], []).settled[0]
