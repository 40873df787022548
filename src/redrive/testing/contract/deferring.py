"""Rules for flow control and the crash ledger: deferrals, reported crashes, claims that skip."""

from __future__ import annotations

import pytest

from ...fault import Fault, Kind
from ...message import (
    SKIP_LOOKED,
    Ack,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Decision,
    Deferral,
    Lane,
    Quarantine,
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
    ask,
    bury,
    claim,
    claim_one,
    claimed_ids,
    die,
    draft,
    fault,
    given,
    handle,
    has_history,
    look,
    put,
    put_one,
    seen,
    settle,
)
from .waiting import FAR_MS, returns, waits_out
from .weaker import takes

BROKEN = Deferral("breaker", 'stripe "eu" é', ("ramp 3", "budget"))
LIMITED = Deferral("limit")
KILLED = Fault(kind=Kind.CRASHED, error="ProcessDied", text="killed by SIGKILL; worker host/1", fingerprint="k" * 16)


def defer(at_ms: int, why: Deferral = BROKEN) -> RetryAt:
    return RetryAt(at_ms, why.why, counts=False, held=True, deferral=why)


LEFT_IN: dict[type, Lane] = {RetryAt: Lane.READY, DeadLetter: Lane.DEAD, Quarantine: Lane.QUARANTINE, Ack: Lane.DONE}


class DeferRules(Contract):
    def test_a_deferral_stays_with_the_message_and_a_claim_leaves_it(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        delivery = claim_one(store)
        assert delivery.message.deferral is None
        settle(store, delivery, defer(clock() + 1000))
        if waiting := seen(store, id):
            assert (waiting.deferral, waiting.lane, waiting.attempt, waiting.held_ms) == (BROKEN, Lane.READY, 0, 1000)
            assert store.peek(Lane.READY).messages == [waiting]
        clock.advance("1s")
        again = claim_one(store)
        assert (again.message.deferral, again.message.attempt, again.message.held_ms) == (BROKEN, 1, 1000)
        assert look(store, id) == again.message

    @pytest.mark.parametrize("width", [1, 3])
    @takes("widths")
    def test_what_is_put_off_gives_its_place_in_its_group_up(
        self, store: Store, clock: ManualClock, width: int
    ) -> None:
        """However many of one task an outage holds, another task of the same group gets its turn."""
        store.configure("default", group_width=width)
        held = put(store, *[draft("a", group="g") for _ in range(2 * width)])
        other = put_one(store, task="b", group="g")
        for _ in range(2):
            deliveries = claim(store)
            assert len(deliveries) == width and {d.message.task for d in deliveries} == {"a"}
            puts_off = [Settlement(d.receipt, defer(clock() + 5000)) for d in deliveries]
            assert store.exchange(puts_off, []).settled == [Settled.OK] * width
        delivery = claim_one(store)
        assert delivery.message.id == other
        settle(store, delivery, Ack())
        assert claim(store) == []
        clock.advance("5s")
        claimed = []
        while deliveries := claim(store):
            claimed += [d.message.id for d in deliveries]
            store.exchange([Settlement(d.receipt, Ack()) for d in deliveries], [])
        assert sorted(claimed) == sorted(held)

    def test_the_next_deferral_replaces_it(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        last = None
        for why in (BROKEN, LIMITED, Deferral("ramp", "x" * 1000)):
            delivery = claim_one(store)
            assert delivery.message.deferral == last
            settle(store, delivery, defer(clock(), why))
            last = why
        assert given(store, id).deferral == last

    @pytest.mark.parametrize(
        "decision",
        [
            RetryAt(0),
            RetryAt(0, counts=False, held=True),
            RetryAt(0, crashed=True),
            DeadLetter("permanent"),
            Quarantine("poison"),
            Ack(keep_ms=None),
        ],
        ids=lambda decision: type(decision).__name__,
    )
    @pytest.mark.parametrize("with_fault", [True, False])
    def test_every_other_settlement_clears_it(self, store: Store, decision: Decision, with_fault: bool) -> None:
        id, other = put(store, draft(), draft())
        for delivery in claim(store):
            settle(store, delivery, defer(0))
        mine, others = sorted(claim(store), key=lambda d: d.message.id != id)
        assert settle(store, mine, decision, fault=fault() if with_fault else None) is Settled.OK
        left = seen(store, id, LEFT_IN[type(decision)])
        if left is None and isinstance(decision, RetryAt):
            left = given(store, id)
        assert left is None or left.deferral is None
        settle(store, others, defer(0, LIMITED))
        assert given(store, other).deferral == LIMITED

    @takes("finds", "triages")
    def test_a_cancel_and_a_redrive_leave_none(self, store: Store, clock: ManualClock) -> None:
        waiting, running = put(store, draft(), draft())
        for delivery in claim(store):
            settle(store, delivery, defer(clock() + 1000 * (delivery.message.id == waiting)))
        held = claim_one(store)
        assert store.cancel([waiting, running]) == [Cancel.CANCELLED, Cancel.REQUESTED]
        assert settle(store, held, defer(clock())) is Settled.CANCELLED
        assert [look(store, id).deferral for id in (waiting, running)] == [None, None]
        dead = bury(store)
        store.triage([handle(store, dead)], Redrive())
        assert look(store, dead).deferral is None

    @pytest.mark.parametrize("lost", ["lease", "lapsed", "given back"])
    def test_a_lost_claim_leaves_it(self, store: Store, clock: ManualClock, lost: str) -> None:
        id = put_one(store)
        settle(store, claim_one(store), defer(clock()))
        claim_one(store)
        if lost == "lease":
            clock.advance(LEASE_MS / 1000)
        else:
            die(store, clock, "w1", None if lost == "lapsed" else [])
        assert look(store, id).deferral == BROKEN
        assert claim_one(store).message.deferral == BROKEN

    def test_a_batch_of_every_kind_is_told_apart(self, store: Store, clock: ManualClock) -> None:
        ids = put(store, *[draft(group="g" if n == 0 else None) for n in range(8)])
        decisions: list[Decision] = [
            defer(clock() + 10, BROKEN),
            defer(clock() + 20, LIMITED),
            RetryAt(clock() + 30),
            RetryAt(clock() + 40, crashed=True),
            RetryAt(clock() + 50, crashed=True, deferral=LIMITED),
            DeadLetter("permanent"),
            RetryAt(clock() + 60, counts=False),
            Ack(),
        ]
        why = [None, None, fault("2"), KILLED, KILLED, fault("5"), None, None]
        held = {d.message.id: d.receipt for d in claim(store)}
        settlements = [
            Settlement(held[id], decision, fault=one) for id, decision, one in zip(ids, decisions, why, strict=True)
        ]
        assert store.exchange(settlements, []).settled == [Settled.OK] * 8
        if store.traits.finds:
            visible = [n for n in range(7) if n != 5 or store.traits.triages]
            messages = [look(store, ids[n]) for n in visible]
            dues = [10, 20, 30, 40, 50, None, 60]
            assert [m.due_ms and m.due_ms - clock() for m in messages] == [dues[n] for n in visible]
            assert [m.attempt for m in messages] == [[0, 0, 1, 0, 0, 1, 0][n] for n in visible]
        clock.advance("1s")
        again = {d.message.id: d.message for d in claim(store)}
        dead = seen(store, ids[5], Lane.DEAD)
        messages = [again[id] for id in ids if id in again] + ([dead] if dead else [])
        of = (0, 1, 2, 3, 4, 6, 5)[: len(messages)]
        assert [m.id for m in messages] == [ids[n] for n in of]
        deferrals, alone = (BROKEN, LIMITED, None, None, LIMITED, None, None), (0, 0, 0, 1, 1, 0, 0)
        assert [(m.deferral, m.crashes_alone) for m in messages] == [(deferrals[n], alone[n]) for n in of]
        assert [m.attempt for m in messages] == [2 if n == 2 else 1 for n in of]
        if store.traits.counts_crashes:
            assert [m.crashes for m in messages] == [m.crashes_alone for m in messages]
        for n, message in zip(of, messages, strict=True):
            assert has_history(store, message, *[one for one in (why[n],) if one is not None])


class CrashRules(Contract):
    def test_a_crash_that_is_told_counts_as_one_alone_and_gives_the_attempt_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        id = put_one(store)
        for crashes in (1, 2, 3):
            delivery = claim_one(store)
            assert (delivery.message.attempt, delivery.message.suspect) == (1, crashes > 1)
            word = settle(store, delivery, RetryAt(clock() + 500, "crashed", crashed=True), fault=KILLED)
            assert word is Settled.OK
            if message := seen(store, id):
                assert (message.lane, message.due_ms) == (Lane.READY, clock() + 500)
                assert (message.attempt, message.suspect, message.crashes_alone) == (0, True, crashes)
                assert message.faults == (KILLED,) * crashes
                if store.traits.counts_crashes:
                    assert message.crashes == crashes
            clock.advance("1s")
        message = claim_one(store).message
        assert (message.attempt, message.suspect, message.crashes_alone) == (1, True, 3)
        assert has_history(store, message, *(KILLED,) * 3)

    def test_the_attempt_is_given_back_once_whatever_counts_says(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        settle(store, claim_one(store), RetryAt(clock()))
        settle(store, claim_one(store), RetryAt(clock(), counts=False, crashed=True, held=True))
        if message := seen(store, id):
            assert (message.attempt, message.crashes_alone, message.faults) == (1, 1, ())
        message = claim_one(store).message
        assert (message.attempt, message.crashes_alone, message.faults) == (2, 1, ())

    def test_a_crash_in_company_counts_as_no_crash_alone(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        for crashes in (1, 2):
            delivery = claim_one(store)
            assert settle(store, delivery, RetryAt(clock(), crashed=True, in_company=True), fault=KILLED) is Settled.OK
            if message := seen(store, id):
                assert (message.attempt, message.suspect, message.crashes_alone) == (0, True, 0)
                if store.traits.counts_crashes:
                    assert message.crashes == crashes
        settle(store, claim_one(store), Quarantine("poison", crashed=True, in_company=True), fault=KILLED)
        if message := seen(store, id, Lane.QUARANTINE):
            assert (message.attempt, message.crashes_alone, message.faults) == (0, 0, (KILLED,) * 3)
            if store.traits.counts_crashes:
                assert message.crashes == 3

    @pytest.mark.parametrize("counts", [True, False])
    def test_the_crash_that_convicts_is_counted_too(self, store: Store, clock: ManualClock, counts: bool) -> None:
        id = put_one(store)
        settle(store, claim_one(store), RetryAt(clock(), crashed=True), fault=KILLED)
        word = settle(store, claim_one(store), Quarantine("poison", counts=counts, crashed=True), fault=KILLED)
        assert word is Settled.OK
        if message := seen(store, id, Lane.QUARANTINE):
            assert (message.lane, message.reason, message.attempt) == (Lane.QUARANTINE, "crashed", 0)
            assert (message.crashes_alone, message.faults) == (2, (KILLED,) * 2)
            if store.traits.counts_crashes:
                assert message.crashes == 2

    def test_it_adds_to_the_leases_that_ran_out(self, store: Store, clock: ManualClock) -> None:
        put_one(store)
        claim_one(store)
        clock.advance(LEASE_MS / 1000)
        delivery = claim_one(store)
        store.extend([delivery.receipt], lease_ms=LEASE_MS, alone=True)
        settle(store, delivery, RetryAt(clock(), crashed=True))
        message = claim_one(store).message
        assert (message.crashes_alone, message.suspect) == (1, True)
        if store.traits.counts_crashes:
            assert (message.crashes, message.attempt) == (2, 1)
        clock.advance(LEASE_MS / 1000)
        assert claim_one(store).message.crashes_alone == 1  # the message ran in company that time

    @takes("finds")
    def test_what_was_cancelled_is_not_run_again(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        delivery = claim_one(store)
        store.cancel([id])
        assert settle(store, delivery, RetryAt(clock(), crashed=True), fault=KILLED) is Settled.CANCELLED
        message = look(store, id)
        assert (message.lane, message.reason, message.faults) == (Lane.DONE, "cancelled", (KILLED,))

    @takes("releases")
    def test_what_lapses_keeps_how_its_worker_died(self, store: Store) -> None:
        started, waiting, other = put(store, draft(), draft(), draft())
        claim(store, limit=2, worker="dead")
        claim(store, worker="alive")
        assert store.reclaim("dead", [Started(started, 1)], fault=KILLED) == (1, 1)
        assert [look(store, id).faults for id in (started, waiting, other)] == [(KILLED,), (), ()]
        assert store.reclaim("dead", None, fault=KILLED) == (0, 0)
        again = {d.message.id: d.message for d in claim(store, worker="dead")}
        assert again[started].faults == (KILLED,)
        assert store.reclaim("dead", None, fault=KILLED) == (0, 2)
        assert [len(look(store, id).faults) for id in (started, waiting)] == [2, 1]

    @takes("releases")
    def test_it_joins_the_history_of_which_both_ends_are_kept(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        for n in range(21):
            settle(store, claim_one(store), RetryAt(clock()), fault=fault(str(n)))
        claim_one(store, worker="dead")
        store.reclaim("dead", None, fault=KILLED)
        texts = [*map(str, range(10)), *map(str, range(12, 21)), KILLED.text]
        assert [one.text for one in look(store, id).faults] == texts
        assert [one.text for one in claim_one(store).message.faults] == texts

    def test_without_a_fault_the_history_stays(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        settle(store, claim_one(store), RetryAt(clock()), fault=fault())
        claim_one(store, worker="dead")
        die(store, clock, "dead", None)
        assert has_history(store, look(store, id), fault())
        assert has_history(store, claim_one(store).message, fault())


class SkipRules(Contract):
    """A claim with `skip` reads SKIP_LOOKED due messages of each priority."""

    def _fill(self, store: Store, count: int, **parts: object) -> None:
        most = store.traits.batch_max
        for begin in range(0, count, most):
            put(store, *[draft("a", **parts)] * min(most, count - begin))

    def _exchange(self, store: Store, *asks: ClaimRequest) -> tuple[list[str], frozenset[str]]:
        done = store.exchange([], asks)
        return [d.message.id for d in done.deliveries], done.clogged

    @takes("skips")
    def test_what_lies_within_reach_is_found_and_nothing_is_clogged(self, store: Store, clock: ManualClock) -> None:
        self._fill(store, SKIP_LOOKED - 10)
        behind = put_one(store, task="b")
        put_one(store, task="b", delay_ms=60_000)
        assert returns(lambda: store.wait([ask(skip=["a"])], timeout_ms=FAR_MS))
        assert self._exchange(store, ask(skip=["a"])) == ([behind], frozenset())
        assert self._exchange(store, ask(skip=["a"])) == ([], frozenset())
        assert waits_out(store, ask(skip=["a"]))

    @takes("skips")
    def test_what_lies_beyond_is_told_as_clogged_and_found_without_skip(self, store: Store, clock: ManualClock) -> None:
        self._fill(store, SKIP_LOOKED + 5, due_ms=clock() - 10)
        behind = put_one(store, task="b", due_ms=clock() - 5)
        low = put_one(store, task="c", priority=3)
        elsewhere = put_one(store, task="b", queue="other")
        assert returns(
            lambda: store.wait([ask(skip=["a", "c"])], timeout_ms=FAR_MS)
        )  # the claim may find messages of tasks that are not skipped
        clogged = frozenset({"default"})
        asks = (ask(skip=["a"], limit=2), ask("other", skip=["a"]))
        assert self._exchange(store, *asks) == ([low, elsewhere], clogged)
        assert self._exchange(store, *asks) == ([], clogged)
        assert self._exchange(store, ask(skip=["nothing"], limit=1))[1] == frozenset()  # the claim reached its limit
        assert self._exchange(store, ask(limit=1))[1] == frozenset()
        assert self._exchange(store, ask(skip=["a"], limit=0)) == ([], frozenset())
        store.configure("default", paused=True)
        assert self._exchange(store, ask(skip=["a"])) == ([], frozenset())
        store.configure("default", paused=False)
        taken = claimed_ids(store, limit=SKIP_LOOKED + 10)
        while more := claimed_ids(store, limit=SKIP_LOOKED + 10):  # a store may return fewer messages than requested
            taken += more
        assert behind in taken

    @takes("skips")
    def test_each_priority_is_looked_at_so_far(self, store: Store) -> None:
        for priority in (0, 2):
            self._fill(store, SKIP_LOOKED // 2 + 5, priority=priority)
        low = put_one(store, task="b", priority=3)
        assert self._exchange(store, ask(skip=["a"])) == ([low], frozenset())

    @takes("skips")
    def test_a_wait_sleeps_until_what_lies_beyond_is_due(self, store: Store, clock: ManualClock) -> None:
        self._fill(store, SKIP_LOOKED - 10)
        self._fill(store, 20, due_ms=clock() + 60_000)
        put_one(store, task="b", due_ms=clock() + 90_000)
        assert waits_out(store, ask(skip=["a"]))
        clock.advance("60001ms")
        assert returns(lambda: store.wait([ask(skip=["a"])], timeout_ms=FAR_MS))
        assert self._exchange(store, ask(skip=["a"])) == ([], frozenset({"default"}))

    @takes("skips", "widths")
    def test_a_skipped_message_keeps_its_place_in_its_group(self, store: Store) -> None:
        head, next = put(store, draft("a", group="g"), draft("b", group="g"))
        assert self._exchange(store, ask(skip=["a"])) == ([], frozenset())
        assert claimed_ids(store) == [head]
        assert look(store, next).parked
