"""Rules for waiting messages whose queue, priority, deadline or due time a run changes, or which it cancels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ...errors import Conflict
from ...ids import new_id
from ...message import Ack, Edit, GroupOrder, Handle, Lane, Message, RetryAt, Settled, Swap, WaitFields
from ...store import Store
from ..clock import ManualClock
from .base import LEASE_MS, Contract, claim, claim_one, claimed_ids, fault, look, put_one, settle
from .weaker import takes


def edit(store: Store, messages: Sequence[Message], to: WaitFields, run: str = "r") -> list[bool]:
    return store.triage([m.edit_handle for m in messages], Edit(run, (to,) * len(messages)))


def cancel(store: Store, messages: Sequence[Message], run: str = "r") -> list[bool]:
    return store.triage([m.edit_handle for m in messages], Edit(run, cancel=True))


def undo(store: Store, before: Sequence[Message], run: str = "r", *, cancelled: bool = False) -> list[bool]:
    """Give each message that was seen before the edit its queue, priority, deadline and due time back."""
    lane = Lane.DONE if cancelled else Lane.READY
    to = []
    for message in before:
        whole = WaitFields(message.queue, message.priority, message.deadline_ms or 0, message.due_ms)
        to.append(whole if message.group is None else whole._replace(queue=None, due_ms=None))
    handles = [Handle(m.id, m.redrives, lane, m.fence) for m in before]
    return store.triage(handles, Edit(run, tuple(to), cancelled, back=True))


class EditRules(Contract):
    @takes("edits")
    def test_each_field_is_changed_and_given_back(self, store: Store, clock: ManualClock) -> None:
        fresh = put_one(store, delay_ms=60_000, priority=2, headers={"a": "b"}, deadline_ms=clock() + 90_000)
        bare, retried = put_one(store, delay_ms=60_000, body=b"\x00\xff" * 90), put_one(store)
        settle(store, claim_one(store), RetryAt(clock() + 60_000, "transient"), fault=fault())
        before = [look(store, id) for id in (fresh, bare, retried)]
        for to in (
            WaitFields(priority=0),
            WaitFields(queue="other"),
            WaitFields(deadline_ms=clock() + 500_000),
            WaitFields(deadline_ms=0),
            WaitFields(due_ms=clock() + 120_000),
            WaitFields("other", 1, clock() + 500_000, clock() + 120_000),
        ):
            assert edit(store, before, to) == [True] * 3
            after = [look(store, id) for id in (fresh, bare, retried)]
            assert [(m.run_id, m.run_attempts) for m in after] == [("r", 0), ("r", 0), ("r", 1)]
            for was, now in zip(before, after, strict=True):
                said = {
                    name: value or None if name == "deadline_ms" else value
                    for name, value in to._asdict().items()
                    if value is not None
                }
                assert now == replace(was, run=now.run, **said), "nothing else has changed"
            assert store.check() == []
            assert undo(store, before) == [True] * 3
            assert [look(store, id) for id in (fresh, bare, retried)] == before
        assert undo(store, before) == [False] * 3, "once is enough"
        clock.advance("61s")
        assert sorted(claimed_ids(store)) == sorted([fresh, bare, retried])

    @takes("edits", "fenced")
    @pytest.mark.parametrize("ends", [False, True], ids=["", "cancelled and back"])
    def test_the_receipt_of_a_gone_message_does_not_fit_one_with_its_id_that_was_edited(
        self, store: Store, clock: ManualClock, ends: bool
    ) -> None:
        id = put_one(store, id=new_id(clock()))
        late = claim_one(store)
        clock.advance(LEASE_MS / 1000)
        assert settle(store, claim_one(store), Ack()) is Settled.OK
        put_one(store, id=id)
        before = [look(store, id)]
        if ends:
            assert cancel(store, before) == undo(store, before, cancelled=True) == [True]
        else:
            assert edit(store, before, WaitFields(priority=1)) == [True]
        current = claim_one(store)
        assert settle(store, late, Ack()) is Settled.STALE and look(store, id) == current.message
        assert settle(store, current, Ack()) is Settled.OK

    @takes("edits", "priorities")
    def test_what_is_moved_is_claimed_where_it_is_now(self, store: Store) -> None:
        first, second = put_one(store), put_one(store)
        moved = put_one(store)
        assert edit(store, [look(store, second)], WaitFields(priority=0)) == [True]
        assert edit(store, [look(store, moved)], WaitFields(queue="other")) == [True]
        assert [d.message.id for d in claim(store)] == [second, first]
        (delivery,) = claim(store, queue="other")
        assert (delivery.message.id, delivery.message.queue) == (moved, "other")
        assert settle(store, delivery, Ack()) is Settled.OK
        assert store.check() == []

    @takes("edits")
    def test_only_what_waits_as_it_was_seen_is_changed(self, store: Store, clock: ManualClock) -> None:
        ids = [put_one(store, delay_ms=60_000) for _ in range(4)]
        before = [look(store, id) for id in ids]
        for message, to in zip(
            before, (WaitFields(priority=0), WaitFields("other"), WaitFields(deadline_ms=clock() + 1)), strict=False
        ):
            assert edit(store, [message], to, "other") == [True]
        clock.advance("61s")
        running = [*claim(store), *claim(store, queue="other")]
        assert len(running) == 4
        assert edit(store, before, WaitFields(priority=3)) == [False] * 4
        assert cancel(store, before) == [False] * 4
        for delivery in running:
            settle(store, delivery, RetryAt(clock() + 60_000, "transient"), fault=fault())
        assert cancel(store, before) == [False] * 4, "each was claimed since"
        again = put_one(store, delay_ms=60_000)
        seen = look(store, again)
        assert edit(store, [seen], WaitFields(priority=0), "other") == [True]
        assert edit(store, [seen], WaitFields(deadline_ms=clock() + 1)) == [False], "its priority is another"
        assert edit(store, [look(store, again)] * 2, WaitFields(priority=1)) == [True, False]
        assert undo(store, [seen], "other") == [False] and undo(store, [seen]) == [True]
        assert look(store, again) == seen

    @takes("edits")
    def test_what_was_claimed_since_keeps_its_edit(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        before = look(store, id)
        assert edit(store, [before], WaitFields(priority=0)) == [True]
        settle(store, claim_one(store), RetryAt(clock() + 60_000, "transient"), fault=fault())
        assert undo(store, [before]) == [False]
        assert (look(store, id).priority, look(store, id).run_id) == (0, "r")

    @takes("edits")
    def test_what_is_cancelled_ends_and_waits_again_when_that_is_undone(self, store: Store, clock: ManualClock) -> None:
        ids = [put_one(store, delay_ms=60_000, deadline_ms=clock() + 90_000), put_one(store)]
        settle(store, claim_one(store), RetryAt(clock() + 60_000, "transient"), fault=fault())
        before = [look(store, id) for id in ids]
        assert cancel(store, before) == [True, True]
        after = [look(store, id) for id in ids]
        assert [(m.lane, m.reason, m.run_id) for m in after] == [(Lane.DONE, "cancelled", "r")] * 2
        clock.advance("61s")
        assert claim(store) == [] and store.check() == []
        assert undo(store, before, "s", cancelled=True) == [False, False], "another run did it"
        assert undo(store, before, cancelled=True) == [True, True]
        assert [look(store, id) for id in ids] == before and store.check() == []
        clock.advance("48h")
        assert sorted(claimed_ids(store)) == sorted(ids), "it does not expire"

    @takes("edits", "unique")
    def test_what_was_cancelled_comes_back_unless_its_key_is_held(self, store: Store) -> None:
        kept, lost = put_one(store, key="a"), put_one(store, key="b")
        before = [look(store, id) for id in (kept, lost)]
        assert cancel(store, before) == [True, True]
        other = put_one(store, key="b")
        assert other != lost
        assert undo(store, before, cancelled=True) == [True, False]
        assert look(store, lost).reason == "cancelled"
        assert put_one(store, key="a") == kept, "it holds its key again"
        assert sorted(claimed_ids(store)) == sorted([kept, other])

    @takes("edits", "batches")
    def test_a_member_of_a_batch_is_counted_once(self, store: Store, clock: ManualClock) -> None:
        ids = [put_one(store, batch="b", delay_ms=60_000) for _ in range(2)]
        before = [look(store, id) for id in ids]
        (counts,) = store.batch_counts(["b"])
        assert edit(store, before, WaitFields("other", 0)) == [True, True]
        assert store.batch_counts(["b"]) == [counts] and undo(store, before) == [True, True]
        assert cancel(store, before) == [True, True] and cancel(store, before) == [False, False]
        (ended,) = store.batch_counts(["b"])
        assert (ended.open, ended.cancelled) == (0, 2)
        assert undo(store, before, cancelled=True) == [False, False], "the batch has gone on without them"
        assert store.batch_counts(["b"]) == [ended] and store.check() == []

    @takes("edits", "widths")
    @pytest.mark.parametrize("order", GroupOrder)
    def test_a_group_keeps_its_order(self, store: Store, clock: ManualClock, order: GroupOrder) -> None:
        store.configure("default", group_order=order)
        first, second, third = [put_one(store, group="g", deadline_ms=clock() + 90_000) for _ in range(3)]
        before = [look(store, id) for id in (first, second, third)]
        for to in (WaitFields("other"), WaitFields(due_ms=clock() + 1), WaitFields("other", 0)):
            assert edit(store, before, to) == [False] * 3
        assert edit(store, before, WaitFields(deadline_ms=clock() + 5000)) == [True] * 3
        assert [look(store, m.id) for m in before] == [replace(m, run="r", deadline_ms=clock() + 5000) for m in before]
        assert undo(store, before) == [True] * 3 and [look(store, m.id) for m in before] == before
        assert cancel(store, before[:2]) == [True, True]
        assert undo(store, before[:2], cancelled=True) == [False, False], "the group has gone on without them"
        assert claimed_ids(store) == [third] and store.check() == []

    @takes("edits", "widths", "priorities")
    @pytest.mark.parametrize("order", GroupOrder)
    def test_another_priority_counts_in_line_unless_the_group_is_strict(
        self, store: Store, clock: ManualClock, order: GroupOrder
    ) -> None:
        store.configure("default", group_order=order)
        head, second, third = [put_one(store, group="g", priority=2) for _ in range(3)]
        later = put_one(store, group="g", priority=2, delay_ms=60_000)
        before = [look(store, id) for id in (head, second, third, later)]
        assert edit(store, before[2:], WaitFields(priority=1)) == [True, True]
        assert [look(store, m.id) for m in before[2:]] == [replace(m, run="r", priority=1) for m in before[2:]]
        assert undo(store, before[2:]) == [True, True] and [look(store, m.id) for m in before] == before
        assert edit(store, before[2:], WaitFields(priority=1)) == [True, True] and store.check() == []
        assert edit(store, before[:1], WaitFields(priority=3)) == [True], "it has its place"
        ran, other = list[str](), put_one(store, priority=2)
        for _ in range(2):
            while deliveries := claim(store):
                ran += [delivery.message.id for delivery in deliveries]
                assert [settle(store, delivery, Ack()) for delivery in deliveries] == [Settled.OK] * len(deliveries)
            clock.advance("61s")
        strict = order is GroupOrder.STRICT
        assert ran == [other, head, *([second, third] if strict else [third, second]), later]
        assert store.check() == []

    @takes("edits", "cells")
    @pytest.mark.parametrize("ends", [False, True])
    def test_an_edit_is_one_commit_with_the_swaps(self, store: Store, ends: bool) -> None:
        id = put_one(store)
        before = look(store, id)
        verdict = Edit("r", cancel=True) if ends else Edit("r", (WaitFields(priority=0),))
        with pytest.raises(Conflict):
            store.triage([before.edit_handle], verdict, swaps=[Swap("x", 7, b"1")])
        assert look(store, id) == before
        assert store.triage([before.edit_handle], verdict, swaps=[Swap("x", 0, b"1")]) == [True]
        assert store.cells.read(["x"]) != [None] and look(store, id).run_id == "r"

    @takes("edits")
    def test_it_has_a_change_for_each_handle(self, store: Store) -> None:
        with pytest.raises(ValueError, match="expected one for each"):
            store.triage([look(store, put_one(store)).edit_handle], Edit("r"))
