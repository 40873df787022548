"""Rules of redrive runs: spread redrives, replays of done messages, and undo."""

from __future__ import annotations

from typing import Any

import pytest

from ...errors import Conflict
from ...message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Discard,
    Filter,
    Group,
    GroupOrder,
    Handle,
    Isolate,
    Lane,
    Message,
    OnDead,
    Quarantine,
    Readmit,
    Redrive,
    RetryAt,
    Return,
    Settlement,
    Swap,
    Verdict,
)
from ...store import Store
from ..clock import ManualClock
from .base import (
    LEASE_MS,
    Contract,
    bury,
    claim,
    claim_one,
    claimed_ids,
    draft,
    fault,
    given,
    handle,
    look,
    put,
    put_one,
    settle,
    values,
)
from .weaker import takes

WAY_MS = 5000

MOVES: list[Verdict] = [Redrive(run="r"), Discard("no"), Isolate("no")]


def finish(store: Store, keep_ms: int | None = None, **parts: object) -> str:
    """Put a message, run it, keep it as done with a result, and return its id."""
    id = put_one(store, **parts)
    delivery = next(d for d in claim(store, limit=1000) if d.message.id == id)
    store.checkpoint(delivery.receipt, b"half")
    settle(store, delivery, Ack("no cache", keep_ms=keep_ms), result=b'{"n":1}')
    return id


def handle_of(store: Store, id: str) -> Handle:
    """Return the handle of a message; if the store cannot find the message, a handle made from its id."""
    (message,) = store.find([id])
    return message.handle if message is not None else Handle(id, 1, Lane.READY)


def redrive(store: Store, **parts: Any) -> Redrive:
    """Return a Redrive that can be undone: with a delay if the store cannot read due messages any more."""
    return Redrive(**parts, delay_ms=0 if store.traits.finds else WAY_MS)


class SwapRules(Contract):
    @pytest.mark.parametrize("verdict", MOVES)
    @takes("triages", "cells")
    def test_swaps_commit_with_the_verdict_or_neither_does(self, store: Store, verdict: Verdict) -> None:
        one, other = bury(store), bury(store)
        handles = [handle(store, one), handle(store, other)]
        before = store.find([one, other])
        with pytest.raises(Conflict):
            store.triage(handles, verdict, swaps=[Swap("y", 0, b"1"), Swap("x", 7, b"1")])
        assert (store.find([one, other]), values(store, "x", "y")) == (before, [None, None])
        assert store.triage(handles, verdict, swaps=[Swap("y", 0, b"1"), Swap("x", 0, b"2")]) == [True, True]
        assert (store.find([one, other]) == before, values(store, "x", "y")) == (False, [b"2", b"1"])

    @takes("triages", "cells")
    def test_swaps_are_written_also_where_no_handle_holds(self, store: Store) -> None:
        id = bury(store)
        assert store.triage([Handle(id, 7, Lane.DEAD)], Redrive(), swaps=[Swap("x", 0, b"1")]) == [False]
        assert store.triage([], Redrive(), swaps=[Swap("y", 0, b"1")]) == []
        assert values(store, "x", "y") == [b"1", b"1"]


class SpreadRules(Contract):
    @takes("triages")
    def test_each_message_has_its_own_delay(self, store: Store, clock: ManualClock) -> None:
        ids = [bury(store) for _ in range(3)]
        handles = [handle(store, ids[0]), Handle(ids[1], 7, Lane.DEAD), handle(store, ids[2])]
        verdict = Redrive(delay_ms=1000, delays_ms=(5000, 1, 0))
        assert store.triage(handles, verdict) == [True, False, True]
        assert look(store, ids[0]).due_ms in (clock() + 6000, clock() + 6001)
        assert look(store, ids[2]).due_ms in (clock() + 1000, clock() + 1001)
        assert claim(store) == []
        clock.advance("2s")
        assert claimed_ids(store) == [ids[2]]

    @takes("triages")
    def test_delays_for_another_number_of_handles_are_refused(self, store: Store) -> None:
        id = bury(store)
        with pytest.raises(ValueError, match="delays_ms"):
            store.triage([handle(store, id)], Redrive(delays_ms=(1, 2)))
        assert look(store, id).lane is Lane.DEAD


class ReplayRules(Contract):
    @takes("keeps_done")
    def test_a_done_message_is_redriven_to_begin_anew(self, store: Store, clock: ManualClock) -> None:
        id = finish(store, 3_600_000, body=b"1")
        clock.advance("10m")
        assert store.triage([handle(store, id)], Redrive(attempts=2, run="r")) == [True]
        message = look(store, id)
        assert (message.lane, message.due_ms, message.body) == (Lane.READY, clock(), b"1")
        assert (message.attempt, message.redrives, message.attempts_allowed) == (0, 1, 2)
        assert (message.result, message.progress, message.reason, message.rested_ms) == (None, None, None, None)
        clock.advance("2h")  # the retention of done messages no longer applies to the redriven message
        store.exchange([], [])
        assert claimed_ids(store) == [id]

    @takes("keeps_done")
    def test_only_a_redrive_moves_what_is_done(self, store: Store) -> None:
        id = finish(store)
        for verdict in (Discard("no"), Isolate("no"), Return("r"), Readmit("no")):
            assert store.triage([handle(store, id)], verdict) == [False]
        assert look(store, id).lane is Lane.DONE

    @takes("finds", "triages")
    def test_what_was_cancelled_is_not_redriven(self, store: Store) -> None:
        id = put_one(store)
        store.cancel([id])
        assert store.triage([handle(store, id)], Redrive()) == [False]

    @takes("keeps_done")
    def test_a_replayed_message_can_be_returned(self, store: Store, clock: ManualClock) -> None:
        id = finish(store, 600_000)
        before = look(store, id)
        assert store.triage([handle(store, id)], Redrive(run="r")) == [True]
        assert store.triage([handle(store, id)], Return("r")) == [True]
        assert look(store, id) == before
        clock.advance("12m")
        store.exchange([], [])
        assert store.find([id]) == [None]

    @takes("keeps_done")
    def test_one_that_was_done_again_since_its_first_replay_can_be_returned(self, store: Store) -> None:
        id = finish(store, 600_000)
        assert store.triage([handle(store, id)], Redrive(run="first")) == [True]
        settle(store, claim_one(store), Ack(keep_ms=600_000))
        before = look(store, id)
        assert store.triage([handle(store, id)], Redrive(run="second")) == [True]
        assert store.triage([handle(store, id)], Return("second")) == [True]
        assert look(store, id) == before

    @takes("unique", "keeps_done")
    def test_keys_are_not_looked_at(self, store: Store) -> None:
        id = finish(store, key="k")
        other = put_one(store, key="k")
        assert other != id
        assert store.triage([handle(store, id)], Redrive()) == [True]
        assert sorted(claimed_ids(store)) == sorted([id, other])


class ReturnRules(Contract):
    @pytest.mark.parametrize("lane", [Lane.DEAD, Lane.QUARANTINE])
    @takes("triages")
    def test_a_returned_message_rests_as_it_did(self, store: Store, clock: ManualClock, lane: Lane) -> None:
        id = put_one(store, deadline_ms=clock() + 90_000, priority=1)
        claim_one(store)
        clock.advance(LEASE_MS / 1000)  # the lease expires, which counts as a crash
        settle(store, claim_one(store), RetryAt(clock() + 2000, held=True), fault=fault("first"))
        clock.advance("2s")
        decision = DeadLetter("exhausted") if lane is Lane.DEAD else Quarantine()
        settle(store, claim_one(store), decision, fault=fault("second"))
        before, groups = look(store, id), store.failure_groups()
        clock.advance("1h")
        assert store.triage([handle(store, id)], redrive(store, to_queue="q", attempts=3, run="r")) == [True]
        assert (look(store, id).queue, store.failure_groups()) == ("q", [])
        assert store.triage([handle(store, id)], Return("r")) == [True]
        assert look(store, id) == before
        assert store.failure_groups() == groups
        for where in (Filter(fingerprint="f" * 16), Filter(error="ValueError"), Filter(reason=before.reason)):
            assert [m.id for m in store.peek(lane, where=where).messages] == [id]
        assert claim(store, "q") == claim(store) == []

    @takes("triages")
    def test_it_can_be_redriven_and_returned_again(self, store: Store) -> None:
        id = bury(store, why=fault())
        before = look(store, id)
        for run in ("r", "s"):
            assert store.triage([handle(store, id)], redrive(store, run=run)) == [True]
            assert store.triage([handle(store, id)], Return(run)) == [True]
            assert look(store, id) == before

    @takes("triages")
    def test_of_two_runs_the_later_is_undone(self, store: Store) -> None:
        id = bury(store)
        store.triage([handle(store, id)], Redrive(run="first"))
        settle(store, claim_one(store), DeadLetter("exhausted"), fault=fault())
        before = look(store, id)
        store.triage([handle(store, id)], redrive(store, run="second"))
        assert store.triage([handle(store, id)], Return("first")) == [False]
        assert store.triage([handle(store, id)], Return("second")) == [True]
        assert look(store, id) == before and before.redrives == 1
        assert before.run == "first" or not store.traits.atomic_moves  # otherwise the message is stored as if imported

    @takes("triages")
    def test_what_was_run_since_is_not_returned(self, store: Store, clock: ManualClock) -> None:
        leased, failed, crashed, dead, done = (bury(store, task=name) for name in "abcde")
        store.triage([handle(store, id) for id in (leased, failed, crashed, dead, done)], Redrive(run="r"))
        held = {d.message.id: d for d in claim(store, lease_ms=1000)}
        settle(store, held[failed], RetryAt(clock() + 60_000), fault=fault())
        settle(store, held[dead], DeadLetter("permanent"))
        settle(store, held[done], Ack(keep_ms=None))
        if store.traits.counts_crashes:
            settle(store, held[crashed], RetryAt(clock() + 60_000, crashed=True))
        seen = [handle_of(store, id) for id in (leased, failed, crashed, dead, done)]
        assert store.triage(seen, Return("r")) == [False] * 5

    @takes("triages")
    def test_what_came_back_free_is_returned(self, store: Store, clock: ManualClock) -> None:
        id = bury(store, why=fault("old"))
        before = look(store, id)
        store.triage([handle(store, id)], Redrive(run="r"))
        settle(store, claim_one(store), RetryAt(clock() + 9000, counts=False, held=True), fault=fault("new", error="E"))
        assert store.triage([handle_of(store, id)], Return("r")) == [store.traits.finds]
        if not store.traits.finds:  # the message has left the store
            return
        message = look(store, id)
        assert (message.rested_ms, message.held_ms, message.due_ms) == (before.rested_ms, before.held_ms, None)
        assert [f.text for f in message.faults] == ["old", "new"]  # the fault of the later run stays
        (group,) = store.failure_groups()
        assert (group.error, group.text) == ("ValueError", "old")

    @takes("triages")
    def test_only_what_the_run_moved_is_returned(self, store: Store) -> None:
        by_hand, fresh, dead = bury(store), put_one(store, delay_ms=5000), bury(store)
        store.triage([handle(store, by_hand)], Redrive())
        seen = [handle_of(store, id) for id in (by_hand, fresh, dead)]
        assert store.triage(seen, Return("r")) == [False] * 3

    @takes("triages")
    def test_a_redrive_by_hand_ends_what_can_be_returned(self, store: Store) -> None:
        id = bury(store)
        store.triage([handle(store, id)], Redrive(run="r"))
        settle(store, claim_one(store), DeadLetter("permanent"))
        store.triage([handle(store, id)], Redrive())
        assert store.triage([handle_of(store, id)], Return("r")) == [False]
        assert given(store, id).run is None

    @takes("triages")
    def test_a_returned_handle_is_of_the_redrive_that_was_seen(self, store: Store) -> None:
        id = bury(store)
        store.triage([handle(store, id)], redrive(store, run="r"))
        assert store.triage([Handle(id, 0, Lane.READY), Handle(id, 1, Lane.DEAD)], Return("r")) == [False, False]
        assert store.triage([Handle(id, 1, Lane.READY)] * 2, Return("r")) == [True, False]


class ReadmitRules(Contract):
    @takes("triages")
    def test_an_isolated_message_goes_back_to_the_dead(self, store: Store, clock: ManualClock) -> None:
        id = bury(store, why=fault(), reason="exhausted")
        died_of = look(store, id).reason
        clock.advance("1h")
        store.triage([handle(store, id)], Isolate("poison"))
        store.triage([handle(store, id)], Isolate("poison indeed"))
        rested_ms = look(store, id).rested_ms
        clock.advance("1h")
        assert store.triage([handle(store, id)], Readmit("mended")) == [True]
        message = look(store, id)
        assert (message.lane, message.reason, message.rested_ms) == (Lane.DEAD, died_of, rested_ms)
        assert [(g.fingerprint, g.count) for g in store.failure_groups()] == [("f" * 16, 1)]
        assert [m.id for m in store.peek(Lane.DEAD, where=Filter(fingerprint="f" * 16)).messages] == [id]
        assert store.triage([handle(store, id)], Readmit("again")) == [False]

    @takes("triages")
    def test_what_was_never_dead_keeps_its_reason(self, store: Store) -> None:
        id = bury(store)
        store.triage([handle(store, id)], Redrive(run="r"))
        settle(store, claim_one(store), Quarantine(reason="crashed"))
        assert store.triage([handle(store, id)], Readmit("mended")) == [True]
        assert (look(store, id).lane, look(store, id).reason) == (Lane.DEAD, "crashed")

    @takes("triages")
    def test_a_redrive_from_quarantine_is_returned_there(self, store: Store) -> None:
        id = bury(store, why=fault())
        store.triage([handle(store, id)], Isolate("poison"))
        before = look(store, id)
        store.triage([handle(store, id)], redrive(store, run="r"))
        assert store.triage([handle(store, id)], Return("r")) == [True]
        assert look(store, id) == before and before.lane is Lane.QUARANTINE

    @takes("triages")
    def test_only_quarantined_messages_are_readmitted(self, store: Store) -> None:
        dead, ready = bury(store), put_one(store)
        seen = [handle(store, dead), handle_of(store, ready), Handle(dead, 0, Lane.QUARANTINE)]
        assert store.triage(seen, Readmit("no")) == [False] * 3


class LineRules(Contract):
    """Rules of the return of a redriven message whose queue has groups."""

    def strict(self, store: Store, on_dead: OnDead) -> None:
        store.configure("default", group_width=1, group_order=GroupOrder.STRICT, on_dead=on_dead)

    def settle_group(self, store: Store, decision: DeadLetter | Ack) -> Message:
        delivery = store.exchange([], [ClaimRequest("default", 1, LEASE_MS)]).deliveries[0]
        store.exchange([Settlement(delivery.receipt, decision)], [])
        return delivery.message

    @takes("widths")
    def test_a_returned_head_blocks_again(self, store: Store) -> None:
        self.strict(store, OnDead.BLOCK)
        first, second = put(store, draft(group="g"), draft(group="g"))
        self.settle_group(store, DeadLetter("permanent"))
        before = look(store, first)
        store.triage([handle(store, first)], Redrive(run="r", delay_ms=5000))
        assert store.triage([handle(store, first)], Return("r")) == [True]
        assert look(store, first) == before
        assert store.groups("default") == [Group("default", "g", 1, 1, 1, first)]
        assert claim(store) == []
        store.triage([handle(store, first)], Discard("seen"))
        assert claimed_ids(store) == [second]

    @takes("widths")
    def test_it_does_not_block_where_the_line_went_on(self, store: Store) -> None:
        self.strict(store, OnDead.BLOCK)
        first, second = put(store, draft(group="g"), draft(group="g"))
        self.settle_group(store, DeadLetter("permanent"))
        store.triage([handle(store, first)], Redrive(run="r", to_queue="q"))
        assert store.triage([handle(store, first)], Return("r")) == [True]
        assert store.groups("q") == []
        assert (look(store, first).queue, claimed_ids(store)) == ("default", [second])

    @takes("widths")
    def test_it_does_not_block_where_nothing_does_any_more(self, store: Store) -> None:
        self.strict(store, OnDead.BLOCK)
        first, second = put(store, draft(group="g"), draft(group="g"))
        self.settle_group(store, DeadLetter("permanent"))
        store.triage([handle(store, first)], Redrive(run="r", delay_ms=5000))
        store.configure("default", on_dead=OnDead.SKIP)
        assert store.triage([handle(store, first)], Return("r")) == [True]
        assert claimed_ids(store) == [second]

    @pytest.mark.parametrize("delay_ms", [0, 5000])
    @takes("widths")
    def test_the_place_of_a_returned_one_goes_to_the_next(self, store: Store, delay_ms: int) -> None:
        self.strict(store, OnDead.SKIP)
        first = put_one(store, group="g")
        self.settle_group(store, DeadLetter("permanent"))
        store.triage([handle(store, first)], Redrive(run="r", delay_ms=delay_ms))
        second = put_one(store, group="g")
        assert store.groups("default") == [Group("default", "g", 1, 1, 1)]
        assert store.triage([handle(store, first)], Return("r")) == [True]
        assert store.groups("default") == [Group("default", "g", 1, 1)]
        assert claimed_ids(store) == [second]

    @takes("widths")
    def test_a_returned_one_that_was_parked_leaves_the_line(self, store: Store) -> None:
        first = put_one(store, group="g")
        self.settle_group(store, DeadLetter("permanent"))
        (second,) = put(store, draft(group="g"))
        store.triage([handle(store, first)], Redrive(run="r"))
        assert store.groups("default") == [Group("default", "g", 1, 1, 1)]
        assert store.triage([handle(store, first)], Return("r")) == [True]
        assert store.groups("default") == [Group("default", "g", 1, 1)]
        assert look(store, first).lane is Lane.DEAD
        assert claimed_ids(store) == [second]
