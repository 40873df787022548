"""What all rules share: how a test gets its store, and short words for putting, claiming, settling and looking."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ...fault import Fault, Kind
from ...ids import new_id
from ...message import (
    Ask,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    Handle,
    Lane,
    Message,
    Quarantine,
    Settled,
    Settlement,
)
from ...store import Store
from ..clock import ManualClock

LEASE_MS = 30_000
PATIENCE_S = 20.0  # how long a test waits for what must happen; only failing tests wait that long

OpenStore = Callable[[], Store]


class Contract(ABC):
    """The fixtures; see `StoreContract` for what `make_store` must do."""

    @abstractmethod
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        """A handle on the data named by `place`, going by `clock`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def open_store(self, clock: ManualClock, tmp_path: Path) -> Iterator[OpenStore]:
        """Opens one more handle on the test's data at each call."""
        opened: list[Store] = []

        def open_store() -> Store:
            opened.append(self.make_store(clock, tmp_path))
            return opened[-1]

        yield open_store
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        return open_store()


def draft(task: str = "push", **parts: Any) -> Draft:
    return Draft(task=task, **parts)


def put(store: Store, *drafts: Draft) -> list[str]:
    return [done.id for done in store.put(drafts)]


def put_one(store: Store, **parts: Any) -> str:
    return put(store, draft(**parts))[0]


def ask(
    queue: str = "default", limit: int = 100, *, lease_ms: int = LEASE_MS, skip: Sequence[str] = (), worker: str = "w1"
) -> Ask:
    return Ask(queue, limit, lease_ms, frozenset(skip), worker)


def claim(store: Store, *args: Any, **parts: Any) -> list[Delivery]:
    """The deliveries of one ask."""
    return store.exchange([], [ask(*args, **parts)]).deliveries


def claim_one(store: Store, **parts: Any) -> Delivery:
    deliveries = claim(store, **parts)
    assert len(deliveries) == 1
    return deliveries[0]


def claimed_ids(store: Store, *args: Any, **parts: Any) -> list[str]:
    return [delivery.message.id for delivery in claim(store, *args, **parts)]


def settle(store: Store, delivery: Delivery, decision: Decision, **parts: Any) -> Settled:
    """Settle one delivery alone; what the store says of it."""
    (word,) = store.exchange([Settlement(delivery.receipt, decision, **parts)], []).settled
    return word


def look(store: Store, id: str) -> Message:
    (message,) = store.find([id])
    assert message is not None, f"the store no longer knows {id}"
    return message


def lanes(store: Store, *ids: str) -> list[Lane | None]:
    """Where these messages lie; None for one the store does not know."""
    return [None if message is None else message.lane for message in store.find(ids)]


def fault(text: str = "boom", **parts: Any) -> Fault:
    return Fault(**({"kind": Kind.DEFAULT, "error": "ValueError", "text": text, "fingerprint": "f" * 16} | parts))


def bury(
    store: Store, lane: Lane = Lane.DEAD, *, why: Fault | None = None, reason: str = "permanent", **parts: Any
) -> str:
    """Put a message and bring it to rest in the dead or quarantine lane."""
    id = put_one(store, **parts)
    delivery = next(d for d in claim(store, parts.get("queue", "default"), 1000) if d.message.id == id)
    decision = DeadLetter(reason) if lane is Lane.DEAD else Quarantine(reason=reason)
    assert settle(store, delivery, decision, fault=why) is Settled.OK
    return id


def handle(store: Store, id: str) -> Handle:
    message = look(store, id)
    return Handle(id, message.redrives, message.lane)


def fresh_id(store: Store) -> str:
    return new_id(store.now_ms())


def values(store: Store, *keys: str) -> list[bytes | None]:
    """Of these cells."""
    return [None if found is None else found.value for found in store.cells.read(keys)]


def in_threads(*works: Callable[[], object]) -> None:
    """Run all at the same time to the end; the first error is raised here."""
    errors: list[BaseException] = []
    together = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            together.wait(PATIENCE_S)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread did not come to its end"
    if errors:
        raise errors[0]
