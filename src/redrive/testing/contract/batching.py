"""Batches: members are counted by what became of them, in the commit that moves them, and each exactly once."""

from __future__ import annotations

import threading

import pytest

from ...errors import Conflict
from ...message import (
    RESTING,
    Ack,
    BatchCounts,
    BatchMark,
    Cancel,
    DeadLetter,
    Discard,
    Exchange,
    Filter,
    Handle,
    Isolate,
    Keep,
    Lane,
    Quarantine,
    Readmit,
    Redrive,
    Replace,
    RetryAt,
    Return,
    Settled,
    Settlement,
    Swap,
)
from ...store import Store
from ..clock import ManualClock
from .base import (
    LEASE_MS,
    Contract,
    OpenStore,
    another,
    ask,
    bury,
    claim,
    claim_one,
    draft,
    fault,
    fresh_id,
    handle,
    in_threads,
    look,
    put,
    put_one,
    seen,
    settle,
)
from .keeping import SWEEP_S
from .weaker import takes

ENDS: dict[str, Ack | DeadLetter | Quarantine] = {
    "dead": DeadLetter("permanent"),
    "quarantine": Quarantine(),
    "done": Ack(),
}


def counts(store: Store, batch: str = "b") -> BatchCounts:
    return store.batch_counts([batch])[0]


def said(store: Store, batch: str = "b") -> dict[str, int]:
    """Return the counts of the batch that are not 0, without `opened` and `died`; check that nothing else differs."""
    seen = counts(store, batch)
    assert store.check() == []
    fields = ("open", "done", "dead", "quarantine", "cancelled", "discarded", "duplicate")
    assert seen.total == sum(getattr(seen, field) for field in fields)
    return {field: n for field in fields if (n := getattr(seen, field))}


def partner(store: Store, open_store: OpenStore) -> Store:
    """Return another handle on the same data; the same handle if the store is for one."""
    return (another(store, open_store) or store) if store.traits.shared else store


def settle_all(store: Store, *decisions: Ack | DeadLetter | Quarantine | RetryAt) -> Exchange:
    """Claim as many messages as there are decisions, and settle them in one exchange."""
    deliveries = claim(store, limit=len(decisions))
    assert len(deliveries) == len(decisions)
    whys = [None if isinstance(decision, Ack) else fault() for decision in decisions]
    settlements = [Settlement(d.receipt, how, why) for d, how, why in zip(deliveries, decisions, whys, strict=True)]
    done = store.exchange(settlements, [])
    assert set(done.settled) <= {Settled.OK}
    return done


class BatchRules(Contract):
    """A batch is known by its members: the store counts them, and says which batches changed."""

    @takes("batches")
    def test_members_are_counted_as_they_are_put(self, store: Store) -> None:
        assert counts(store) == BatchCounts()
        put(store, draft(batch="b"), draft(batch="b", delay_ms=1000), draft(batch="c"), draft())
        assert said(store) == {"open": 2} and said(store, "c") == {"open": 1}
        assert counts(store) == BatchCounts(open=2, opened=2)
        assert store.batch_counts(["c", "b", "none"]) == [counts(store, "c"), counts(store), BatchCounts()]

    @takes("batches")
    def test_a_message_knows_its_batch(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store, batch="b", headers={"h": "1"})
        waiting = seen(store, id)
        assert waiting is None or waiting.batch == "b"
        delivery = claim_one(store)
        assert delivery.message.batch == "b"
        settle(store, delivery, RetryAt(clock() + 10), fault=fault())
        clock.advance("1s")
        assert claim_one(store).message.batch == "b" and said(store) == {"open": 1}

    @takes("batches")
    def test_a_message_in_a_group_is_counted_too(self, store: Store) -> None:
        put(store, *[draft(batch="b", group="g") for _ in range(3)])
        for left in (2, 1, 0):
            done = settle_all(store, Ack())
            assert counts(store).open == left and done.batches == (("b",) if left == 0 else ())
        assert said(store) == {"done": 3}

    @takes("batches", "unique")
    def test_a_draft_whose_key_is_held_is_a_duplicate(self, store: Store) -> None:
        put(store, draft(key="k"))
        put(store, draft(key="k", batch="b"), draft(key="l", batch="b"), draft(key="l", batch="b"))
        assert said(store) == {"open": 1, "duplicate": 2}

    @takes("batches", "cells")
    def test_a_put_that_fails_counts_nothing(self, store: Store) -> None:
        with pytest.raises(Conflict):
            store.put([draft(batch="b")], swaps=[Swap("cell", 7, b"x")])
        assert counts(store) == BatchCounts()

    @takes("batches")
    @pytest.mark.parametrize("end", ENDS)
    def test_an_end_is_counted_in_its_commit_and_the_exchange_names_the_batch(self, store: Store, end: str) -> None:
        put(store, *[draft(batch="b") for _ in range(3)], draft(batch="c"), draft())
        done = settle_all(store, ENDS[end])
        assert said(store) == {"open": 2, end: 1}
        assert done.batches == (() if end == "done" else ("b",))
        assert settle_all(store, Ack()).batches == ()  # one is open still, and nothing more died
        done = settle_all(store, Ack(), Ack(), Ack())
        assert done.batches == ("b", "c")
        assert said(store) == ({"done": 3} if end == "done" else {"done": 2, end: 1})
        assert counts(store).died == (end != "done")

    @takes("batches", "keeps_done")
    def test_a_kept_member_is_done_once(self, store: Store, clock: ManualClock) -> None:
        put(store, draft(batch="b"), draft(batch="b"))
        settle_all(store, Ack(keep_ms=1000), Ack(keep_ms=None))
        assert said(store) == {"done": 2}
        clock.advance(SWEEP_S)
        store.exchange([], [])
        store.retain("default", done=Keep(count=0))
        assert store.peek(Lane.DONE).messages == [] and said(store) == {"done": 2}

    @takes("batches", "fenced")
    def test_what_a_stale_receipt_settles_is_not_counted(self, store: Store, clock: ManualClock) -> None:
        put_one(store, batch="b")
        delivery = claim_one(store)
        clock.advance(LEASE_MS / 1000 + 1)
        again = claim_one(store)
        for decision in ENDS.values():
            assert settle(store, delivery, decision, fault=fault()) is Settled.STALE
        assert said(store) == {"open": 1} and counts(store).opened == 1
        done = store.exchange([Settlement(again.receipt, Ack()), Settlement(again.receipt, Ack())], [])
        assert done.settled == [Settled.OK, Settled.STALE] and said(store) == {"done": 1}
        assert done.batches == ("b",)

    @takes("batches")
    def test_a_follow_up_joins_with_the_ack_that_brings_it(self, store: Store) -> None:
        put_one(store, batch="b")
        delivery = claim_one(store)
        joined = tuple(draft(batch="b") for _ in range(3))
        done = store.exchange([Settlement(delivery.receipt, Ack(), follow_ups=(*joined, draft(batch="c")))], [])
        assert done.batches == () and said(store) == {"open": 3, "done": 1} and said(store, "c") == {"open": 1}

    @takes("batches", "cells")
    def test_what_a_settlement_swaps_is_counted_like_any_other(self, store: Store) -> None:
        put(store, draft(batch="b"), draft(batch="b"))
        one, other = claim(store)
        swaps = (Swap("cell", 0, b"x"),)
        settlements = [Settlement(d.receipt, Ack(), swaps=swaps) for d in (one, other)]
        assert sorted(store.exchange(settlements, []).settled) == [Settled.OK, Settled.STALE]
        assert said(store) == {"open": 1, "done": 1}

    @takes("batches", "cancels")
    def test_a_cancelled_member_is_counted_whether_it_waits_or_runs(self, store: Store) -> None:
        runs, acked = put(store, draft(batch="b"), draft(batch="b"))
        delivery, other = claim(store)
        put_one(store, batch="b")
        assert store.cancel([runs, acked]) == [Cancel.REQUESTED, Cancel.REQUESTED]
        assert said(store) == {"open": 3}
        done = store.exchange([Settlement(delivery.receipt, RetryAt(0), fault()), Settlement(other.receipt, Ack())], [])
        assert done.settled == [Settled.CANCELLED, Settled.OK]
        assert said(store) == {"open": 1, "cancelled": 1, "done": 1}

    @takes("batches", "cancels")
    def test_a_waiting_member_is_cancelled(self, store: Store) -> None:
        first_ms = 0 if store.traits.finds else 4000  # by records, what is due may be running
        ids = put(store, draft(batch="b", delay_ms=first_ms), draft(batch="b", delay_ms=5000))
        assert store.cancel([*ids, ids[0]]) == [Cancel.CANCELLED] * 3
        assert said(store) == {"cancelled": 2} and store.changed_batches() == ["b"]

    @takes("batches", "triages")
    @pytest.mark.parametrize("lane", RESTING)
    def test_a_redriven_member_is_open_again(self, store: Store, lane: Lane) -> None:
        id = bury(store, lane, batch="b", why=fault())
        assert said(store) == {lane.value: 1} and counts(store).died == 1
        assert store.triage([handle(store, id)], Redrive()) == [True]
        assert said(store) == {"open": 1} and counts(store).opened == 2
        assert settle_all(store, Ack()).batches == ("b",) and said(store) == {"done": 1}

    @takes("batches", "triages")
    def test_a_verdict_whose_handle_does_not_hold_counts_nothing(self, store: Store) -> None:
        id = bury(store, batch="b")
        old = handle(store, id)
        assert store.triage([old, old], Redrive()) == [True, False]
        for verdict in (Redrive(), Discard("no"), Isolate("no")):
            assert store.triage([old], verdict) == [False]
        assert said(store) == {"open": 1} and counts(store).opened == 2

    @takes("batches", "triages")
    def test_each_verdict_moves_its_count(self, store: Store) -> None:
        one, two, three = [bury(store, batch="b", why=fault()) for _ in range(3)]
        store.triage([handle(store, one)], Isolate("odd"))
        assert said(store) == {"dead": 2, "quarantine": 1}
        store.triage([handle(store, one)], Readmit("fine"))
        assert said(store) == {"dead": 3}
        store.triage([handle(store, two)], Redrive(run="r", delay_ms=60_000))
        assert said(store) == {"dead": 2, "open": 1}
        assert store.triage([Handle(two, 1, Lane.READY)], Return("r")) == [True]
        assert said(store) == {"dead": 3}
        store.triage([handle(store, two)], Discard("gone"))
        store.triage([handle(store, three)], Discard("paid by hand", waive=True))
        assert said(store) == {"dead": 1, "discarded": 1, "done": 1}
        assert counts(store).opened == counts(store).died == 4  # as nothing is open, cancelled, or done but by a waiver

    @takes("batches", "triages")
    def test_an_edited_member_stays_a_member(self, store: Store) -> None:
        id = bury(store, batch="b")
        store.triage([handle(store, id)], Replace(draft(batch="b", id=fresh_id(store)), "mended"))
        assert said(store) == {"open": 1}
        settle_all(store, Ack())
        assert said(store) == {"done": 1}

    @takes("batches", "triages", "keeps_done")
    def test_a_done_member_that_runs_again_leaves_the_batch(self, store: Store) -> None:
        id = put_one(store, batch="b")
        settle_all(store, Ack(keep_ms=None))
        assert store.triage([handle(store, id)], Redrive()) == [True]
        assert said(store) == {"done": 1} and look(store, id).batch is None
        settle_all(store, Ack(keep_ms=None))
        assert store.triage([handle(store, id)], Redrive()) == [True]
        assert said(store) == {"done": 1} and look(store, id).batch is None
        settle_all(store, DeadLetter("permanent"))
        assert said(store) == {"done": 1}

    @takes("batches", "triages")
    def test_retention_of_dead_members_discards_them(self, store: Store) -> None:
        for _ in range(3):
            bury(store, batch="b")
        assert store.retain("default", dead=Keep(count=1))[1] == 2
        assert said(store) == {"dead": 1, "discarded": 2}

    @takes("batches", "triages")
    def test_an_import_is_a_dead_member_again(self, store: Store) -> None:
        id = bury(store, batch="b", why=fault())
        message = look(store, id)
        store.triage([handle(store, id)], Discard("moved"))
        assert store.restore([message, message]) == [True, False]
        assert said(store) == {"dead": 1, "discarded": 1} and look(store, id).batch == "b"

    @takes("batches", "triages")
    def test_dead_members_are_listed_by_batch(self, store: Store) -> None:
        ids = [bury(store, batch=batch) for batch in ("b", "c", "b")]
        found = store.peek(Lane.DEAD, where=Filter(batch="b")).messages
        assert sorted(message.id for message in found) == sorted([ids[0], ids[2]])
        assert len(store.peek(Lane.DEAD, where=Filter(batch=("b", "c"))).messages) == 3
        for tasks, n in ((("other", "push"), 2), (("other",), 0)):
            assert len(store.peek(Lane.DEAD, where=Filter(task=tasks, batch=("b", "b/part"))).messages) == n
        assert sum(group.count for group in store.failure_groups(where=Filter(batch="c"))) == 1

    @takes("batches", "finds")
    def test_waiting_members_are_listed_by_batch(self, store: Store) -> None:
        ids = put(store, draft(batch="b"), draft(), draft(batch="b", delay_ms=1000))
        found = store.peek(Lane.READY, where=Filter(batch="b")).messages
        assert sorted(message.id for message in found) == sorted([ids[0], ids[2]])

    @takes("batches", "releases")
    def test_a_run_that_is_cut_off_stays_open(self, store: Store, clock: ManualClock) -> None:
        put(store, draft(batch="b"), draft(batch="b"))
        claim(store, limit=1)
        claim(store, limit=1, worker="w2")
        store.reclaim("w1", None, fault=fault())
        store.reclaim("w2", [])
        clock.advance(LEASE_MS / 1000 + 1)
        assert said(store) == {"open": 2} and counts(store).opened == 2
        settle_all(store, Ack(), Ack())
        assert said(store) == {"done": 2}

    @takes("batches")
    def test_changed_batches_are_those_with_news(self, store: Store) -> None:
        put(store, draft(batch="a"), draft(batch="b"), draft(batch="b"), draft(batch="c"), draft(batch="c"))
        assert store.changed_batches() == []  # all have open members, and nothing died
        settle_all(store, Ack(), Ack(), Ack(), DeadLetter("permanent"), Ack())
        assert store.changed_batches() == ["a", "b", "c"]
        assert store.changed_batches(after="a", limit=1) == ["b"]
        store.mark_batches([BatchMark("a", counts(store, "a")), BatchMark("b", BatchCounts(done=1))])
        assert store.changed_batches() == ["b", "c"]  # the mark of "b" had other counts
        store.mark_batches([BatchMark(id, counts(store, id)) for id in ("b", "c")])
        assert store.changed_batches() == []
        put_one(store, batch="a")
        assert store.changed_batches() == []
        settle_all(store, Ack())
        assert store.changed_batches() == ["a"]

    @takes("batches", "triages")
    def test_failed_batches_are_those_with_a_dead_or_quarantined_member(self, store: Store) -> None:
        assert store.batch_ids(failed=True) == []
        dead = [bury(store, lane, batch=batch) for batch, lane in zip("abcd", RESTING * 2, strict=True)]
        more = bury(store, batch="a")
        put(store, *[draft(batch=batch) for batch in "abcdef"])
        bury(store)  # a member of none
        assert store.batch_ids(failed=True) == ["a", "b", "c", "d"]
        assert store.batch_ids(failed=True, after="a", limit=2) == ["b", "c"]
        store.mark_batches([BatchMark("b", counts(store, "b"))])  # failed still, though nothing changed
        store.triage([handle(store, id) for id in dead[:1]], Redrive())
        store.triage([handle(store, id) for id in dead[2:]], Discard("no"))
        assert store.batch_ids(failed=True) == ["a", "b"]
        store.triage([handle(store, more)], Discard("no"))
        assert store.batch_ids(failed=True) == ["b"] and store.batch_ids() == [*"abcdef"]

    @takes("batches")
    def test_counts_are_kept_for_as_long_as_a_mark_says(self, store: Store, clock: ManualClock) -> None:
        put(store, draft(batch="a"), draft(batch="b"))
        settle_all(store, Ack(), Ack())
        store.mark_batches([BatchMark(id, counts(store, id), keep_ms=3_600_000) for id in ("a", "b")])
        put(store, draft(batch="b"), draft(batch="c"))  # "b" changes, and is kept
        settle_all(store, Ack(), Ack())
        store.mark_batches([BatchMark("c", counts(store, "c"), keep_ms) for keep_ms in (1000, None)])  # the last counts
        clock.advance("1h")
        clock.advance(SWEEP_S)
        store.exchange([], [])
        clock.advance(SWEEP_S)
        store.exchange([], [])
        assert counts(store, "a") == BatchCounts()
        assert said(store, "b") == {"done": 2} and said(store, "c") == {"done": 1}

    @takes("batches", "keeps_done")
    def test_a_done_member_that_leaves_does_not_bring_a_forgotten_batch_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        put(store, draft(batch="b"), draft(batch="b"))
        settle_all(store, Ack(keep_ms=86_400_000), Ack(keep_ms=None))
        store.mark_batches([BatchMark("b", counts(store), keep_ms=1000)])
        for span in (SWEEP_S, SWEEP_S):
            clock.advance(span)
            store.exchange([], [])
        assert store.batch_ids() == [] and len(store.peek(Lane.DONE).messages) == 2
        store.retain("default", done=Keep(count=1))
        clock.advance("1d")
        for span in (SWEEP_S, SWEEP_S):
            clock.advance(span)
            store.exchange([], [])
        store.retain("default", done=Keep(count=0))
        assert store.peek(Lane.DONE).messages == []
        assert store.batch_ids() == store.changed_batches() == [] and store.check() == []

    @takes("batches")
    def test_one_of_two_last_acks_at_once_names_the_batch(self, store: Store, open_store: OpenStore) -> None:
        """Whatever the other does meanwhile: each of many batches of two is named by one exchange at least."""
        rounds = 40
        put(store, *[draft(batch=f"b{n:02}", queue=queue) for n in range(rounds) for queue in ("x", "y")])
        stores = {"x": store, "y": partner(store, open_store)}
        deliveries = {queue: claim(handle, queue, rounds) for queue, handle in stores.items()}
        named, lock = set[str](), threading.Lock()
        barrier = threading.Barrier(2)

        def ack(queue: str) -> None:
            for delivery in sorted(deliveries[queue], key=lambda d: d.message.batch or ""):
                barrier.wait(20)
                done = stores[queue].exchange([Settlement(delivery.receipt, Ack())], [])
                with lock:
                    named.update(done.batches)

        in_threads(lambda: ack("x"), lambda: ack("y"))
        assert named == {f"b{n:02}" for n in range(rounds)}

    @takes("batches")
    def test_many_handles_count_exactly(self, store: Store, open_store: OpenStore) -> None:
        stores = [store, partner(store, open_store)]
        put(store, *[draft(batch="b", queue=queue) for _ in range(60) for queue in ("x", "y")])

        def work(number: int) -> None:
            queue = "xy"[number]
            for n in range(20):
                one, two, three = claim(stores[number], queue, 3)
                more = (draft(batch="b", queue="z"),)
                stores[number].exchange(
                    [
                        Settlement(one.receipt, Ack(), follow_ups=more if n % 2 else ()),
                        Settlement(two.receipt, DeadLetter("permanent")),
                        Settlement(three.receipt, Ack()),
                    ],
                    [ask("none")],
                )

        in_threads(lambda: work(0), lambda: work(1))
        assert said(store) == {"open": 20, "done": 80, "dead": 40} and counts(store).died == 40
