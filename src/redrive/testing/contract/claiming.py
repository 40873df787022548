"""Rules of claiming: the order of due times, limits, priorities, skipping, pauses, and no message for two workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from ...message import Ack, DeadLetter, Delivery, GroupOrder, Lane, Redrive, RetryAt, Settlement
from ...store import Store
from ..clock import ManualClock
from .base import (
    LEASE_MS,
    Contract,
    OpenStore,
    ask,
    claim,
    claim_one,
    claimed_ids,
    draft,
    handle,
    in_threads,
    look,
    ordered,
    put,
    put_one,
    seen,
    settle,
)
from .weaker import takes


class ClaimRules(Contract):
    def test_a_claim_says_what_it_gives(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store, body=b"1")
        delivery = claim_one(store, lease_ms=5000, worker="w7")
        message = delivery.message
        assert (message.id, message.body, message.lane, message.worker) == (id, b"1", Lane.LEASED, "w7")
        assert (message.fence, message.attempt, message.crashes) == (1, 1, 0)
        assert delivery.until_ms == message.due_ms == clock() + 5000
        assert delivery.receipt.fence == 1
        assert look(store, id) == message

    def test_delayed_retrying_and_leased_messages_come_due_in_one_order(self, store: Store, clock: ManualClock) -> None:
        delayed = put_one(store, delay_ms=2000)
        retrying, leased = put(store, draft(), draft())
        first, second = claim(store, lease_ms=3000)
        assert [first.message.id, second.message.id] == [retrying, leased]
        settle(store, first, RetryAt(clock() + 1000))
        assert claim(store) == []
        clock.advance("10s")
        assert claimed_ids(store) == [retrying, delayed, leased]

    @pytest.mark.parametrize("wait", ["delay", "due", "retry", "lease"])
    def test_nothing_is_claimed_before_its_time(self, store: Store, clock: ManualClock, wait: str) -> None:
        parts = {"delay": {"delay_ms": 1000}, "due": {"due_ms": clock() + 1000}}.get(wait, {})
        id = put_one(store, **parts)
        if wait == "retry":
            settle(store, claim_one(store), RetryAt(clock() + 1000))
        if wait == "lease":
            claim_one(store, lease_ms=1000)
        message = seen(store, id, Lane.LEASED if wait == "lease" else Lane.READY)
        due_ms = message.due_ms if message else clock() + 1000
        assert due_ms is not None
        clock.advance((due_ms - clock() - 1) / 1000)
        assert claim(store) == []
        clock.advance("1ms" if message else f"{1 + store.traits.tick_ms}ms")
        assert claimed_ids(store) == [id]

    @pytest.mark.parametrize("wait", ["none", "delay", "due", "retry", "lease"])
    def test_a_claim_says_when_its_message_was_due(self, store: Store, clock: ManualClock, wait: str) -> None:
        parts = {"delay": {"delay_ms": 5000}, "due": {"due_ms": clock() + 5000}}.get(wait, {})
        began_ms = clock()
        put_one(store, **parts)
        if wait == "retry":
            settle(store, claim_one(store), RetryAt(clock() + 5000))
        if wait == "lease":
            claim_one(store, lease_ms=5000)
        clock.advance("60s")
        due_ms = claim_one(store).due_ms
        if wait != "none" and not store.traits.finds:  # how long the service held it back may be unknown
            assert began_ms <= due_ms <= clock()
        else:
            assert due_ms in (began_ms, began_ms + 1) if wait == "none" else 0 <= due_ms - began_ms - 5000 <= 1000

    @pytest.mark.parametrize("limit", [0, 1, 3, 7, 8])
    def test_a_claim_never_goes_above_its_limit(self, store: Store, limit: int) -> None:
        ids = put(store, *[draft(priority=n % 4) for n in range(8)])
        assert len(claim(store, limit=limit)) == limit
        assert len(claim(store, limit=100)) == len(ids) - limit

    def test_asks_are_served_in_their_order(self, store: Store) -> None:
        a = put(store, *[draft(queue="a") for _ in range(3)])
        b = put(store, *[draft(queue="b") for _ in range(3)])
        asks = [ask("b", 2, worker="w2"), ask("a", 1), ask("none", 5), ask("b", 2), ask("a", 0)]
        deliveries = store.exchange([], asks).deliveries
        if store.traits.priorities:
            assert [d.message.id for d in deliveries] == [b[0], b[1], a[0], b[2]]
        assert [d.message.queue for d in deliveries] == ["b", "b", "a", "b"]
        assert {d.message.id for d in deliveries} <= {*a, *b} and len({d.message.id for d in deliveries}) == 4
        assert [d.message.worker for d in deliveries] == ["w2", "w2", "w1", "w1"]

    def test_an_ask_that_stands_twice_is_served_twice(self, store: Store) -> None:
        ids = put(store, *[draft()] * 5)
        twice = ask(limit=2)
        given = [d.message.id for d in store.exchange([], [twice, twice]).deliveries]
        assert given == ids[:4] or not store.traits.priorities
        assert len(given) == len({*given} & {*ids}) == 4

    def test_asks_differ_in_their_leases(self, store: Store, clock: ManualClock) -> None:
        put(store, draft(), draft())
        short, long = store.exchange([], [ask(limit=1, lease_ms=1000), ask(limit=1, lease_ms=9000)]).deliveries
        if store.traits.priorities:
            assert (short.until_ms, long.until_ms) == (clock() + 1000, clock() + 9000)
            clock.advance("2s")
            assert claimed_ids(store) == [short.message.id]
        else:  # claims in any order may get the longest lease that was requested
            assert clock() + 1000 <= short.until_ms <= long.until_ms == clock() + 9000

    def test_priority_comes_first_then_due_time_then_the_order_of_putting(
        self, store: Store, clock: ManualClock
    ) -> None:
        now = clock()
        drafts = [draft(priority=p, due_ms=now - age) for p in (3, 1, 0, 2) for age in (0, 500, 100, 500)]
        ids = put(store, *drafts)
        order = sorted(range(16), key=lambda n: (drafts[n].priority, drafts[n].due_ms or 0, n))
        given = [*claimed_ids(store, limit=6), *claimed_ids(store, limit=100)]
        assert ordered(store, given) == [ids[n] for n in order]

    def test_what_is_not_due_does_not_hold_up_lower_priorities(self, store: Store) -> None:
        put_one(store, priority=0, delay_ms=60_000)
        low = put_one(store, priority=3)
        assert claimed_ids(store) == [low]

    def test_puts_in_one_millisecond_keep_their_order(self, store: Store) -> None:
        ids = [id for n in range(5) for id in put(store, *[draft() for _ in range(n + 1)])]
        assert ordered(store, [id for _ in range(5) for id in claimed_ids(store, limit=3)]) == ids

    @takes("skips")
    def test_skipped_tasks_are_left(self, store: Store) -> None:
        skipped = put(store, *[draft("a") for _ in range(5)])
        b, c, d = put(store, draft("b"), draft("c"), draft('it\'s "d"'))
        assert claimed_ids(store, limit=2, skip=["a", "c", "nothing"]) == [b, d]
        assert claimed_ids(store, skip=["a", 'it\'s "d"']) == [c]
        assert claimed_ids(store) == skipped
        assert [look(store, id).attempt for id in skipped] == [1] * 5

    @takes("cells")
    def test_a_paused_queue_is_not_claimed_from(self, store: Store) -> None:
        slow, quick = put(store, draft(queue="slow"), draft(queue="quick"))
        store.configure("slow", paused=True)
        assert store.paused() == {"slow"}
        later = put_one(store, queue="slow")
        asks = [ask("slow"), ask("quick")]
        assert [d.message.id for d in store.exchange([], asks).deliveries] == [quick]
        store.configure("slow")  # a change of nothing
        assert claim(store, "slow") == []
        store.configure("slow", paused=False)
        assert store.paused() == frozenset()
        assert claimed_ids(store, "slow") == [slow, later]

    @takes("cells")
    def test_a_pause_leaves_leases_alone(self, store: Store, clock: ManualClock) -> None:
        put(store, draft(), draft())
        held, lost = claim(store)
        store.configure("default", paused=True)
        assert settle(store, held, Ack()) == "ok"
        clock.advance(LEASE_MS / 1000)
        assert claim(store) == []
        store.configure("default", paused=False)
        assert claimed_ids(store) == [lost.message.id]

    def test_queues_lists_those_with_messages_or_settings(self, store: Store) -> None:
        assert store.queues() == [] or not store.traits.exact_counts
        put(store, draft(queue="b"), draft(queue="a"), draft(queue="c", delay_ms=1000))
        if store.traits.cells:
            store.configure("z", paused=False)
        claim(store, "a")
        if store.traits.exact_counts:
            assert store.queues() == ["a", "b", "c", "z"]
        else:
            assert {"a", "b", "c"} <= {*store.queues()} and store.queues() == sorted(store.queues())

    def test_concurrent_claims_never_give_one_message_twice(self, store: Store, open_store: OpenStore) -> None:
        other = open_store() if store.traits.shared else store
        ids = put(store, *[draft() for _ in range(240)])
        taken: list[str] = []
        in_threads(*[_drain(handle, taken) for handle in (store, store, other, other)])
        assert len(taken) == len(ids)
        assert set(taken) == set(ids)
        assert store.find(ids) == [None] * len(ids)


def _drain(store: Store, taken: list[str]) -> Callable[[], None]:
    def drain() -> None:
        deliveries = claim(store, limit=7)
        while deliveries:
            taken.extend(d.message.id for d in deliveries)
            deliveries = store.exchange([Settlement(d.receipt, Ack()) for d in deliveries], [ask(limit=7)]).deliveries

    return drain


class ShareRules(Contract):
    """`ClaimRequest.retries`: due retries get their places beside a backlog that came due before them."""

    @takes("priorities")
    def test_retries_that_are_due_go_first_as_far_as_they_are_asked_for(self, store: Store, clock: ManualClock) -> None:
        retried = _retrying(store, clock, 3)
        backlog = put(store, *[draft(due_ms=clock() - 60_000) for _ in range(10)])
        assert _ids(_claim(store, 5, 2)) == [*retried[:2], *backlog[:3]]
        assert _ids(_claim(store, 3, 0)) == backlog[3:6]
        assert _ids(_claim(store, 100, 2)) == [retried[2], *backlog[6:]]

    @takes("priorities")
    def test_where_none_is_due_the_backlog_has_all_places(self, store: Store, clock: ManualClock) -> None:
        retried = _retrying(store, clock, 2)
        for delivery in _claim(store, 2, 0):
            settle(store, delivery, RetryAt(clock() + 5000))
        backlog = put(store, *[draft(due_ms=clock() - 60_000) for _ in range(4)])
        assert _ids(_claim(store, 3, 3)) == backlog[:3]
        clock.advance("5s")
        assert _ids(_claim(store, 3, 3)) == [*retried, backlog[3]]

    @takes("priorities")
    def test_they_are_never_given_twice_nor_beyond_the_limit(self, store: Store, clock: ManualClock) -> None:
        retried = _retrying(store, clock, 4)
        backlog = put(store, *[draft(due_ms=clock() - 60_000) for _ in range(2)])
        assert _ids(_claim(store, 3, 7)) == retried[:3]
        assert _ids(_claim(store, 9, 1)) == [retried[3], *backlog]
        assert _claim(store, 9, 9) == []

    @takes("priorities")
    def test_priorities_stand_above_them(self, store: Store, clock: ManualClock) -> None:
        [late] = _retrying(store, clock, 1, priority=3)
        urgent = put(store, *[draft(priority=1, due_ms=clock() - 60_000) for _ in range(3)])
        other = put_one(store, priority=3, due_ms=clock() - 60_000)
        assert _ids(_claim(store, 3, 1)) == urgent
        assert _ids(_claim(store, 1, 1)) == [late]
        assert _ids(_claim(store, 1, 1)) == [other]

    @takes("priorities", "skips")
    def test_of_them_too_tasks_are_skipped(self, store: Store, clock: ManualClock) -> None:
        held = _retrying(store, clock, 2, task="held")
        [free] = _retrying(store, clock, 1, skip=["held"])
        backlog = put(store, *[draft(due_ms=clock() - 60_000) for _ in range(2)])
        assert _ids(_claim(store, 2, 2, skip=["held"])) == [free, backlog[0]]
        assert _ids(_claim(store, 9, 9)) == [*held, backlog[1]]

    @takes("priorities", "finds", "cancels")
    def test_what_was_cancelled_or_left_its_place_otherwise_is_not_given(
        self, store: Store, clock: ManualClock
    ) -> None:
        gone, left = _retrying(store, clock, 2)
        store.cancel([gone])
        backlog = put_one(store, due_ms=clock() - 60_000)
        assert _ids(_claim(store, 9, 9)) == [left, backlog]

    @takes("priorities", "triages")
    def test_a_redriven_message_begins_a_life_in_which_it_has_not_failed(
        self, store: Store, clock: ManualClock
    ) -> None:
        retried = _retrying(store, clock, 1)
        (delivery,) = _claim(store, 1, 0)
        settle(store, delivery, DeadLetter("exhausted"))
        assert store.triage([handle(store, retried[0])], Redrive()) == [True]
        backlog = put_one(store, due_ms=clock() - 60_000)
        assert _ids(_claim(store, 1, 1)) == [backlog]

    @takes("priorities", "widths")
    def test_a_group_in_strict_order_keeps_it(self, store: Store, clock: ManualClock) -> None:
        store.configure("default", group_order=GroupOrder.STRICT, group_width=1)
        head, second = put(store, draft(group="a"), draft(group="a"))
        (delivery,) = _claim(store, 9, 0)
        settle(store, delivery, RetryAt(clock() + 1000))
        backlog = put(store, *[draft(due_ms=clock() - 60_000) for _ in range(3)])
        clock.advance("1s")
        assert _ids(_claim(store, 2, 1)) == [head, backlog[0]]
        assert second not in _ids(_claim(store, 9, 9))

    @takes("priorities", "widths")
    def test_no_group_gets_more_than_its_width_by_them(self, store: Store, clock: ManualClock) -> None:
        ids = put(store, *[draft(group=name) for name in "aaab"])
        for delivery in _claim(store, 9, 0):
            settle(store, delivery, RetryAt(clock() + 1000))
        clock.advance("1s")
        assert len(_claim(store, 9, 9)) == 2
        assert store.check() == []
        assert len(ids) == 4


def _claim(store: Store, limit: int, retries: int, skip: Sequence[str] = ()) -> list[Delivery]:
    return store.exchange([], [replace(ask(limit=limit, skip=skip), retries=retries)]).deliveries


def _ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.id for delivery in deliveries]


def _retrying(store: Store, clock: ManualClock, count: int, *, skip: Sequence[str] = (), **parts: Any) -> list[str]:
    """Return the ids of `count` messages that failed once and are due now, in the order of their claim."""
    put(store, *[draft(**parts) for _ in range(count)])
    deliveries = claim(store, limit=count, skip=skip)
    for at, delivery in enumerate(deliveries):
        settle(store, delivery, RetryAt(clock() + 1000 + at))
    clock.advance((1000 + count) / 1000)
    return [delivery.message.id for delivery in deliveries]
