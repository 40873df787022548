"""Groups in strict order: one message at a time, in the order of their enqueue."""

from __future__ import annotations

import pytest

from ...message import (
    Ack,
    DeadLetter,
    Deferral,
    Discard,
    Group,
    GroupOrder,
    Isolate,
    OnDead,
    Quarantine,
    Redrive,
    RetryAt,
)
from ...store import Store
from ..clock import ManualClock
from .base import Contract, claim, claim_one, claimed_ids, draft, handle, look, put
from .base import settle as settle_one
from .weaker import takes


class StrictRules(Contract):
    """Rules of strict order: one message of a group at a time, by enqueue; the head keeps its place through delay and
    retry."""

    def strict(self, store: Store, on_dead: OnDead = OnDead.SKIP) -> None:
        store.configure("default", group_width=1, group_order=GroupOrder.STRICT, on_dead=on_dead)

    @takes("widths")
    def test_the_head_keeps_its_place_through_retries(self, store: Store, clock: ManualClock) -> None:
        self.strict(store)
        ids = put(store, *[draft(group="g") for _ in range(3)])
        settle_one(store, claim_one(store), RetryAt(clock() + 5000))
        assert claim(store) == []
        clock.advance("5s")
        for id in ids:
            delivery = claim_one(store)
            assert delivery.message.id == id
            settle_one(store, delivery, Ack())

    @takes("widths")
    def test_the_head_keeps_its_place_while_it_is_put_off(self, store: Store, clock: ManualClock) -> None:
        self.strict(store)
        head, next_one = put(store, draft("a", group="g"), draft("b", group="g"))
        put_off = RetryAt(clock() + 5000, "breaker", counts=False, held=True, deferral=Deferral("breaker", "crm"))
        settle_one(store, claim_one(store), put_off)
        assert claim(store) == []
        clock.advance("5s")
        delivery = claim_one(store)
        assert delivery.message.id == head
        settle_one(store, delivery, Ack())
        assert claimed_ids(store) == [next_one]

    @takes("widths")
    def test_the_head_keeps_its_place_through_its_delay(self, store: Store, clock: ManualClock) -> None:
        self.strict(store)
        late, next_one = put(store, draft(group="g", delay_ms=5000), draft(group="g"))
        assert claim(store) == []
        clock.advance("6s")
        assert claimed_ids(store) == [late]
        assert next_one != late

    @takes("widths")
    def test_a_delayed_one_in_line_holds_up_those_behind_it(self, store: Store, clock: ManualClock) -> None:
        self.strict(store)
        first, late, last = put(store, draft(group="g"), draft(group="g", delay_ms=5000), draft(group="g"))
        settle_one(store, claim_one(store), Ack())
        assert claim(store) == []
        assert look(store, late).state_at(clock()) == "scheduled"
        clock.advance("6s")
        assert claimed_ids(store) == [late]
        assert first != last

    @takes("widths")
    def test_a_delay_in_line_is_not_time_held(self, store: Store, clock: ManualClock) -> None:
        self.strict(store)
        _, late = put(store, draft(group="g"), draft(group="g", due_ms=clock() + 5000))
        delivery = claim_one(store, lease_ms=100_000)
        clock.advance("8s")
        settle_one(store, delivery, Ack())
        message = claim_one(store).message
        assert (message.id, message.held_ms) == (late, 3000)

    @takes("widths")
    def test_order_beats_priority(self, store: Store) -> None:
        self.strict(store)
        ids = put(store, *[draft(group="g", priority=n) for n in (2, 3, 0)])
        for id in ids:
            delivery = claim_one(store)
            assert delivery.message.id == id
            settle_one(store, delivery, Ack())

    @pytest.mark.parametrize("fatal", [DeadLetter("permanent"), Quarantine()])
    @takes("widths")
    def test_a_dead_head_is_skipped(self, store: Store, fatal: DeadLetter | Quarantine) -> None:
        self.strict(store)
        first, second, third = put(store, *[draft(group="g") for _ in range(3)])
        settle_one(store, claim_one(store), fatal)
        assert store.triage([handle(store, first)], Redrive()) == [True]
        for id in (second, third, first):
            delivery = claim_one(store)
            assert delivery.message.id == id
            settle_one(store, delivery, Ack())

    @pytest.mark.parametrize("fatal", [DeadLetter("permanent"), Quarantine()])
    @takes("widths")
    def test_a_dead_head_blocks_and_a_redrive_makes_it_head_again(
        self, store: Store, clock: ManualClock, fatal: DeadLetter | Quarantine
    ) -> None:
        self.strict(store, OnDead.BLOCK)
        ids = put(store, *[draft(group="g") for _ in range(3)])
        settle_one(store, claim_one(store), fatal)
        assert claim(store) == []
        assert store.groups("default") == [Group("default", "g", 1, 1, 2, ids[0])]
        assert store.triage([handle(store, ids[0])], Redrive(delay_ms=1000)) == [True]
        assert claim(store) == []
        clock.advance("2s")
        for id in ids:
            delivery = claim_one(store)
            assert delivery.message.id == id
            settle_one(store, delivery, Ack())

    @takes("widths")
    def test_a_discard_lets_a_blocked_group_go_on(self, store: Store) -> None:
        first, second = self.blocked(store)
        store.triage([handle(store, first)], Isolate("poison"))
        assert claim(store) == []  # the delayed message is still the head
        store.triage([handle(store, first)], Discard("seen"))
        assert claimed_ids(store) == [second]

    @takes("widths")
    def test_a_resume_lets_a_blocked_group_go_on(self, store: Store) -> None:
        first, second = self.blocked(store)
        store.configure_group("default", "other", resume=True)
        assert claim(store) == []
        store.configure_group("default", "g", resume=True)
        delivery = claim_one(store)
        assert delivery.message.id == second
        store.triage([handle(store, first)], Redrive())
        settle_one(store, delivery, Ack())
        assert claimed_ids(store) == [first]  # the redriven message is not the head any more: it joined at the tail

    @takes("widths")
    def test_a_redrive_to_another_queue_lets_a_blocked_group_go_on(self, store: Store) -> None:
        first, second = self.blocked(store)
        store.triage([handle(store, first)], Redrive(to_queue="q"))
        assert claimed_ids(store) == [second]
        assert claimed_ids(store, "q") == [first]

    @pytest.mark.parametrize("order", [None, GroupOrder.TURNS])
    @takes("widths")
    def test_a_queue_that_blocks_no_more_lets_its_groups_go_on(self, store: Store, order: GroupOrder | None) -> None:
        first, second = self.blocked(store)
        store.configure("default", group_order=order, on_dead=OnDead.SKIP)
        assert store.groups("default") == [Group("default", "g", 1, 1)]
        delivery = claim_one(store)
        assert delivery.message.id == second
        store.triage([handle(store, first)], Redrive())
        assert claim(store) == []
        settle_one(store, delivery, Ack())
        assert claimed_ids(store) == [first]

    def blocked(self, store: Store) -> list[str]:
        self.strict(store, OnDead.BLOCK)
        ids = put(store, draft(group="g"), draft(group="g"))
        settle_one(store, claim_one(store), DeadLetter("permanent"))
        return ids
