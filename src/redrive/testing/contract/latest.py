"""Puts that take a unique key over from what does not wait, and that replace what waits: the latest wins."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ...errors import EnqueueError
from ...message import Ack, Cancel, Counts, Handle, Hasten, Lane, PutResult, Redrive, RetryAt, Settled
from ...store import Store
from ..clock import ManualClock
from .base import (
    Contract,
    bury,
    claim,
    claim_one,
    draft,
    fault,
    handle,
    in_threads,
    look,
    put_one,
    settle,
)
from .weaker import takes


class LatestRules(Contract):
    @takes("replaces")
    def test_a_message_that_waits_gets_the_content_of_the_draft_that_replaces_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        id = put_one(store, key="k", delay_ms=1000, body=b'{"n":1}', priority=3, headers={"a": "1"}, version=2)
        first = look(store, id)
        clock.advance("500ms")
        put = _latest(
            store, b'{"n":2}', delay_ms=5000, priority=1, headers={"b": "2"}, deadline_ms=store.now_ms() + 60_000,
            producer="p", correlation_id="c", traceparent="t", keep_ms=7,
        )  # fmt: skip
        assert put == PutResult(id, True, "scheduled", True)
        clock.advance("4s")
        assert claim(store) == []
        clock.advance("2s")
        message = claim_one(store).message
        assert (message.id, message.body, message.priority, message.headers) == (id, b'{"n":2}', 1, {"b": "2"})
        assert (message.deadline_ms, message.producer, message.correlation_id) == (message.life_ms + 60_000, "p", "c")
        assert (message.version, message.traceparent, message.keep_ms, message.attempt) == (1, "t", 7, 1)
        assert (message.enqueued_ms, message.life_ms) == (first.enqueued_ms, first.enqueued_ms + 500)
        assert store.check() == []

    @takes("replaces")
    def test_the_last_draft_of_one_put_is_the_one_that_waits(self, store: Store) -> None:
        drafts = [draft(key="k", body=b"%d" % n, replace=True) for n in range(3)]
        first, second, third = store.put([draft(key="k", body=b"plain"), *drafts[:2]])
        assert (first.id, first.duplicate) == (second.id, False) == (third.id, False)
        assert second == third == PutResult(first.id, True, "ready", True)
        assert claim_one(store).message.body == b"1"

    @takes("replaces")
    def test_drafts_of_one_put_in_two_queues_both_wait_and_the_last_has_the_key(self, store: Store) -> None:
        first, second = store.put([draft(key="k"), draft(key="k", queue="other", replace=True)])
        assert not second.duplicate and second.id != first.id
        assert _again(store).id == second.id
        assert store.check() == []

    @takes("replaces")
    def test_while_a_message_runs_one_more_waits(self, store: Store, clock: ManualClock) -> None:
        first = put_one(store, key="k", body=b"1")
        delivery = claim_one(store)
        second = _latest(store, b"2", delay_ms=1000)
        assert second.id != first and not second.duplicate and not second.replaced
        assert _latest(store, b"3") == PutResult(second.id, True, "ready", True)
        assert settle(store, delivery, Ack()) is Settled.OK
        assert _again(store) == PutResult(second.id, True, "ready")  # the ack freed a key that is not the first's
        assert claim_one(store).message.body == b"3"
        assert store.check() == []

    @takes("replaces")
    def test_a_run_that_is_retried_goes_on_without_the_key(self, store: Store, clock: ManualClock) -> None:
        first = put_one(store, key="k", body=b"1")
        delivery = claim_one(store)
        second = _latest(store, b"2", delay_ms=60_000)
        settle(store, delivery, RetryAt(clock() + 1000), fault=fault())
        assert _latest(store, b"3", delay_ms=60_000).id == second.id
        clock.advance("2s")
        delivery = claim_one(store)
        assert (delivery.message.id, delivery.message.body, delivery.message.attempt) == (first, b"1", 2)
        settle(store, delivery, Ack())
        clock.advance("60s")
        assert claim_one(store).message.body == b"3"

    @takes("replaces")
    def test_a_message_that_waits_for_its_retry_begins_anew_and_a_late_worker_is_stale(
        self, store: Store, clock: ManualClock
    ) -> None:
        id = put_one(store, key="k", body=b"1")
        late = claim_one(store)
        store.checkpoint(late.receipt, b"half")
        settle(store, late, RetryAt(clock() + 60_000), fault=fault())
        assert _latest(store, b"2") == PutResult(id, True, "ready", True)
        delivery = claim_one(store)
        message = delivery.message
        assert (message.body, message.attempt, message.faults, message.progress) == (b"2", 1, (), None)
        assert message.fence == late.message.fence + 1
        assert settle(store, late, Ack()) is Settled.STALE
        assert settle(store, delivery, Ack()) is Settled.OK
        assert store.check() == []

    @pytest.mark.parametrize("lane", [Lane.DEAD, Lane.QUARANTINE])
    @takes("replaces")
    def test_a_message_at_rest_stays_as_it_is_and_gives_the_key_up(self, store: Store, lane: Lane) -> None:
        id = bury(store, lane, key="k", body=b"1")
        put = _latest(store, b"2")
        assert not put.duplicate and put.id != id
        assert look(store, id).body == b"1"
        settle(store, claim_one(store), Ack())
        assert not _again(store).duplicate
        settle(store, claim_one(store), Ack())
        assert store.triage([handle(store, id)], Redrive()) == [True]
        assert not _latest(store, b"3").replaced  # a redrive can be undone, so what it made wait stays
        assert {d.message.body for d in claim(store)} == {b"1", b"3"}
        assert store.check() == []

    @takes("replaces")
    def test_a_key_that_outlasts_its_message_is_taken_over(self, store: Store, clock: ManualClock) -> None:
        put_one(store, key="k", key_for_ms=600_000)
        settle(store, claim_one(store), Ack())
        assert not _latest(store, b"2").duplicate
        settle(store, claim_one(store), Ack())
        assert not _again(store).duplicate

    @pytest.mark.parametrize("parts", [{"group": "g"}, {"batch": "b"}, {"queue": "other"}])
    @takes("replaces")
    def test_what_others_follow_is_not_replaced_and_nothing_is_lost(self, store: Store, parts: dict[str, Any]) -> None:
        first = put_one(store, key="k", body=b"1", **parts)
        put = _latest(store, b"2")
        assert put.id != first and not put.duplicate
        assert look(store, first).body == b"1"
        assert _latest(store, b"3") == PutResult(put.id, True, "ready", True)
        bodies = {d.message.body for queue in ("default", "other") for d in claim(store, queue)}
        assert bodies == {b"1", b"3"}
        assert store.check() == []

    @takes("replaces")
    def test_a_redriven_message_with_the_key_is_not_replaced(self, store: Store) -> None:
        id = bury(store, key="k", body=b"1")
        store.triage([handle(store, id)], Redrive())
        assert _latest(store, b"2").id != id
        assert {d.message.body for d in claim(store)} == {b"1", b"2"}

    @takes("takes_over")
    def test_a_key_that_is_unique_while_waiting_lets_one_wait_beside_one_that_runs(self, store: Store) -> None:
        first = put_one(store, key="k", waiting=True)
        assert _waiting(store) == PutResult(first, True, "ready")
        delivery = claim_one(store)
        second = _waiting(store)
        assert not second.duplicate
        assert _waiting(store) == _again(store) == PutResult(second.id, True, "ready")
        settle(store, delivery, RetryAt(0))
        assert _waiting(store).id == second.id
        assert sorted(d.message.id for d in claim(store)) == sorted([first, second.id])
        assert store.check() == []

    @takes("takes_over")
    def test_a_key_that_is_unique_while_waiting_serves_members_of_groups_and_batches(self, store: Store) -> None:
        parts: dict[str, Any] = {"key": "k", "group": "g", "batch": "b", "waiting": True}
        first = put_one(store, **parts)
        assert store.put([draft(**parts)])[0] == PutResult(first, True, "ready")
        delivery = claim_one(store)
        assert store.put([draft(**parts)])[0].id != first
        counts = store.batch_counts(["b"])[0]
        assert (counts.open, counts.duplicate) == (2, 1)
        settle(store, delivery, Ack())
        assert claim_one(store).message.group == "g"
        assert store.check() == []

    @takes("replaces")
    def test_a_cancelled_message_is_not_replaced(self, store: Store) -> None:
        first = put_one(store, key="k", delay_ms=60_000)
        assert [*store.cancel([first])] == [Cancel.CANCELLED]
        assert not _latest(store, b"2").duplicate
        assert claim_one(store).message.body == b"2"

    @takes("replaces", "releases")
    def test_a_request_to_stop_ends_with_the_content_that_it_was_for(self, store: Store) -> None:
        id = put_one(store, key="k", body=b"1")
        claim_one(store)
        assert [*store.cancel([id])] == [Cancel.REQUESTED]
        store.reclaim("w1", [])  # its worker never began it
        assert _latest(store, b"2") == PutResult(id, True, "ready", True)
        message = claim_one(store).message
        assert (message.body, message.cancel) == (b"2", False)

    @takes("replaces", "hastens")
    def test_the_run_that_moved_the_old_content_may_not_take_the_new_back(self, store: Store) -> None:
        id = put_one(store, key="k", delay_ms=60_000)
        assert store.triage([Handle(id, 0, Lane.READY)], Hasten("r")) == [True]
        assert _latest(store, b"2", delay_ms=1000) == PutResult(id, True, "scheduled", True)
        assert look(store, id).run is None

    @takes("replaces")
    def test_a_follow_up_replaces_what_waits(self, store: Store) -> None:
        id = put_one(store, key="k", body=b"1", delay_ms=60_000)
        put_one(store, task="other")
        follow_ups = tuple(draft(key="k", body=b"%d" % n, replace=True) for n in (2, 3))
        assert settle(store, claim_one(store), Ack(), follow_ups=follow_ups) is Settled.OK
        message = claim_one(store).message
        assert (message.id, message.body) == (id, b"3")

    @takes("replaces")
    def test_a_follow_up_of_a_run_waits_with_the_key_of_that_run(self, store: Store) -> None:
        put_one(store, key="k", body=b"1")
        follow_up = draft(key="k", body=b"2", replace=True)
        assert settle(store, claim_one(store), Ack(), follow_ups=(follow_up,)) is Settled.OK
        assert claim_one(store).message.body == b"2"
        assert claim(store) == []

    @takes("replaces")
    def test_a_replaced_message_can_be_cancelled_retried_and_buried(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store, key="k", delay_ms=60_000)
        _latest(store, b"2")
        delivery = claim_one(store)
        settle(store, delivery, RetryAt(clock()), fault=fault())
        assert claim_one(store).message.attempt == 2
        clock.advance("10m")
        assert [(d.message.id, d.message.crashes) for d in claim(store)] == [(id, 1)]
        other = put_one(store, key="l", delay_ms=60_000)
        store.put([draft(key="l", delay_ms=60_000, replace=True)])
        assert [*store.cancel([other])] == [Cancel.CANCELLED]
        assert store.check() == []

    @takes("replaces")
    def test_drafts_that_may_not_replace_are_refused(self, store: Store) -> None:
        for parts in (
            {"replace": True}, {"waiting": True}, {"key": "k", "key_for_ms": 1, "waiting": True},
            {"key": "k", "key_for_ms": 1, "replace": True},
            {"key": "k", "group": "g", "replace": True}, {"key": "k", "batch": "b", "replace": True},
        ):  # fmt: skip
            with pytest.raises(EnqueueError):
                store.put([draft(), draft(**parts)])
        assert claim(store) == []

    @takes("replaces")
    def test_threads_that_replace_and_claim_lose_no_last_draft(self, store: Store) -> None:
        seen: list[bytes] = []

        def produce() -> None:
            for n in range(30):
                _latest(store, b"%d" % n)

        def work() -> None:
            for _ in range(60):
                for delivery in claim(store):
                    seen.append(delivery.message.body)
                    settle(store, delivery, Ack())

        in_threads(produce, work)
        work()
        numbers = [*map(int, seen)]
        assert numbers == sorted(set(numbers)) and numbers[-1] == 29
        assert store.check() == []

    @takes("replaces")
    def test_threads_that_replace_one_key_leave_one_message(self, store: Store) -> None:
        puts: list[PutResult] = []
        works = [lambda n=n: puts.append(_latest(store, b"%d" % n)) for n in range(4)]
        in_threads(*works)
        assert len({put.id for put in puts}) == 1
        assert sorted(put.replaced for put in puts) == [False, True, True, True]
        assert store.counts("default") == Counts(ready=1)


def _latest(store: Store, body: bytes, **parts: Any) -> PutResult:
    """Put a draft that replaces what waits with the key."""
    (done,) = store.put([draft(key="k", body=body, replace=True, **parts)])
    return done


def _waiting(store: Store) -> PutResult:
    (done,) = store.put([replace(draft(key="k"), waiting=True)])
    return done


def _again(store: Store) -> PutResult:
    """Put the same task and key without either option, and return the result."""
    (done,) = store.put([draft(key="k")])
    return done
