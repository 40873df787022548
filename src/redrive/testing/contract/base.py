"""Share fixtures and helpers between all rules: a test's store, and short forms of put, claim, settle and find.

The helpers respect a store's traits: they sort results without a promised order, and query only what it supports.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ...errors import StoreUnavailable
from ...fault import Fault, Kind
from ...ids import new_id
from ...message import (
    ABSENT,
    REASON_MAX,
    RESTING,
    ClaimRequest,
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
    Started,
)
from ...store import Store
from ..clock import ManualClock

LEASE_MS = 30_000
PATIENCE_S = 20.0  # seconds for which a test waits for an expected event; only failing tests wait that long

OpenStore = Callable[[], Store]


class Contract(ABC):
    """The fixtures; see `StoreContract` for what `make_store` must do."""

    @abstractmethod
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        """Return a handle on the data named by `place`, with `clock` as the store's time."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def open_store(self, clock: ManualClock, tmp_path: Path) -> Iterator[OpenStore]:
        """Open one more handle on the test's data at each call."""
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


def another(store: Store, open_store: OpenStore) -> Store | None:
    """Return one more handle on the test's data; None if the store is for one process and refuses a second handle."""
    try:
        return open_store()
    except StoreUnavailable:
        assert not store.traits.shared
        return None


def draft(task: str = "push", **parts: Any) -> Draft:
    return Draft(task=task, **parts)


def put(store: Store, *drafts: Draft) -> list[str]:
    if not store.traits.priorities:
        drafts = tuple(one if one.id else replace(one, id=_later_id(store)) for one in drafts)
    return [done.id for done in store.put(drafts)]


_later = count()


def _later_id(store: Store) -> str:
    """Return a message id that sorts after all earlier ones, so that `in_order` restores the order of putting."""
    return f"{fresh_id(store)[:14]}7000-8000-{next(_later):012x}"


def put_one(store: Store, **parts: Any) -> str:
    return put(store, draft(**parts))[0]


def ask(
    queue: str = "default", limit: int = 100, *, lease_ms: int = LEASE_MS, skip: Sequence[str] = (), worker: str = "w1"
) -> ClaimRequest:
    return ClaimRequest(queue, limit, lease_ms, frozenset(skip), worker)


def claim(store: Store, *args: Any, **parts: Any) -> list[Delivery]:
    """Return the deliveries of one claim, sorted by enqueue if the store promises no order."""
    return in_order(store, store.exchange([], [ask(*args, **parts)]).deliveries)


def in_order(store: Store, deliveries: list[Delivery]) -> list[Delivery]:
    """Return the deliveries as the store gave them; sorted by enqueue if the store promises no order."""
    return deliveries if store.traits.priorities else sorted(deliveries, key=lambda d: d.message.id)


class AnyOrder(list[str]):
    """A list of ids that equals every list of the same ids, in any order."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and sorted(self) == sorted(other)

    __hash__ = None


def claim_one(store: Store, **parts: Any) -> Delivery:
    deliveries = claim(store, **parts)
    assert len(deliveries) == 1
    return deliveries[0]


def claimed_ids(store: Store, *args: Any, **parts: Any) -> list[str]:
    return ordered(store, [delivery.message.id for delivery in claim(store, *args, **parts)])


def ordered(store: Store, ids: Sequence[str]) -> list[str]:
    """Return a list to compare with: these ids in this order, or in any order if the store promises none."""
    return [*ids] if store.traits.priorities else AnyOrder(ids)


def settle(store: Store, delivery: Delivery, decision: Decision, **parts: Any) -> Settled:
    """Settle one delivery alone, and return the store's answer."""
    (word,) = store.exchange([Settlement(delivery.receipt, decision, **parts)], []).settled
    return word


def look(store: Store, id: str) -> Message:
    (message,) = store.find([id])
    assert message is not None, f"the store no longer knows {id}"
    return message


def seen(store: Store, id: str, lane: Lane = Lane.READY) -> Message | None:
    """Return the message if it is in this lane; None if the store cannot find such messages or read their bodies."""
    message = look(store, id) if shown(store, lane) == [lane] else store.find([id])[0]
    return None if message is not None and message.content == ABSENT else message


def given(store: Store, id: str) -> Message:
    """Return the waiting message; if the store cannot find waiting messages, from the next claim."""
    return seen(store, id) or next(d.message for d in claim(store) if d.message.id == id)


def has_history(store: Store, message: Message, *faults: Fault) -> bool:
    """Return True if these faults are the message's history; a part of them is enough for a store without cells."""
    return message.faults == faults or (not store.traits.cells and {*message.faults} < {*faults})


def die(
    store: Store, clock: ManualClock, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None
) -> None:
    """Free the messages of a dead worker: at once, or when the leases end if the store cannot take them back."""
    taken = store.reclaim(worker, started, fault=fault)
    if not store.traits.releases:
        assert taken == (0, 0)
        clock.advance(LEASE_MS / 1000)


def lanes(store: Store, *ids: str) -> list[Lane | None]:
    """Return the lane of each of these messages; None for a message that the store does not know."""
    return [None if message is None else message.lane for message in store.find(ids)]


def shown(store: Store, *lanes: Lane | None) -> list[Lane | None]:
    """Return what `lanes` answers for messages in these lanes: None for a lane whose messages the store cannot find."""
    traits = store.traits
    hidden = {Lane.READY: not (traits.finds or traits.cancels), Lane.DONE: not traits.keeps_done}
    hidden |= dict.fromkeys(RESTING, not traits.triages)
    return [None if lane is None or hidden.get(lane) else lane for lane in lanes]


def fault(text: str = "boom", **parts: Any) -> Fault:
    return Fault(**({"kind": Kind.DEFAULT, "error": "ValueError", "text": text, "fingerprint": "f" * 16} | parts))


def bury(
    store: Store, lane: Lane = Lane.DEAD, *, why: Fault | None = None, reason: str = "permanent", **parts: Any
) -> str:
    """Put a message, let it die into the dead or quarantine lane, and return its id."""
    id = put_one(store, **parts)
    delivery = next(d for d in claim(store, parts.get("queue", "default"), 1000) if d.message.id == id)
    decision = DeadLetter(reason) if lane is Lane.DEAD else Quarantine(reason=reason)
    assert settle(store, delivery, decision, fault=why) is Settled.OK
    return id


TOO_LONG = "".join(chr(0x4E00 + n * 2654435761 % 20_000) for n in range(5000))  # a reason that cannot be compressed
LONGEST = TOO_LONG[:REASON_MAX]


def handle(store: Store, id: str) -> Handle:
    message = look(store, id)
    return Handle(id, message.redrives, message.lane)


def fresh_id(store: Store) -> str:
    return new_id(store.now_ms())


def values(store: Store, *keys: str) -> list[bytes | None]:
    """Return the value of each of these cells; None for a cell that does not exist."""
    return [None if cell is None else cell.value for cell in store.cells.read(keys)]


def in_threads(*works: Callable[[], object]) -> None:
    """Run all functions at the same time to their ends, each in a thread, and raise the first error here."""
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
