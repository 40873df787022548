"""Rules of triage: verdicts on resting messages, and cancelling in every state."""

from __future__ import annotations

from typing import Any

import pytest

from ...message import (
    Ack,
    Cancel,
    DeadLetter,
    Decision,
    Discard,
    Handle,
    Isolate,
    Lane,
    LeaseStatus,
    Quarantine,
    Redrive,
    RetryAt,
    Settled,
    Verdict,
)
from ...store import Store
from ..clock import ManualClock
from .base import (
    LEASE_MS,
    Contract,
    bury,
    claim,
    claim_one,
    claimed_ids,
    draft,
    fault,
    fresh_id,
    handle,
    look,
    put,
    put_one,
    seen,
    settle,
)
from .weaker import takes

VERDICTS: list[Verdict] = [Redrive(), Discard("no"), Isolate("no")]


class TriageRules(Contract):
    @pytest.mark.parametrize("lane", [Lane.DEAD, Lane.QUARANTINE])
    @takes("triages")
    def test_a_redriven_message_has_a_fresh_life(self, store: Store, clock: ManualClock, lane: Lane) -> None:
        enqueued_ms = clock()
        parts: dict[str, Any] = {"body": b"1", "priority": 1, "correlation_id": "c", "deadline_ms": clock() + 10}
        id = put_one(store, **parts)
        claim_one(store)
        clock.advance(LEASE_MS / 1000)  # the lease expires, which counts as a crash
        settle(store, claim_one(store), RetryAt(clock() + 2000, held=True), fault=fault("first"))
        clock.advance("2s")
        decision: Decision = DeadLetter("exhausted") if lane is Lane.DEAD else Quarantine()
        settle(store, claim_one(store), decision, fault=fault("second"))
        clock.advance("1h")

        assert store.triage([handle(store, id)], Redrive(attempts=3, run="run-1")) == [True]
        if message := seen(store, id):
            assert (message.lane, message.due_ms, message.attempt) == (Lane.READY, clock(), 0)
        message = claim_one(store).message
        assert (message.queue, message.redrives, message.attempts_allowed, message.run) == ("default", 1, 3, "run-1")
        assert (message.attempt, message.crashes, message.crashes_alone, message.suspect) == (1, 0, 0, False)
        assert (message.life_ms, message.held_ms, message.deadline_ms) == (clock(), 0, None)
        assert (message.reason, message.rested_ms) == (None, None)
        # The redriven message keeps its first enqueue, its history and its content.
        assert (message.enqueued_ms, message.correlation_id, message.body, message.priority) == (
            enqueued_ms,
            "c",
            b"1",
            1,
        )
        assert [f.text for f in message.faults] == ["first", "second"]
        assert message.fence == 4

    @takes("triages")
    def test_a_redrive_can_wait_go_elsewhere_and_keep_the_deadline(self, store: Store, clock: ManualClock) -> None:
        deadline_ms = clock() + 60_000
        id = bury(store, deadline_ms=deadline_ms)
        verdict = Redrive(to_queue="slow", delay_ms=5000, keep_deadline=True)
        assert store.triage([handle(store, id)], verdict) == [True]
        message = look(store, id)
        assert (message.queue, message.deadline_ms, message.attempts_allowed) == ("slow", deadline_ms, None)
        assert message.due_ms in (clock() + 5000, clock() + 5001)
        clock.advance("5001ms")
        assert claim(store) == []
        assert claimed_ids(store, "slow") == [id]

    @takes("triages")
    def test_the_senders_trace_and_that_of_each_run_outlive_retries_death_and_redrive(
        self, store: Store, clock: ManualClock
    ) -> None:
        sender, *runs = (f"00-{n:032x}-{n:016x}-01" for n in range(1, 4))
        id = put_one(store, traceparent=sender)
        settle(store, claim_one(store), RetryAt(clock() + 2000), fault=fault(traceparent=runs[0]))
        clock.advance("2s")
        settle(store, claim_one(store), DeadLetter("exhausted"), fault=fault(traceparent=runs[1]))
        assert store.triage([handle(store, id)], Redrive()) == [True]
        message = claim_one(store).message
        assert (message.redrives, message.traceparent) == (1, sender)
        assert [f.traceparent for f in message.faults] == runs

    @takes("triages")
    def test_redrives_are_counted(self, store: Store) -> None:
        id = bury(store)
        for n in (1, 2, 3):
            assert store.triage([handle(store, id)], Redrive(attempts=n)) == [True]
            delivery = claim_one(store)
            assert (delivery.message.redrives, delivery.message.attempts_allowed) == (n, n)
            settle(store, delivery, DeadLetter("permanent"))

    @takes("triages")
    def test_a_discarded_message_is_gone(self, store: Store) -> None:
        dead, poison, other = bury(store), bury(store, Lane.QUARANTINE), bury(store)
        assert store.triage([handle(store, dead), handle(store, poison)], Discard("not wanted")) == [True, True]
        assert store.find([dead, poison]) == [None, None]
        assert look(store, other).lane is Lane.DEAD

    @takes("triages")
    def test_an_isolated_message_lies_in_quarantine(self, store: Store, clock: ManualClock) -> None:
        id = bury(store, why=fault())
        clock.advance("1h")
        assert store.triage([handle(store, id)], Isolate("poison")) == [True]
        message = look(store, id)
        assert (message.lane, message.reason, message.rested_ms) == (Lane.QUARANTINE, "poison", clock())
        assert (message.attempt, message.redrives, message.faults) == (1, 0, (fault(),))

    @pytest.mark.parametrize("verdict", VERDICTS)
    @takes("triages")
    def test_a_handle_of_what_changed_since_is_refused(self, store: Store, verdict: Verdict) -> None:
        redriven, isolated, discarded, died_again = (bury(store) for _ in range(4))
        seen = [handle(store, id) for id in (redriven, isolated, discarded, died_again)]
        store.triage([handle(store, died_again)], Redrive())
        settle(store, claim_one(store), DeadLetter("permanent"))
        store.triage([handle(store, redriven)], Redrive())
        store.triage([handle(store, isolated)], Isolate("poison"))
        store.triage([handle(store, discarded)], Discard("no"))
        before = store.find([redriven, isolated, discarded, died_again])
        assert store.triage(seen, verdict) == [False] * 4
        assert store.find([redriven, isolated, discarded, died_again]) == before

    @pytest.mark.parametrize("verdict", VERDICTS)
    @takes("triages")
    def test_only_resting_messages_are_judged(self, store: Store, verdict: Verdict) -> None:
        leased, cancelled, ready, later = put(store, draft(), draft(), draft(), draft(delay_ms=9000))
        claim(store, limit=1)
        if store.traits.finds:
            store.cancel([cancelled])
        ids = [leased, cancelled, ready, later]
        before = store.find(ids)
        handles = [
            Handle(id, 0, message.lane if message else Lane.READY) for id, message in zip(ids, before, strict=True)
        ]
        handles += [Handle(id, 0, Lane.DEAD) for id in ids]
        assert store.triage([*handles, Handle(fresh_id(store), 0, Lane.DEAD)], verdict) == [False] * 9
        assert store.find(ids) == before

    @takes("triages")
    def test_a_batch_is_judged_one_by_one_in_order(self, store: Store) -> None:
        a, b = bury(store), bury(store)
        handles = [handle(store, a), Handle(b, 7, Lane.DEAD), handle(store, b), handle(store, a)]
        assert store.triage(handles, Redrive()) == [True, False, True, False]
        assert store.triage([], Redrive()) == []
        assert [d.message.redrives for d in claim(store)] == [1, 1]

    @takes("finds")
    def test_a_waiting_message_is_cancelled_at_once(self, store: Store, clock: ManualClock) -> None:
        ready, later, retrying = put(store, draft(), draft(delay_ms=9000), draft(priority=0))
        settle(store, claim_one(store, limit=1), RetryAt(clock() + 5000))
        ids = [ready, later, retrying]
        assert store.cancel(ids) == [Cancel.CANCELLED] * 3
        for id in ids:
            message = look(store, id)
            assert (message.lane, message.state_at(clock()), message.due_ms) == (Lane.DONE, "cancelled", None)
            assert (message.reason, message.rested_ms) == ("cancelled", clock())
        clock.advance("1h")
        assert claim(store) == []
        assert store.cancel(ids) == [Cancel.TOO_LATE] * 3

    @takes("finds")
    def test_a_running_message_is_asked_to_stop(self, store: Store) -> None:
        put_one(store)
        delivery = claim_one(store)
        assert store.cancel([delivery.message.id]) == [Cancel.REQUESTED]
        assert store.cancel([delivery.message.id]) == [Cancel.REQUESTED]
        assert look(store, delivery.message.id).cancel
        assert look(store, delivery.message.id).lane is Lane.LEASED
        assert store.extend([delivery.receipt], lease_ms=LEASE_MS) == [LeaseStatus.CANCEL]

    @takes("finds")
    def test_a_message_that_finished_though_cancelled_is_done(self, store: Store) -> None:
        put(store, draft(), draft())
        first, second = claim(store)
        store.cancel([first.message.id, second.message.id])
        assert settle(store, first, Ack()) is Settled.OK
        assert settle(store, second, Ack(), follow_ups=(draft("next"),)) is Settled.OK
        assert store.find([first.message.id, second.message.id]) == [None, None]
        assert [d.message.task for d in claim(store)] == ["next"]

    @pytest.mark.parametrize("kind", ["retry", "snooze", "dead", "quarantine"])
    @takes("finds")
    def test_a_cancelled_message_is_never_retried_and_never_dead(
        self, store: Store, clock: ManualClock, kind: str
    ) -> None:
        decisions: dict[str, Decision] = {
            "retry": RetryAt(clock() + 1000),
            "snooze": RetryAt(clock(), counts=False),
            "dead": DeadLetter("permanent"),
            "quarantine": Quarantine(),
        }
        id = put_one(store)
        delivery = claim_one(store)
        store.cancel([id])
        assert settle(store, delivery, decisions[kind], fault=fault()) is Settled.CANCELLED
        message = look(store, id)
        assert (message.lane, message.reason, message.state_at(clock())) == (Lane.DONE, "cancelled", "cancelled")
        assert (message.due_ms, message.rested_ms, message.faults) == (None, clock(), (fault(),))
        clock.advance("1h")
        assert claim(store) == []

    @takes("finds")
    def test_a_cancel_outlives_a_lost_lease(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        claim_one(store)
        store.cancel([id])
        clock.advance(LEASE_MS / 1000)
        again = claim_one(store)
        assert again.message.cancel
        assert settle(store, again, RetryAt(clock(), counts=False)) is Settled.CANCELLED
        assert look(store, id).reason == "cancelled"

    @takes("keeps_done", "triages")
    def test_a_cancel_that_came_too_late_is_none_of_the_next_life(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        delivery = claim_one(store)
        assert store.cancel([id]) == [Cancel.REQUESTED]
        assert settle(store, delivery, Ack(keep_ms=None)) is Settled.OK
        assert store.triage([handle(store, id)], Redrive()) == [True]
        again = claim_one(store)
        assert not again.message.cancel
        assert settle(store, again, RetryAt(clock() + 1000)) is Settled.OK

    @takes("finds", "triages")
    def test_resting_and_unknown_messages_cannot_be_cancelled(self, store: Store) -> None:
        dead, poison, ready = bury(store), bury(store, Lane.QUARANTINE), put_one(store)
        acked = put_one(store, priority=0)
        settle(store, claim_one(store, limit=1), Ack())
        unknown = fresh_id(store)
        assert store.cancel([unknown, dead, ready, poison, acked]) == [
            Cancel.UNKNOWN,
            Cancel.TOO_LATE,
            Cancel.CANCELLED,
            Cancel.TOO_LATE,
            Cancel.UNKNOWN,
        ]
        assert [look(store, id).lane for id in (dead, poison)] == [Lane.DEAD, Lane.QUARANTINE]
        assert store.cancel([]) == []

    @takes("finds")
    def test_a_cancelled_message_can_be_looked_up_for_a_day(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        store.cancel([id])
        clock.advance("24h")
        store.exchange([], [])
        assert look(store, id).state_at(clock()) == "cancelled"
        clock.advance("2m")
        store.exchange([], [])
        assert store.find([id]) == [None]

    @takes("triages")
    def test_resting_messages_stay_for_ever(self, store: Store, clock: ManualClock) -> None:
        dead, poison = bury(store), bury(store, Lane.QUARANTINE)
        for _ in range(3):
            clock.advance("365d")
            store.exchange([], [])
        assert [look(store, id).lane for id in (dead, poison)] == [Lane.DEAD, Lane.QUARANTINE]
