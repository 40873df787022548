"""Unique keys: one message for each key of a task, from its enqueue until it is done."""

from __future__ import annotations

import pytest

from ...errors import EnqueueError
from ...message import Ack, Counts, Discard, Lane, PutResult, Redrive, RetryAt
from ...store import Store
from ..clock import ManualClock
from .base import Contract, bury, claim_one, claimed_ids, draft, handle, in_threads, put_one, settle
from .weaker import takes


class UniqueKeyRules(Contract):
    @takes("unique")
    def test_a_key_is_held_from_enqueue_until_the_message_is_done(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store, key="k", delay_ms=1000)
        assert _again(store) == PutResult(id, True, "scheduled")
        clock.advance("2s")
        assert _again(store) == PutResult(id, True, "ready")
        delivery = claim_one(store)
        assert _again(store) == PutResult(id, True, "leased")
        settle(store, delivery, RetryAt(clock() + 5000))
        assert _again(store) == PutResult(id, True, "scheduled")
        clock.advance("5s")
        settle(store, claim_one(store), Ack())
        assert not _again(store).duplicate

    @pytest.mark.parametrize("lane", [Lane.DEAD, Lane.QUARANTINE])
    @takes("unique")
    def test_resting_messages_hold_their_keys_until_discarded(self, store: Store, lane: Lane) -> None:
        id = bury(store, lane, key="k")
        assert _again(store) == PutResult(id, True, lane.value)
        store.triage([handle(store, id)], Redrive())
        assert _again(store) == PutResult(id, True, "ready")
        second = bury(store, lane, key="other")
        store.triage([handle(store, second)], Discard("not wanted"))
        assert not store.put([draft(key="other")])[0].duplicate

    @takes("unique")
    def test_a_cancelled_message_gives_its_key_back(self, store: Store) -> None:
        first = put_one(store, key="k", delay_ms=0 if store.traits.finds else 60_000)  # surely waits
        store.cancel([first])
        second = _again(store)
        assert not second.duplicate
        assert second.id != first
        delivery = claim_one(store)
        store.cancel([second.id])
        assert _again(store).duplicate  # the first message still runs
        settle(store, delivery, RetryAt(store.now_ms()))
        assert not _again(store).duplicate

    @takes("unique")
    def test_a_message_that_is_put_again_under_its_id_and_key_is_there_already(self, store: Store) -> None:
        id = put_one(store, key="k")
        puts = store.put([draft(key="k", id=id), draft(key="l")])
        assert puts[0] == PutResult(id, True, "ready")
        assert not puts[1].duplicate
        with pytest.raises(EnqueueError):
            store.put([draft(key="m", id=id)])

    @takes("unique")
    def test_a_key_belongs_to_its_task(self, store: Store) -> None:
        puts = store.put([draft("a", key="k"), draft("b", key="k"), draft("a", key="l"), draft("a")])
        assert not any(done.duplicate for done in puts)

    @takes("unique")
    def test_a_key_is_unique_within_one_put_too(self, store: Store) -> None:
        first, second, third = store.put([draft(key="k"), draft(key="k", queue="other"), draft(key="l")])
        assert second == PutResult(first.id, True, "ready")
        assert claimed_ids(store) == [first.id, third.id]
        assert store.counts("other") == Counts()

    @takes("unique")
    def test_a_key_can_be_held_longer_than_its_message_lives(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store, key="k", key_for_ms=600_000)
        settle(store, claim_one(store), Ack())
        assert _again(store) == PutResult(id, True, "done")
        clock.advance("599s")
        store.exchange([], [])  # a store that tidies up here must keep the key
        assert _again(store) == PutResult(id, True, "done")
        clock.advance("2s")
        assert not _again(store).duplicate

    @takes("unique")
    def test_a_key_outlasts_its_time_while_its_message_waits(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store, key="k", key_for_ms=1000)
        clock.advance("10m")
        store.exchange([], [])
        assert _again(store) == PutResult(id, True, "ready")
        settle(store, claim_one(store), Ack())
        assert not _again(store).duplicate

    @takes("unique")
    def test_a_refused_put_holds_no_key(self, store: Store) -> None:
        taken = put_one(store)
        with pytest.raises(EnqueueError):
            store.put([draft(key="k"), draft(id=taken)])
        assert not _again(store).duplicate

    @takes("unique")
    def test_threads_that_race_for_a_key_get_one_message(self, store: Store) -> None:
        puts: list[PutResult] = []
        in_threads(*[lambda: puts.append(_again(store))] * 4)
        assert len({done.id for done in puts}) == 1
        assert sorted(done.duplicate for done in puts) == [False, True, True, True]


def _again(store: Store) -> PutResult:
    """Put the same task and key again, and return the result."""
    (done,) = store.put([draft(key="k")])
    return done
