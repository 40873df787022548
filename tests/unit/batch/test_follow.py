"""What `follow` leaves behind: for how long the counts of a batch are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from redrive.audit import Audit
from redrive.batch import follow
from redrive.batch.state import BatchState, swap_of
from redrive.batch.stop_if import StopIf
from redrive.errors import StoreError, StoreUnavailable, Unsupported
from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    BatchCounts,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Decision,
    Discard,
    Draft,
    Handle,
    Lane,
    Page,
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


class Killed(Exception):
    """The worker died here."""


class Dying(MemoryStore):
    """A store under which the worker is killed after so many calls of `cancel`."""

    left = 1000

    def cancel(self, ids: Sequence[str], **options: Any) -> list[Cancel]:
        if not self.left:
            raise Killed
        self.left -= 1
        return super().cancel(ids, **options)


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_stop_that_is_cut_off_is_done_by_the_sweep_and_is_in_the_audit_log_once(calls: int) -> None:
    store = Dying(ManualClock())
    rule = StopIf.parse("dead>0")
    state = BatchState(ID, "sync", 0, filled=1201, sealed=True, stop_if=rule)
    drafts = [Draft(task="push", batch=ID, delay_ms=0 if n == 0 else 1000) for n in range(1201)]
    store.put(drafts, swaps=[swap_of(store, state, None)])
    settle(store, DeadLetter("permanent"))
    store.left = calls
    with pytest.raises(Killed):
        look(store)
    assert store.batch_counts([ID])[0].cancelled == calls * 500 and store.changed_batches() == [ID]
    store.left = 1000
    while changed := store.changed_batches():
        follow(Sender(store), changed, lambda _, why: None)
    assert store.batch_counts([ID])[0] == BatchCounts(dead=1, cancelled=1200, opened=1201, died=1)
    assert [(entry.action, entry.claimed, entry.count) for entry in Audit(store)] == [("cancel", "redrive", 1200)]


class Blind(MemoryStore):
    """A store that fails to list what waits."""

    error: StoreError

    def peek(self, lane: Lane | str | None, **options: Any) -> Page:
        if lane == Lane.READY:
            raise self.error
        return super().peek(lane, **options)


@pytest.mark.parametrize("error", [Unsupported("waiting messages are not listed"), StoreUnavailable("it is down")])
def test_a_batch_that_cannot_be_stopped_keeps_no_other_from_being_marked(error: StoreError) -> None:
    store, said = Blind(ManualClock()), list[tuple[str, str]]()
    store.error = error
    other = ID.replace("0199", "0198")
    rules = {ID: StopIf.parse("dead>0"), other: None}
    for id, rule in rules.items():
        tell = Draft(task="tell", queue="tell")
        state = BatchState(id, "sync", 0, filled=2, sealed=True, stop_if=rule, on_death=tell)
        drafts = [Draft(task="push", batch=id), Draft(task="push", batch=id, delay_ms=1000)]
        store.put(drafts, swaps=[swap_of(store, state, None)])
        settle(store, DeadLetter("permanent"))
    told = isinstance(error, Unsupported)
    for looks in (1, 2):
        with contextlib.nullcontext() if told else pytest.raises(StoreUnavailable, match="it is down"):
            follow(Sender(store), store.changed_batches(), lambda id, why: said.append((id, why)))
        assert said == [(ID, str(error))] * looks * told and store.changed_batches() == [ID]
    assert store.counts("tell").ready == 2  # each callback once


def test_a_large_batch_is_stopped_in_several_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.batch.stop.AT_ONCE", 100)
    store = MemoryStore(ManualClock())
    state = BatchState(ID, "sync", 0, filled=251, sealed=True, stop_if=StopIf.parse("dead>0"))
    drafts = [Draft(task="push", batch=ID, delay_ms=0 if n == 0 else 1000) for n in range(251)]
    store.put(drafts, swaps=[swap_of(store, state, None)])
    settle(store, DeadLetter("permanent"))
    seen = []
    for _ in range(4):
        look(store)
        seen.append((store.batch_counts([ID])[0].cancelled, len(list(Audit(store)))))
    assert seen == [(100, 0), (200, 0), (250, 1), (250, 1)] and store.changed_batches() == []


def test_a_batch_whose_state_cannot_be_read_now_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a worker that lacks the key that encrypts it: the callbacks come from the next one that has it."""
    clock = ManualClock()
    store = MemoryStore(clock)
    state = BatchState(ID, "sync", clock(), filled=1, sealed=True, on_success=Draft(task="tell", queue="tell"))
    store.put([Draft(task="push", batch=ID)], swaps=[swap_of(store, state, None)])
    settle(store, Ack())
    with monkeypatch.context() as patch:
        patch.setattr("redrive.batch.state._decode", lambda value: msgspec.json.decode(b"{"))
        said = list[str]()
        follow(Sender(store), [ID], lambda _, why: said.append(why))
        assert len(said) == 1 and store.changed_batches() == [ID]
    look(store)
    assert store.changed_batches() == [] and [m.task for m in store.peek(Lane.READY).messages] == ["tell"]
