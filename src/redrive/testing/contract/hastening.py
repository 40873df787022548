"""Rules for messages that are made due before their time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ...errors import Conflict
from ...ids import new_id
from ...message import Ack, GroupOrder, Handle, Hasten, Lane, Postpone, Redrive, RetryAt, Settled, Swap
from ...store import Store
from ..clock import ManualClock
from .base import (
    LEASE_MS,
    Contract,
    OpenStore,
    another,
    bury,
    claim,
    claim_one,
    claimed_ids,
    fault,
    handle,
    look,
    put_one,
    settle,
)
from .waiting import ends_by
from .weaker import takes


class HastenRules(Contract):
    @takes("hastens")
    def test_what_waits_is_due_at_once(self, store: Store, clock: ManualClock) -> None:
        fresh = put_one(store, delay_ms=60_000, priority=1, headers={"a": "b"}, correlation_id="c")
        retried = put_one(store)
        settle(store, claim_one(store), RetryAt(clock() + 60_000, "transient"), fault=fault())
        waiting = store.find([fresh, retried])
        handles = [handle(store, id) for id in (fresh, retried)]
        assert claim(store) == []
        assert store.triage(handles, Hasten()) == [True, True]
        for before, id in zip(waiting, (fresh, retried), strict=True):
            after = look(store, id)
            assert before is not None and (after.due_ms or 0) <= clock() + store.traits.tick_ms
            assert after == replace(before, due_ms=after.due_ms), "nothing else has changed"
        assert sorted(claimed_ids(store)) == sorted([fresh, retried])

    @takes("hastens")
    def test_only_what_waits_is_hastened(self, store: Store, clock: ManualClock) -> None:
        due, dead, running = put_one(store), bury(store), put_one(store)
        leased = next(d for d in claim(store) if d.message.id == running)
        handles = [handle(store, id) for id in (dead, running)]
        given_up = Handle(dead, 0, Lane.READY)
        assert store.triage([*handles, given_up, Handle(new_id(clock()), 0, Lane.READY)], Hasten()) == [False] * 4
        assert settle(store, leased, Ack()) is Settled.OK
        assert look(store, dead).lane is Lane.DEAD and look(store, due).lane is Lane.LEASED

    @takes("hastens", "widths")
    @pytest.mark.parametrize("order", GroupOrder)
    def test_in_a_group_it_keeps_to_the_order(self, store: Store, clock: ManualClock, order: GroupOrder) -> None:
        store.configure("default", group_order=order)
        late, next_one = put_one(store, group="g", delay_ms=60_000), put_one(store, group="g")
        strict = order is GroupOrder.STRICT
        assert claimed_ids(store) == ([] if strict else [next_one])
        assert store.triage([handle(store, late)], Hasten()) == [True]
        assert claimed_ids(store) == ([late] if strict else []), "the other holds the only place"
        assert store.check() == []

    @takes("hastens", "widths")
    def test_a_parked_message_keeps_its_place_in_the_line(self, store: Store) -> None:
        first, second, third = [put_one(store, group="g") for _ in range(3)]
        running = claim_one(store)
        assert running.message.id == first
        parked = store.find([second, third])
        assert store.triage([handle(store, third), handle(store, second)], Hasten()) == [True, True]
        assert store.find([second, third]) == parked and claim(store) == []
        assert settle(store, running, Ack()) is Settled.OK
        assert claimed_ids(store) == [second]

    @takes("hastens")
    def test_what_is_due_already_keeps_its_due_time(self, store: Store, clock: ManualClock) -> None:
        due, later = put_one(store), put_one(store, delay_ms=60_000)
        before = store.find([due])
        clock.advance("1s")
        assert store.triage([handle(store, later), handle(store, due)], Hasten()) == [True, True]
        assert store.find([due]) == before and claimed_ids(store) == [due, later]

    @takes("hastens", "cells")
    def test_in_a_paused_queue_it_stays_held(self, store: Store) -> None:
        store.configure("default", paused=True)
        id = put_one(store, delay_ms=60_000)
        assert store.triage([handle(store, id)], Hasten()) == [True]
        assert claim(store) == []
        store.configure("default", paused=False)
        assert claimed_ids(store) == [id]

    @takes("hastens", "batches")
    def test_a_member_of_a_batch_is_counted_as_before(self, store: Store) -> None:
        id = put_one(store, batch="b", delay_ms=60_000)
        before = store.batch_counts(["b"])
        assert store.triage([handle(store, id)], Hasten()) == [True]
        assert store.batch_counts(["b"]) == before and store.check() == []

    @takes("hastens", "cells")
    def test_it_is_one_commit_with_the_swaps(self, store: Store) -> None:
        id = put_one(store, delay_ms=60_000)
        with pytest.raises(Conflict):
            store.triage([handle(store, id)], Hasten(), swaps=[Swap("x", 7, b"1")])
        assert claim(store) == []
        assert store.triage([handle(store, id)], Hasten(), swaps=[Swap("x", 0, b"1")]) == [True]
        assert store.cells.read(["x"]) != [None] and claimed_ids(store) == [id]

    @takes("hastens")
    def test_a_run_names_what_it_made_due_and_the_attempts_so_far(self, store: Store, clock: ManualClock) -> None:
        fresh, retried = put_one(store, delay_ms=60_000), put_one(store)
        settle(store, claim_one(store), RetryAt(clock() + 60_000, "transient"), fault=fault())
        before = [look(store, id) for id in (fresh, retried)]
        assert store.triage([m.waiting_handle for m in before], Hasten(run="r")) == [True, True]
        after = [look(store, id) for id in (fresh, retried)]
        assert [(m.run_id, m.run_attempts) for m in after] == [("r", 0), ("r", 1)]
        assert [replace(m, run=None, due_ms=b.due_ms) for m, b in zip(after, before, strict=True)] == before
        deliveries = {d.message.id: d for d in claim(store)}
        assert {id: (d.message.run_id, d.message.attempt) for id, d in deliveries.items()} == {
            fresh: ("r", 1),
            retried: ("r", 2),
        }
        settle(store, deliveries[retried], RetryAt(clock() + 60_000, "transient"), fault=fault())
        assert look(store, retried).run_attempts == 1, "a settlement leaves it"

    @takes("hastens")
    def test_a_run_hastens_only_what_waits_as_it_was_seen(self, store: Store, clock: ManualClock) -> None:
        claimed, edited = [put_one(store, delay_ms=60_000) for _ in range(2)]
        seen = [look(store, id).waiting_handle for id in (claimed, edited)]
        assert store.triage([look(store, claimed).handle], Hasten()) == [True]
        settle(store, claim_one(store), RetryAt(clock() + 60_000, "transient"), fault=fault())
        assert store.triage([look(store, edited).handle], Postpone("other", (clock() + 90_000,))) == [True]
        due = put_one(store)
        seen.append(look(store, due).waiting_handle)
        assert store.triage(seen, Hasten(run="r")) == [False] * 3
        assert [look(store, id).run_id for id in (claimed, edited, due)] == [None, "other", None]
        again = look(store, edited).waiting_handle
        assert store.triage([again, again], Hasten(run="r")) == [True, False], "it is due after the first"

    @takes("hastens")
    def test_what_a_run_made_due_gets_its_due_time_back_until_it_is_claimed(
        self, store: Store, clock: ManualClock
    ) -> None:
        waiting, claimed, other = [put_one(store, delay_ms=delay_ms) for delay_ms in (60_000, 1000, 90_000)]
        before = [look(store, id) for id in (waiting, claimed, other)]
        seen = [message.waiting_handle for message in before]
        assert store.triage(seen[:2], Hasten(run="r")) == [True, True]
        assert store.triage(seen[2:], Hasten(run="s")) == [True]
        running = claim(store, limit=1)[0].message.id
        left = [look(store, id) for id in (waiting, claimed, other)]
        fenced = [message.handle._replace(fence=message.fence) for message in before]
        dues_ms = tuple(message.due_ms or 0 for message in before)
        words = store.triage(fenced, Postpone("r", dues_ms, back=True))
        assert words == [id in (waiting, claimed) and id != running for id in (waiting, claimed, other)]
        for id, was, now, word in zip((waiting, claimed, other), before, left, words, strict=True):
            assert look(store, id) == (was if word else now)
        assert store.triage(fenced, Postpone("r", dues_ms, back=True)) == [False] * 3, "once is enough"

    @takes("hastens", "widths")
    @pytest.mark.parametrize("order", GroupOrder)
    def test_what_is_put_off_again_lets_its_group_go_on(
        self, store: Store, clock: ManualClock, order: GroupOrder
    ) -> None:
        store.configure("default", group_order=order)
        first, second = put_one(store, group="g", delay_ms=60_000), put_one(store, group="g", delay_ms=30_000)
        before = {id: look(store, id) for id in (first, second)}
        assert store.triage([m.waiting_handle for m in before.values()], Hasten(run="r")) == [True, True]
        assert claim(store, skip=["push"]) == [], "they join the line"
        fenced = before[first].handle._replace(fence=0)
        assert store.triage([fenced], Postpone("r", (before[first].due_ms or 0,), back=True)) == [True]
        assert look(store, first) == before[first] and store.check() == []
        strict = order is GroupOrder.STRICT
        assert claimed_ids(store, lease_ms=90_000) == ([] if strict else [second]), (
            "in a strict group the first keeps its place"
        )
        clock.advance("61s")
        assert claimed_ids(store) == ([first] if strict else []), "the other holds the only place"
        assert store.check() == []

    @takes("hastens", "widths")
    def test_one_with_a_place_gives_it_up_as_it_is_put_off_again(self, store: Store, clock: ManualClock) -> None:
        first, second = put_one(store, group="g", delay_ms=60_000), put_one(store, group="g", delay_ms=60_000)
        before = [look(store, id) for id in (first, second)]
        assert store.triage([m.waiting_handle for m in before], Hasten(run="r")) == [True, True]
        running = claim_one(store)
        at = [first, second].index(running.message.id)
        other = before[1 - at]
        assert settle(store, running, Ack()) is Settled.OK
        assert not look(store, other.id).parked, "it has the place now"
        fenced = other.handle._replace(fence=0)
        assert store.triage([fenced], Postpone("r", (other.due_ms or 0,), back=True)) == [True]
        assert look(store, other.id).due_ms == other.due_ms and claim(store) == [] and store.check() == []
        third = put_one(store, group="g")
        assert claimed_ids(store) == [third]

    @takes("hastens")
    def test_a_redriven_message_that_a_run_made_due_is_not_returned(self, store: Store) -> None:
        if not store.traits.triages:
            return
        id = bury(store)
        assert store.triage([handle(store, id)], Redrive(delay_ms=60_000, run="redrive")) == [True]
        before = look(store, id)
        assert store.triage([before.waiting_handle], Hasten(run="r")) == [True]
        assert look(store, id).run == "r" and claimed_ids(store) == [id]

    @takes("hastens", "fenced")
    def test_the_receipt_of_a_gone_message_does_not_fit_one_with_its_id_that_was_moved_in_time(
        self, store: Store, clock: ManualClock
    ) -> None:
        for verdict in (Hasten(), Hasten(run="r"), Postpone("r", (clock() + 90_000,))):
            id = put_one(store, id=new_id(clock()))
            late = claim_one(store)
            clock.advance(LEASE_MS / 1000)
            assert settle(store, claim_one(store), Ack()) is Settled.OK
            put_one(store, id=id, delay_ms=60_000)
            assert store.triage([look(store, id).waiting_handle], verdict) == [True]
            clock.advance("1m")
            current = claim_one(store)
            assert settle(store, late, Ack()) is Settled.STALE and look(store, id) == current.message
            assert settle(store, current, Ack()) is Settled.OK

    @takes("hastens")
    @pytest.mark.parametrize("group", [None, "g"])
    def test_it_ends_a_wait(self, store: Store, open_store: OpenStore, group: str | None) -> None:
        other = another(store, open_store) if store.traits.shared else store
        assert other is not None
        waiting = handle(store, put_one(store, delay_ms=600_000, group=group))
        assert ends_by(store, lambda: other.triage([waiting], Hasten()))
