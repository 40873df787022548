"""Rules for messages that are made due before their time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ...errors import Conflict
from ...ids import new_id
from ...message import Ack, GroupOrder, Handle, Hasten, Lane, RetryAt, Settled, Swap
from ...store import Store
from ..clock import ManualClock
from .base import (
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
    @pytest.mark.parametrize("group", [None, "g"])
    def test_it_ends_a_wait(self, store: Store, open_store: OpenStore, group: str | None) -> None:
        other = another(store, open_store) if store.traits.shared else store
        assert other is not None
        waiting = handle(store, put_one(store, delay_ms=600_000, group=group))
        assert ends_by(store, lambda: other.triage([waiting], Hasten()))
