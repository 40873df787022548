"""Rules of groups: a bounded number of messages of one key at once, in turns, however messages come and go."""

from __future__ import annotations

import pytest

from ...errors import ConfigError
from ...message import (
    Ack,
    DeadLetter,
    Delivery,
    Group,
    GroupOrder,
    Lane,
    OnDead,
    Quarantine,
    Redrive,
    RetryAt,
    Settled,
    Settlement,
    Started,
)
from ...store import Store
from ..clock import ManualClock
from .base import LEASE_MS, Contract, OpenStore, ask, claim, claim_one, claimed_ids, draft, handle, look, put, put_one
from .base import settle as settle_one
from .weaker import takes


class GroupRules(Contract):
    @takes("widths")
    def test_a_group_runs_one_at_a_time_until_told_otherwise(self, store: Store) -> None:
        ids = put(store, *[draft(group="g") for _ in range(3)])
        for id in ids:
            (delivery,) = claim(store)
            assert delivery.message.id == id and delivery.message.group == "g"
            assert claim(store) == []
            assert settle_one(store, delivery, Ack()) is Settled.OK
        assert claim(store) == []

    @takes("widths")
    def test_groups_and_ungrouped_messages_do_not_hold_each_other_up(self, store: Store) -> None:
        ids = put(store, draft(group="a"), draft(group="a"), draft(group="b"), draft(), draft(group="a"))
        assert claimed_ids(store) == [ids[0], ids[2], ids[3]]

    @takes("widths")
    def test_the_same_name_in_another_queue_is_another_group(self, store: Store) -> None:
        put(store, draft(group="g"), draft(group="g", queue="q"))
        assert len(claim(store)) == len(claim(store, "q")) == 1

    @pytest.mark.parametrize("width", [1, 3])
    @takes("widths")
    def test_a_group_has_at_most_its_width_of_messages_at_once(self, store: Store, width: int) -> None:
        store.configure("default", group_width=width)
        put(store, *[draft(group="g") for _ in range(7)])
        deliveries = claim(store)
        assert len(deliveries) == width
        done = store.exchange([Settlement(d.receipt, Ack()) for d in deliveries], [ask()])
        assert len(done.deliveries) == width  # the places that an ack frees are taken in the same exchange

    @takes("widths")
    def test_parked_messages_have_a_count_of_their_own(self, store: Store, clock: ManualClock) -> None:
        """Parked is who stands in line. Who waits for its time before it joins is scheduled, and then ready."""
        ids = put(store, *[draft(group="g") for _ in range(3)], draft(group="g", delay_ms=5000))
        assert [look(store, id).state_at(clock()) for id in ids] == ["ready", "parked", "parked", "scheduled"]
        assert [message.id for message in store.peek(Lane.READY).messages] == ids
        if store.traits.exact_counts:
            counts = store.counts("default")
            assert (counts.ready, counts.scheduled, counts.parked, counts.leased) == (1, 1, 2, 0)
            assert store.counts() == counts == store.counts_by_queue()["default"]
        clock.advance("7s")
        assert [look(store, id).state_at(clock()) for id in ids] == ["ready", "parked", "parked", "ready"]
        if store.traits.exact_counts:
            counts = store.counts("default")
            assert (counts.ready, counts.scheduled, counts.parked, counts.oldest_age_s) == (2, 0, 2, 7.0)
            assert store.counts() == counts == store.counts_by_queue()["default"]
        claim(store)
        assert [look(store, id).state_at(clock()) for id in ids] == ["leased", "parked", "parked", "parked"]
        if store.traits.exact_counts:
            counts = store.counts("default")
            assert (counts.ready, counts.scheduled, counts.parked, counts.leased) == (0, 0, 3, 1)
            assert store.counts() == counts == store.counts_by_queue()["default"]

    @takes("widths")
    def test_states_and_counts_agree_in_strict_groups_too(self, store: Store, clock: ManualClock) -> None:
        """Who stands in line behind the first is parked, also while its own time is ahead."""
        store.configure("default", group_order="strict")
        ids = put(store, draft(group="g", delay_ms=5000), draft(group="g", delay_ms=9000), draft(group="g"))
        assert [look(store, id).state_at(clock()) for id in ids] == ["scheduled", "parked", "parked"]
        assert [group.parked for group in store.groups("default")] == [2]
        if store.traits.exact_counts:
            counts = store.counts("default")
            assert (counts.ready, counts.scheduled, counts.parked) == (0, 1, 2)
            assert store.counts() == counts == store.counts_by_queue()["default"]
        assert store.queues() == ["default"]

    @takes("widths")
    def test_groups_take_turns(self, store: Store, clock: ManualClock) -> None:
        """However many messages one group has waiting, each other group goes before its second."""
        big = put(store, *[draft(group="big") for _ in range(20)])
        clock.advance("1s")
        small = put(store, *[draft(group=f"small{n}") for n in range(3) for _ in range(2)])
        clock.advance("1s")
        order = []
        for _ in range(8):
            (delivery,) = claim(store, limit=1)
            order.append(delivery.message.id)
            settle_one(store, delivery, Ack())
            clock.advance("1s")
        assert order == [big[0], small[0], small[2], small[4], big[1], small[1], small[3], small[5]]

    @takes("widths")
    def test_a_wait_gives_the_place_up(self, store: Store, clock: ManualClock) -> None:
        first, second, third = put(store, *[draft(group="g") for _ in range(3)])
        settle_one(store, claim_one(store), RetryAt(clock() + 5000))
        delivery = claim_one(store)
        assert delivery.message.id == second
        clock.advance("5s")
        assert claim(store) == []  # the message is due, and parked in its group
        settle_one(store, delivery, Ack())
        assert claimed_ids(store) == [third]
        settle_one(store, claim_all_of(store, clock)[0], Ack())
        assert claimed_ids(store) == [first]

    @takes("widths")
    def test_a_wait_of_no_length_keeps_the_place(self, store: Store, clock: ManualClock) -> None:
        first, _ = put(store, draft(group="g"), draft(group="g"))
        settle_one(store, claim_one(store), RetryAt(clock(), counts=False))
        assert claimed_ids(store) == [first]

    @takes("widths")
    def test_delayed_messages_join_when_their_time_comes(self, store: Store, clock: ManualClock) -> None:
        late, now = put(store, draft(group="g", delay_ms=5000), draft(group="g"))
        settle_one(store, claim_one(store), Ack())
        assert claim(store) == []
        clock.advance("6s")
        assert claimed_ids(store) == [late]
        assert now != late

    @takes("widths")
    def test_the_wait_for_a_place_is_time_held(self, store: Store, clock: ManualClock) -> None:
        _, next, late = put(store, draft(group="g"), draft(group="g"), draft(group="g", delay_ms=5000))
        delivery = claim_one(store, lease_ms=100_000)
        assert delivery.message.held_ms == 0
        clock.advance("10s")
        assert claim(store) == []  # from here on `late` is parked, too
        clock.advance("20s")
        settle_one(store, delivery, Ack())
        delivery = claim_one(store)
        assert (delivery.message.id, delivery.message.held_ms) == (next, 30_000)
        settle_one(store, delivery, Ack())
        delivery = claim_one(store)
        assert (delivery.message.id, delivery.message.held_ms) == (late, 20_000)

    @takes("widths")
    def test_priorities_hold_within_a_group(self, store: Store) -> None:
        first = put_one(store, group="g", priority=2)
        low, high = put(store, draft(group="g", priority=3), draft(group="g", priority=0))
        for id in (first, high, low):
            delivery = claim_one(store)
            assert delivery.message.id == id
            settle_one(store, delivery, Ack())

    @takes("widths")
    def test_a_lost_lease_keeps_its_place(self, store: Store, clock: ManualClock) -> None:
        first, _ = put(store, draft(group="g"), draft(group="g"))
        claim_one(store)
        clock.advance(LEASE_MS / 1000 + 1)
        assert claimed_ids(store) == [first]

    @pytest.mark.parametrize("started", [None, []])
    @takes("widths")
    def test_what_a_dead_worker_held_keeps_its_place(self, store: Store, started: list[Started] | None) -> None:
        first, _ = put(store, draft(group="g"), draft(group="g"))
        claim_one(store, worker="dead")
        store.reclaim("dead", started)
        assert claimed_ids(store) == [first]

    @pytest.mark.parametrize("decision", [Ack(), Ack(keep_ms=1000), DeadLetter("permanent"), Quarantine()])
    @takes("widths")
    def test_the_end_of_one_lets_the_next_in(self, store: Store, decision: Ack | DeadLetter | Quarantine) -> None:
        _, second = put(store, draft(group="g"), draft(group="g"))
        done = store.exchange([Settlement(claim_one(store).receipt, decision)], [ask()])
        assert [delivery.message.id for delivery in done.deliveries] == [second]

    @takes("widths")
    def test_a_cancel_lets_the_next_in(self, store: Store) -> None:
        ids = put(store, *[draft(group="g") for _ in range(4)])
        store.cancel([ids[0], ids[2]])
        delivery = claim_one(store)
        assert delivery.message.id == ids[1]
        store.cancel([ids[1]])
        assert settle_one(store, delivery, RetryAt(store.now_ms() + 1000)) is Settled.CANCELLED
        assert claimed_ids(store) == [ids[3]]

    @takes("widths")
    def test_follow_ups_stand_in_line(self, store: Store) -> None:
        put(store, draft(group="g"), draft(group="g"))
        delivery = claim_one(store)
        follow_ups = (draft(group="g"), draft(group="h"))
        store.exchange([Settlement(delivery.receipt, Ack(), follow_ups=follow_ups)], [])
        assert sorted(d.message.group or "" for d in claim(store)) == ["g", "h"]

    @takes("widths")
    def test_a_redriven_message_joins_at_the_tail(self, store: Store) -> None:
        first, second, third = put(store, *[draft(group="g") for _ in range(3)])
        settle_one(store, claim_one(store), DeadLetter("permanent"))
        assert store.triage([handle(store, first)], Redrive()) == [True]
        for id in (second, third, first):
            delivery = claim_one(store)
            assert delivery.message.id == id
            settle_one(store, delivery, Ack())

    @takes("widths")
    def test_the_redriven_join_in_the_order_that_was_said(self, store: Store) -> None:
        ids = put(store, *[draft(group="g") for _ in range(4)])
        for _ in ids:
            settle_one(store, claim_one(store), DeadLetter("permanent"))
        said = [ids[2], ids[0], ids[3], ids[1]]
        assert store.triage([handle(store, id) for id in said], Redrive()) == [True] * 4
        for id in said:
            delivery = claim_one(store)
            assert delivery.message.id == id
            settle_one(store, delivery, Ack())

    @takes("widths")
    def test_a_redrive_to_another_queue_joins_the_group_there(self, store: Store) -> None:
        (first,) = put(store, draft(group="g"))
        settle_one(store, claim_one(store), DeadLetter("permanent"))
        held = put(store, draft(group="g", queue="q"))
        assert store.triage([handle(store, first)], Redrive(to_queue="q")) == [True]
        delivery = claim_one(store, queue="q")
        assert [delivery.message.id] == held
        settle_one(store, delivery, Ack())
        assert claimed_ids(store, "q") == [first]


class WidthRules(Contract):
    """Widths, set per queue and per group while messages wait."""

    @takes("widths")
    def test_a_greater_width_lets_more_in_at_once(self, store: Store) -> None:
        put(store, *[draft(group="g") for _ in range(5)])
        assert len(claim(store)) == 1
        store.configure("default", group_width=3)
        assert len(claim(store)) == 2
        store.configure_group("default", "g", width=4)
        assert len(claim(store)) == 1
        assert store.groups("default") == [Group("default", "g", 4, 4, 1)]

    @takes("widths")
    def test_a_greater_width_lets_in_who_stands_first_in_each_group(self, store: Store) -> None:
        heads = put(store, draft(group="g"), draft(group="h"))
        ids = put(store, *[draft(group=group, priority=priority) for priority in (3, 1, 2, 0) for group in "gh"])
        assert claimed_ids(store) == heads
        store.configure("default", group_width=3)
        assert claimed_ids(store) == [*ids[6:], *ids[2:4]]  # of priority 0, then of 1
        assert [(group.taken, group.parked) for group in store.groups("default")] == [(3, 2), (3, 2)]

    @takes("widths")
    def test_a_smaller_width_holds_once_places_are_free(self, store: Store) -> None:
        store.configure("default", group_width=3)
        put(store, *[draft(group="g") for _ in range(6)])
        deliveries = claim(store)
        store.configure_group("default", "g", width=1)
        settle_all(store, deliveries[:2])
        assert claim(store) == []
        settle_all(store, deliveries[2:])
        assert len(claim(store)) == 1

    @takes("widths")
    def test_what_was_set_for_all_groups_at_run_time_wins_over_what_was_declared(self, store: Store) -> None:
        store.configure_group("default", None, width=2)
        store.configure("default", group_width=3)  # as every start of the app declares
        store.configure_group("default", "own", width=1)
        put(store, *[draft(group=name) for name in ("g", "own") for _ in range(4)])
        assert sorted(d.message.group or "" for d in claim(store)) == ["g", "g", "own"]
        store.configure_group("default", None, width=0)
        store.configure_group("default", "own", width=0)
        assert len(claim(store)) == 1 + 2
        assert [group.width for group in store.groups("default")] == [3, 3]

    @takes("widths")
    def test_another_handle_sees_the_widths(self, store: Store, open_store: OpenStore) -> None:
        store.configure("default", group_width=2)
        other = open_store() if store.traits.shared else store
        put(other, *[draft(group="g") for _ in range(3)])
        assert len(claim(other)) == 2

    @takes("widths")
    def test_settings_that_contradict_each_other_are_refused(self, store: Store) -> None:
        for settings in (
            {"group_width": 0},
            {"group_width": 2, "group_order": GroupOrder.STRICT},
            {"on_dead": OnDead.BLOCK},
        ):
            with pytest.raises(ConfigError):
                store.configure("default", **settings)
        with pytest.raises(ConfigError, match="empty name"):
            store.configure_group("default", "", width=2)
        store.configure("default", group_order=GroupOrder.STRICT)
        for width in (2, -1):
            with pytest.raises(ConfigError):
                store.configure_group("default", "g", width=width)
        put(store, draft(group="g"), draft(group="g"))
        assert len(claim(store)) == 1

    @takes("widths")
    def test_a_strict_group_may_be_told_the_one_place_it_has(self, store: Store) -> None:
        store.configure("default", group_order=GroupOrder.STRICT)
        store.configure_group("default", "g", width=1)
        assert store.groups("default") == [Group("default", "g", 1)]

    @takes("widths")
    def test_who_stands_in_line_keeps_his_number_when_the_order_changes(self, store: Store) -> None:
        """Strict order is by number alone, turns are by priority first: also for messages of the other order."""
        put_one(store, group="g")
        running = claim_one(store)
        first, second, high = put(store, *[draft(group="g", priority=n) for n in (3, 2, 1)])
        store.configure("default", group_order=GroupOrder.STRICT)
        last = put_one(store, group="g", priority=0)
        settle_one(store, running, Ack())
        running = claim_one(store)
        assert running.message.id == first
        store.configure("default", group_order=GroupOrder.TURNS)
        for id in (last, high, second):
            settle_one(store, running, Ack())
            running = claim_one(store)
            assert running.message.id == id

    @takes("widths")
    def test_strict_order_can_be_given_up(self, store: Store, clock: ManualClock) -> None:
        store.configure("default", group_order=GroupOrder.STRICT)
        _, late, last = put(store, draft(group="g"), draft(group="g", delay_ms=5000), draft(group="g"))
        settle_one(store, claim_one(store), Ack())
        store.configure("default", group_order=GroupOrder.TURNS, group_width=2)
        assert claimed_ids(store) == [last]
        clock.advance("6s")
        assert claimed_ids(store) == [late]

    @takes("widths")
    def test_a_head_that_waits_gives_way_when_strict_order_is_given_up(self, store: Store, clock: ManualClock) -> None:
        store.configure("default", group_order=GroupOrder.STRICT)
        first, second = put(store, draft(group="g"), draft(group="g"))
        settle_one(store, claim_one(store), RetryAt(clock() + 5000))
        store.configure("default", group_order=GroupOrder.TURNS)
        delivery = claim_one(store)
        assert delivery.message.id == second
        settle_one(store, delivery, Ack())
        clock.advance("6s")
        assert claimed_ids(store) == [first]

    @takes("widths")
    def test_groups_are_listed_while_somebody_stands_in_them(self, store: Store) -> None:
        assert store.groups("default") == []
        put(store, draft(group="b"), draft(group="a"), draft(group="b"))
        assert store.groups("default") == [Group("default", "a", 1, 1), Group("default", "b", 1, 1, 1)]
        settle_all(store, claim(store))
        assert store.groups("default") == [Group("default", "b", 1, 1)]
        assert store.groups("other") == []

    @takes("widths")
    def test_a_paused_queue_keeps_its_lines(self, store: Store) -> None:
        ids = put(store, draft(group="g"), draft(group="g"))
        store.configure("default", paused=True)
        assert claim(store) == []
        store.configure("default", paused=False)
        assert claimed_ids(store) == ids[:1]

    @takes("widths")
    def test_a_wait_ends_when_a_member_may_join(self, store: Store, clock: ManualClock) -> None:
        put_one(store, group="g", delay_ms=1000)
        clock.advance("2s")
        store.wait([ask()], timeout_ms=60_000)  # the wait returns at once; otherwise the test would time out
        assert len(claim(store)) == 1


def settle_all(store: Store, deliveries: list[Delivery]) -> None:
    words = store.exchange([Settlement(delivery.receipt, Ack()) for delivery in deliveries], []).settled
    assert set(words) == {Settled.OK}


def claim_all_of(store: Store, clock: ManualClock) -> list[Delivery]:
    """Let the leases expire, and claim the leased messages again."""
    clock.advance(LEASE_MS / 1000 + 1)
    return claim(store)
