"""What `follow` leaves behind: for how long the counts of a batch are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.batch import follow
from redrive.batch.state import BatchState, swap_of
from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    BatchCounts,
    ClaimRequest,
    DeadLetter,
    Decision,
    Discard,
    Draft,
    Handle,
    Lane,
    PutResult,
    Redrive,
    Settlement,
    Swap,
)
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock

ID = "0199f3a1-0000-7000-8000-000000000000"


class Sender:
    def __init__(self, store: Store) -> None:
        self.store = store

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        return self.store.put(drafts, swaps=swaps, tx=tx)


def settle(store: Store, decision: Decision) -> None:
    (delivery,) = store.exchange([], [ClaimRequest("default", 1, 1000)]).deliveries
    store.exchange([Settlement(delivery.receipt, decision, Fault(Kind.DEFAULT, "ValueError", "no"))], [])


def look(store: Store) -> None:
    follow(Sender(store), [ID], lambda _, why: None)


def test_a_member_that_is_imported_after_the_end_keeps_the_counts() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    member = Draft(task="push", id="0199f3a1-0000-7000-8000-000000000001", batch=ID)
    store.put([member], swaps=[swap_of(store, BatchState(ID, "sync", clock(), filled=1, sealed=True), None)])
    settle(store, DeadLetter("permanent"))
    (dead,) = store.peek(Lane.DEAD).messages
    store.triage([Handle(dead.id, 0, Lane.DEAD)], Discard("moved"))
    look(store)
    assert store.changed_batches() == []
    store.restore([dead])
    look(store)
    for span in ("8d", "2m"):
        clock.advance(span)
        store.exchange([], [])
    assert store.batch_counts([ID]) == [BatchCounts(dead=1, discarded=1, opened=1, died=1)]
    store.triage([Handle(dead.id, 0, Lane.DEAD)], Redrive())
    settle(store, Ack())
    assert store.batch_counts([ID]) == [BatchCounts(done=1, discarded=1, opened=2, died=1)]


def test_the_counts_of_an_ended_batch_are_kept_for_seven_days() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    member = Draft(task="push", batch=ID)
    store.put([member], swaps=[swap_of(store, BatchState(ID, "sync", clock(), filled=1, sealed=True), None)])
    settle(store, Ack())
    look(store)
    clock.advance("7d")
    store.exchange([], [])
    assert store.batch_counts([ID]) == [BatchCounts(done=1, opened=1)]
    for span in ("2m", "2m"):
        clock.advance(span)
        store.exchange([], [])
    assert store.batch_ids() == []


def test_a_batch_without_a_state_is_looked_at_once_and_forgotten() -> None:
    """As one whose dead member was imported from another store."""
    clock = ManualClock()
    store = MemoryStore(clock)
    store.put([Draft(task="push", batch=ID)])
    settle(store, Ack())
    assert store.changed_batches() == [ID]
    look(store)
    assert store.changed_batches() == [] and store.batch_ids() == [ID]
    clock.advance("7d")
    for _ in range(2):
        clock.advance("61s")
        store.exchange([], [])
    assert store.batch_ids() == []
