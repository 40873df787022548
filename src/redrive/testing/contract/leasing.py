"""Rules of leases: lost ones come back as crashes, receipts fence, and dead workers' messages are taken back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ...message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Lane,
    LeaseStatus,
    Receipt,
    Redrive,
    RetryAt,
    Settled,
    Settlement,
    Started,
)
from ...store import Store
from ..clock import ManualClock
from .base import (
    LEASE_MS,
    Contract,
    OpenStore,
    bury,
    claim,
    claim_one,
    claimed_ids,
    draft,
    fault,
    given,
    handle,
    lanes,
    look,
    put,
    put_one,
    settle,
)
from .weaker import no_fence, takes


class LeaseRules(Contract):
    @takes("fenced")
    def test_the_receipt_of_a_gone_message_does_not_fit_one_that_took_its_id(
        self, store: Store, clock: ManualClock
    ) -> None:
        for group in (None, "g"):
            id = put_one(store, group=group)
            gone = claim_one(store)
            for _ in range(2):
                assert settle(store, gone, Ack()) is Settled.OK
                put_one(store, id=id, group=group, body=b"2")
                late, gone = gone, claim_one(store)
                assert (gone.message.id, gone.message.fence, gone.receipt.fence) == (id, 1, 1)
                for decision in (Ack(), Ack(keep_ms=1000), RetryAt(clock()), RetryAt(clock(), counts=False)):
                    assert settle(store, late, decision) is Settled.STALE
                assert settle(store, late, RetryAt(clock()), fault=fault()) is Settled.STALE
                assert store.extend([late.receipt], lease_ms=1) == [LeaseStatus.LOST]
                assert not store.checkpoint(late.receipt, b"x")
            settle(store, gone, RetryAt(clock()), fault=fault())
            again = claim_one(store)
            assert settle(store, late, Ack()) is Settled.STALE and look(store, id) == again.message
            assert settle(store, again, Ack()) is Settled.OK

    @takes("releases")
    @pytest.mark.parametrize("more", [{}, {"skip": frozenset({"x"})}, {"retries": 3}, {"retries": 3, "skip": {"x"}}])
    def test_a_claim_leaves_leases_to_their_holders_that_ran_out_later_than_it_says(
        self, store: Store, clock: ManualClock, more: dict[str, Any]
    ) -> None:
        earlier, _ = put_one(store), claim_one(store)
        clock.advance(1)
        later, held = put_one(store), claim_one(store)
        clock.advance(LEASE_MS / 1000)
        new = put_one(store)
        one = ClaimRequest("default", 10, LEASE_MS, worker="w2", lapsed_by_ms=held.until_ms - 1, **more)
        assert sorted(d.message.id for d in store.exchange([], [one]).deliveries) == sorted([earlier, new])
        assert store.extend([held.receipt], lease_ms=LEASE_MS) == [LeaseStatus.HELD]
        clock.advance(LEASE_MS / 1000)
        all_of_them = replace(one, lapsed_by_ms=clock())
        claimed = store.exchange([], [all_of_them]).deliveries
        assert sorted(d.message.id for d in claimed) == sorted([earlier, later, new])

    def test_a_lost_lease_is_claimed_again_and_counted_as_a_crash(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        claim_one(store)
        for lost in (1, 2, 3):
            clock.advance(LEASE_MS / 1000)
            message = claim_one(store, worker=f"w{lost}").message
            assert message.fence == lost + 1
            if store.traits.counts_crashes:
                assert (message.attempt, message.crashes) == (1, lost)
            else:
                assert message.crashes == 0
            assert look(store, id) == message

    def test_a_crash_makes_a_suspect_and_one_alone_is_counted_so(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        assert not claim_one(store).message.suspect
        for alone in (False, True, True):
            clock.advance(LEASE_MS / 1000 + 1)
            delivery = claim_one(store)
            if alone:
                store.extend([delivery.receipt], lease_ms=LEASE_MS, alone=True)
                store.extend([delivery.receipt], lease_ms=LEASE_MS)  # an extension does not undo the cancel
        clock.advance(LEASE_MS / 1000 + 1)
        message = claim_one(store).message
        if store.traits.counts_crashes:
            assert (message.suspect, message.crashes) == (True, 4)
            assert message.crashes_alone == (2 if store.traits.cells else 0)  # without cells not recorded
        assert look(store, id).suspect == message.suspect

    @takes("releases")
    def test_what_is_given_back_runs_alone_no_more(self, store: Store, clock: ManualClock) -> None:
        put_one(store)
        store.extend([claim_one(store).receipt], lease_ms=LEASE_MS, alone=True)
        store.reclaim("w1", [])
        claim_one(store)
        clock.advance(LEASE_MS / 1000 + 1)
        message = claim_one(store).message
        assert message.crashes_alone == 0
        if store.traits.counts_crashes:
            assert (message.crashes, message.suspect) == (1, True)

    @pytest.mark.parametrize("counts", [True, False])
    def test_a_counted_run_clears_the_suspicion(self, store: Store, clock: ManualClock, counts: bool) -> None:
        put_one(store)
        claim_one(store)
        clock.advance(LEASE_MS / 1000 + 1)
        settle(store, claim_one(store), RetryAt(clock(), counts=counts))
        if store.traits.counts_crashes:
            assert claim_one(store).message.suspect is not counts

    def test_a_retry_after_a_crash_counts_on(self, store: Store, clock: ManualClock) -> None:
        put_one(store)
        claim_one(store)
        clock.advance(LEASE_MS / 1000)
        settle(store, claim_one(store), RetryAt(clock()))
        message = claim_one(store).message
        assert message.fence == 3
        if store.traits.counts_crashes:
            assert (message.attempt, message.crashes) == (2, 1)

    def test_an_extended_lease_ends_later(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        delivery = claim_one(store, lease_ms=1000)
        clock.advance("900ms")
        assert store.extend([delivery.receipt], lease_ms=5000) == [LeaseStatus.HELD]
        assert look(store, id).due_ms == clock() + 5000
        clock.advance("4999ms")
        assert claim(store) == []
        clock.advance("1ms")
        assert claimed_ids(store) == [id]

    def test_a_lease_that_ran_out_can_be_extended_until_somebody_claims(self, store: Store, clock: ManualClock) -> None:
        put_one(store)
        late = claim_one(store)
        clock.advance(2 * LEASE_MS / 1000)
        words = store.extend([late.receipt], lease_ms=1000)
        if store.traits.fenced:
            assert words == [LeaseStatus.HELD] and claim(store) == []
        else:  # the release may have been too late
            assert len(claim(store)) <= 1 and claim(store) == []

    def test_extend_answers_each_receipt(self, store: Store, clock: ManualClock) -> None:
        put(store, draft(), draft(), draft())
        done, lost, held = claim(store)
        settle(store, done, Ack())
        store.extend([held.receipt], lease_ms=10 * LEASE_MS)
        clock.advance(LEASE_MS / 1000)
        again = claim_one(store)
        receipts = [lost.receipt, held.receipt, done.receipt, again.receipt]
        expected = [LeaseStatus.LOST, LeaseStatus.HELD, LeaseStatus.LOST, LeaseStatus.HELD]
        if store.traits.fenced:
            assert store.extend(receipts, lease_ms=LEASE_MS) == expected
            assert store.extend(receipts[::-1], lease_ms=LEASE_MS) == expected[::-1]
        assert store.extend([], lease_ms=LEASE_MS) == []

    def test_a_stale_receipt_extends_nothing(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        lost = claim_one(store)
        clock.advance(LEASE_MS / 1000)
        again = claim_one(store)
        words = store.extend([lost.receipt], lease_ms=50 * LEASE_MS)
        assert words == [LeaseStatus.LOST] or (not store.traits.fenced and words == [LeaseStatus.HELD])
        if store.traits.fenced:
            assert look(store, id).due_ms == again.until_ms

    def test_a_stale_receipt_is_refused(self, store: Store, clock: ManualClock, open_store: OpenStore) -> None:
        other = open_store() if store.traits.shared else store
        put_one(store)
        late = claim_one(other, worker="late")
        clock.advance(LEASE_MS / 1000)
        current = claim_one(store, worker="current")
        if not store.traits.fenced:  # such a store cannot know what another process claimed
            assert settle(other, late, Ack()) is Settled.OK
            assert settle(store, current, Ack()) is Settled.OK
            assert claim(store) == claim(other) == []
            return
        assert settle(other, late, Ack()) is Settled.STALE
        assert settle(other, late, RetryAt(clock())) is Settled.STALE
        assert not other.checkpoint(late.receipt, b"late")
        assert look(store, current.message.id) == current.message
        assert settle(store, current, Ack()) is Settled.OK

    def test_a_late_settlement_is_taken_if_nobody_claimed_meanwhile(self, store: Store, clock: ManualClock) -> None:
        id, other = put(store, draft(), draft())
        late, later = claim(store)
        clock.advance(100 * LEASE_MS / 1000)
        assert settle(store, late, Ack()) is Settled.OK
        assert store.find([id]) == [None]
        assert settle(store, later, RetryAt(clock())) is Settled.OK
        left = given(store, other)
        assert (left.crashes, left.attempt) == (0, 1 if store.traits.finds else 2)

    def test_a_receipt_counts_once(self, store: Store) -> None:
        put(store, draft(), draft(), draft())
        a, b, c = claim(store)
        if not store.traits.fenced:
            return no_fence(store)
        assert settle(store, a, Ack()) is Settled.OK
        assert settle(store, a, Ack()) is Settled.STALE
        twice = [Settlement(b.receipt, Ack()), Settlement(b.receipt, Ack()), Settlement(c.receipt, Ack())]
        assert store.exchange(twice, []).settled == [Settled.OK, Settled.STALE, Settled.OK]

    def test_old_and_new_receipt_of_one_message_may_come_in_one_call(self, store: Store, clock: ManualClock) -> None:
        if not store.traits.fenced:
            return no_fence(store)
        put(store, draft(), draft())
        old = claim(store)
        clock.advance(LEASE_MS / 1000)
        new = claim(store)
        receipts = [new[0].receipt, old[0].receipt, old[1].receipt, new[1].receipt]
        assert store.extend(receipts, lease_ms=LEASE_MS) == [
            LeaseStatus.HELD,
            LeaseStatus.LOST,
            LeaseStatus.LOST,
            LeaseStatus.HELD,
        ]
        settled = store.exchange([Settlement(receipt, Ack()) for receipt in receipts], []).settled
        assert settled == [Settled.OK, Settled.STALE, Settled.STALE, Settled.OK]
        assert lanes(store, *[d.message.id for d in new]) == [None, None]

    def test_the_receipt_of_a_gone_message_never_fits_another(self, store: Store) -> None:
        if not store.traits.fenced:
            return no_fence(store)
        put_one(store)
        gone = claim_one(store)
        settle(store, gone, Ack())
        ids = put(store, draft(), draft())
        claim(store)
        assert settle(store, gone, Ack()) is Settled.STALE
        assert store.extend([gone.receipt], lease_ms=1) == [LeaseStatus.LOST]
        assert not store.checkpoint(gone.receipt, b"x")
        assert [look(store, id).lane for id in ids] == [Lane.LEASED] * 2

    def test_a_receipt_from_nowhere_is_stale(self, store: Store) -> None:
        if not store.traits.fenced:
            return no_fence(store)
        put_one(store)
        good = claim_one(store)
        for receipt in (Receipt('it\'s "not" ours', 1), Receipt(10**9, 1), Receipt(good.receipt.handle, 99)):
            assert store.exchange([Settlement(receipt, Ack())], []).settled == [Settled.STALE]
            assert store.extend([receipt], lease_ms=1) == [LeaseStatus.LOST]
            assert not store.checkpoint(receipt, b"x")
        assert look(store, good.message.id) == good.message

    @takes("triages")
    def test_a_redriven_message_keeps_fencing(self, store: Store) -> None:
        id = bury(store)
        store.triage([handle(store, id)], Redrive())
        message = claim_one(store).message
        assert (message.fence, message.attempt) == (2, 1)

    @takes("cells")
    def test_a_checkpoint_stays_with_the_message(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        delivery = claim_one(store)
        assert delivery.message.progress is None
        for state in (b"\x00\xff page 1", b"", b"page 2"):
            assert store.checkpoint(delivery.receipt, state)
            assert look(store, id).progress == state
        settle(store, delivery, RetryAt(clock()))
        assert claim_one(store).message.progress == b"page 2"
        clock.advance(LEASE_MS / 1000)  # the lease expires, which counts as a crash
        assert claim_one(store).message.progress == b"page 2"

    @takes("cells", "triages")
    def test_a_checkpoint_outlives_death_and_redrive(self, store: Store) -> None:
        id = put_one(store)
        delivery = claim_one(store)
        store.checkpoint(delivery.receipt, b"half")
        settle(store, delivery, DeadLetter("permanent"))
        assert look(store, id).progress == b"half"
        store.triage([handle(store, id)], Redrive())
        assert claim_one(store).message.progress == b"half"

    @takes("releases")
    def test_release_gives_unstarted_messages_back_free(self, store: Store) -> None:
        started, waiting, other = put(store, draft(), draft(), draft())
        taken = claim(store, limit=2, worker="dead")
        claim(store, worker="alive")
        assert store.reclaim("dead", [Started(started, 1), Started("no such id", 1)]) == (1, 1)
        back = look(store, waiting)
        assert (back.lane, back.attempt, back.crashes, back.fence) == (Lane.READY, 0, 0, 1)
        assert look(store, other).lane is Lane.LEASED
        if store.traits.fenced:
            assert settle(store, taken[1], Ack()) is Settled.STALE
        again = {d.message.id: d.message for d in claim(store)}
        assert set(again) == {started, waiting}
        assert (again[waiting].attempt, again[waiting].crashes) == (1, 0)
        if store.traits.counts_crashes:
            assert (again[started].attempt, again[started].crashes) == (1, 1)

    @takes("releases")
    def test_release_without_knowledge_counts_all_as_started(self, store: Store) -> None:
        ids = put(store, draft(), draft())
        claim(store, worker="dead")
        assert store.reclaim("dead", None) == (0, 2)
        assert claimed_ids(store) == ids
        if store.traits.counts_crashes:
            assert [look(store, id).crashes for id in ids] == [1, 1]

    @takes("releases")
    def test_released_messages_go_before_what_was_enqueued_after_them(self, store: Store, clock: ManualClock) -> None:
        lapsing, unstarted = put_one(store), put_one(store)
        assert len(claimed_ids(store, worker="dead")) == 2
        clock.advance("1s")
        later = put_one(store)
        clock.advance("1s")
        assert store.reclaim("dead", [Started(lapsing, 1)]) == (1, 1)
        claimed = claimed_ids(store, worker="next")
        assert set(claimed[:2]) == {lapsing, unstarted}
        assert claimed[2:] == [later]

    @takes("releases")
    def test_what_lapsed_stays_lapsed_when_its_worker_is_released_again(self, store: Store) -> None:
        started = put_one(store)
        claim_one(store, worker="dead")
        assert store.reclaim("dead", [Started(started, 1)]) == (0, 1)
        assert store.reclaim("dead", []) == (0, 0)
        message = claim_one(store, worker="dead").message
        assert message.attempt == 1
        if store.traits.counts_crashes:
            assert message.crashes == 1

    @takes("releases")
    def test_what_was_started_by_an_earlier_claim_is_unstarted_now(self, store: Store) -> None:
        id = put_one(store)
        settle(store, claim_one(store, worker="dead"), RetryAt(store.now_ms()))
        assert claim_one(store, worker="dead").message.fence == 2
        assert store.reclaim("dead", [Started(id, 1)]) == (1, 0)
        message = claim_one(store).message
        assert (message.attempt, message.crashes) == (2, 0)

    @takes("releases")
    def test_release_of_an_unknown_worker_does_nothing(self, store: Store) -> None:
        ids = put(store, draft(), draft())
        claim(store, limit=1)
        assert store.reclaim("unknown", None) == (0, 0)
        assert store.reclaim("unknown", []) == (0, 0)
        assert lanes(store, *ids) == [Lane.LEASED, Lane.READY]
