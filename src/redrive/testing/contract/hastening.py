"""Rules for messages that are made due before their time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ...ids import new_id
from ...message import Ack, GroupOrder, Handle, Hasten, Lane, RetryAt, Settled
from ...store import Store
from ..clock import ManualClock
from .base import Contract, bury, claim, claim_one, claimed_ids, fault, handle, look, put_one, settle
from .weaker import takes


class HastenRules(Contract):
    @takes("triages", "finds")
    def test_what_waits_is_due_at_once(self, store: Store, clock: ManualClock) -> None:
        fresh, retried = put_one(store, delay_ms=60_000), put_one(store)
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

    @takes("triages", "finds")
    def test_only_what_waits_is_hastened(self, store: Store, clock: ManualClock) -> None:
        due, dead, running = put_one(store), bury(store), put_one(store)
        leased = next(d for d in claim(store) if d.message.id == running)
        handles = [handle(store, id) for id in (dead, running)]
        given_up = Handle(dead, 0, Lane.READY)
        assert store.triage([*handles, given_up, Handle(new_id(clock()), 0, Lane.READY)], Hasten()) == [False] * 4
        assert settle(store, leased, Ack()) is Settled.OK
        assert look(store, dead).lane is Lane.DEAD and look(store, due).lane is Lane.LEASED

    @takes("triages", "finds", "widths")
    @pytest.mark.parametrize("order", GroupOrder)
    def test_in_a_group_it_keeps_to_the_order(self, store: Store, clock: ManualClock, order: GroupOrder) -> None:
        store.configure("default", group_order=order)
        late, next_one = put_one(store, group="g", delay_ms=60_000), put_one(store, group="g")
        strict = order is GroupOrder.STRICT
        assert claimed_ids(store) == ([] if strict else [next_one])
        assert store.triage([handle(store, late)], Hasten()) == [True]
        assert claimed_ids(store) == ([late] if strict else []), "the other holds the only place"
        assert store.check() == []
