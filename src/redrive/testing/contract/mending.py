"""Rules of repairs by hand: replacing a dead message, restoring an export, trends of failure groups, lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from ...errors import Conflict, EnqueueError
from ...message import (
    Ack,
    Cancel,
    DeadLetter,
    Filter,
    GroupOrder,
    Handle,
    Isolate,
    Lane,
    Message,
    OnDead,
    Redrive,
    Replace,
    RetryAt,
    Swap,
)
from ...store import Store
from ..clock import ManualClock
from .base import (
    LONGEST,
    TOO_LONG,
    Contract,
    bury,
    claim,
    claim_one,
    claimed_ids,
    draft,
    fault,
    fresh_id,
    handle,
    look,
    put,
    put_one,
    settle,
    values,
)
from .cells import version
from .weaker import takes


class ReplaceRules(Contract):
    @takes("triages")
    def test_a_message_is_replaced_in_one_commit(self, store: Store) -> None:
        for lane in (Lane.DEAD, Lane.QUARANTINE):
            old, new = bury(store, lane), fresh_id(store)
            mended = draft(id=new, body=b"2", causation_id=old, headers={"redrive-replaces": old})
            assert store.triage([handle(store, old)], Replace(mended, "a typo"), swaps=[Swap(new, 0, b"1")]) == [True]
            assert store.find([old]) == [None]
            message = claim_one(store).message
            assert (message.id, message.body, message.attempt, message.redrives) == (new, b"2", 1, 0)
            assert (message.causation_id, message.headers, values(store, new)) == (old, mended.headers, [b"1"])

    @takes("triages")
    def test_where_the_handle_does_not_hold_nothing_is_written(self, store: Store) -> None:
        old, new = bury(store), fresh_id(store)
        for seen in (Handle(old, 7, Lane.DEAD), Handle(fresh_id(store), 0, Lane.DEAD), Handle(old, 0, Lane.READY)):
            assert store.triage([seen], Replace(draft(id=new), "no"), swaps=[Swap("x", 0, b"1")]) == [False]
        assert (store.find([new]), values(store, "x"), look(store, old).lane) == ([None], [None], Lane.DEAD)

    @takes("triages")
    def test_where_a_swap_does_not_apply_nothing_is_written(self, store: Store) -> None:
        old, new = bury(store), fresh_id(store)
        with pytest.raises(Conflict):
            store.triage([handle(store, old)], Replace(draft(id=new), "no"), swaps=[Swap("x", 7, b"1")])
        assert (store.find([new]), look(store, old).lane) == ([None], Lane.DEAD)

    @takes("triages")
    def test_it_is_for_one_message_under_another_id(self, store: Store) -> None:
        one, other = bury(store), bury(store)
        for handles in ([], [handle(store, one), handle(store, other)]):
            with pytest.raises(ValueError, match="one message"):
                store.triage(handles, Replace(draft(), "no"))
        for id in (one, other):
            with pytest.raises(EnqueueError):
                store.triage([handle(store, one)], Replace(draft(id=id), "no"))
        assert [look(store, id).lane for id in (one, other)] == [Lane.DEAD, Lane.DEAD]

    @pytest.mark.parametrize("key_for_ms", [0, 600_000])
    @takes("triages", "unique")
    def test_its_key_is_free_for_the_draft(self, store: Store, clock: ManualClock, key_for_ms: int) -> None:
        old, new = bury(store, key="k", key_for_ms=key_for_ms), fresh_id(store)
        assert store.triage([handle(store, old)], Replace(draft(id=new, key="k"), "a typo")) == [True]
        assert put_one(store, key="k") == new
        settle(store, claim_one(store), Ack())
        clock.advance("1m")
        after = put_one(store, key="k")
        assert (after == new) == (key_for_ms > 0)  # the key is held exactly as long as requested

    @takes("triages", "unique")
    def test_a_key_that_another_message_holds_is_refused(self, store: Store) -> None:
        old, other = bury(store, key="k"), put_one(store, key="l")
        with pytest.raises(EnqueueError, match=other):
            store.triage([handle(store, old)], Replace(draft(key="l"), "no"), swaps=[Swap("x", 0, b"1")])
        assert (look(store, old).lane, values(store, "x")) == (Lane.DEAD, [None])
        assert put_one(store, key="k") == old

    @takes("triages", "widths")
    def test_a_blocked_group_goes_on(self, store: Store) -> None:
        store.configure("default", group_width=1, group_order=GroupOrder.STRICT, on_dead=OnDead.BLOCK)
        first, second = put(store, draft(group="g"), draft(group="g"))
        settle(store, claim_one(store), DeadLetter("permanent"))
        new = fresh_id(store)
        assert store.triage([handle(store, first)], Replace(draft(id=new, group="g"), "a typo")) == [True]
        delivery = claim_one(store)
        assert delivery.message.id == second
        settle(store, delivery, Ack())
        assert claimed_ids(store) == [new]  # the message joined at the tail of its group


class RestoreRules(Contract):
    def rich(self, store: Store, clock: ManualClock) -> Message:
        """Return a dead message whose fields are all set."""
        id = put_one(
            store,
            task="t",
            queue="q",
            body=b"\xff\x00",
            content="raw",
            priority=1,
            key="k" if store.traits.unique else None,
            group="g",
            deadline_ms=clock() + 10**9,
            keep_ms=5,
            version=3,
            headers={"a": "b"},
            correlation_id="c",
            causation_id="d",
            producer="p",
            traceparent="00-1",
        )
        delivery = claim_one(store, queue="q")
        store.checkpoint(delivery.receipt, b"half\x00")
        settle(store, delivery, RetryAt(clock() + 1000, held=True), fault=fault("first", error="A"))
        clock.advance("2s")
        settle(store, claim_one(store, queue="q"), DeadLetter("exhausted"), fault=fault("second", error="B"))
        store.triage([handle(store, id)], Redrive(attempts=4))
        settle(store, claim_one(store, queue="q"), DeadLetter("permanent"), fault=fault("third", error="C"))
        return look(store, id)

    @takes("triages")
    def test_a_message_is_restored_as_it_was(self, store: Store, clock: ManualClock) -> None:
        message = self.rich(store, clock)
        groups = store.failure_groups()
        assert store.restore([message]) == [False]  # the message is still stored
        store.triage([handle(store, message.id)], Isolate("away"))
        store.triage([handle(store, message.id)], Redrive())
        settle(store, claim_one(store, queue="q"), Ack())
        clock.advance("30d")
        assert store.restore([message, message]) == [True, False]
        assert look(store, message.id) == message
        assert store.failure_groups() == groups
        assert not store.traits.widths or store.groups("q") == []
        for where in (Filter(fingerprint="f" * 16), Filter(error="C"), Filter(reason="permanent"), Filter(queue="q")):
            assert [m.id for m in store.peek(Lane.DEAD, where=where).messages] == [message.id]
        if store.traits.exact_counts:
            assert store.counts("q").dead == 1
        assert store.triage([handle(store, message.id)], Redrive()) == [True]
        assert claim_one(store, queue="q").message.faults == message.faults

    @takes("triages")
    def test_what_lay_in_quarantine_lies_there_again(self, store: Store) -> None:
        id = fresh_id(store)
        poison = Message(id, "t", "q", b"1", id, Lane.QUARANTINE, reason="poison")
        assert store.restore([poison]) == [True]
        message = look(store, id)
        assert (message.lane, message.reason, message.rested_ms) == (Lane.QUARANTINE, "poison", store.now_ms())

    @takes("triages", "unique")
    def test_a_key_that_is_held_is_refused(self, store: Store) -> None:
        held, free = (Message(id, "push", "q", b"1", id, Lane.DEAD, key=key) for id, key in self.ids(store, "k", "l"))
        mine = put_one(store, key="k")
        assert store.restore([held, free]) == [False, True]
        assert store.find([held.id]) == [None]
        assert (put_one(store, key="k"), put_one(store, key="l")) == (mine, free.id)
        twice = [replace(free, id=id) for id, _ in self.ids(store, "", "")]
        assert store.restore(twice) == [False, False]

    @takes("triages", "cells")
    def test_an_import_is_one_commit_with_its_swaps(self, store: Store) -> None:
        messages = [Message(id, "t", "q", b"1", id, Lane.DEAD) for id, _ in self.ids(store, "", "")]
        with pytest.raises(Conflict):
            store.restore(messages, swaps=[Swap("x", 0, b"1"), Swap("y", 7, b"1")])
        assert store.find([m.id for m in messages]) == [None, None] and values(store, "x", "y") == [None, None]
        assert store.restore(messages, swaps=[Swap("x", 0, b"1"), Swap("y", 0, b"2")]) == [True, True]
        assert values(store, "x", "y") == [b"1", b"2"]
        assert store.restore(messages, swaps=[Swap("z", 0, b"3")]) == [False, False]
        assert store.restore([], swaps=[Swap("a", 0, b"4")]) == []
        assert values(store, "z", "a") == [b"3", b"4"]

    @takes("cells")
    def test_settings_of_a_queue_are_one_commit_with_their_swaps(self, store: Store) -> None:
        for paused, key in ((True, "x"), (False, "y")):
            with pytest.raises(Conflict):
                store.configure("q", paused=paused, swaps=[Swap(key, 0, b"1"), Swap("away", 7, b"1")])
            assert ("q" in store.paused()) is not paused and values(store, key) == [None]
            store.configure("q", paused=paused, swaps=[Swap(key, 0, b"1")])
            assert ("q" in store.paused()) is paused and values(store, key) == [b"1"]
        store.configure("q", paused=False, swaps=[Swap("z", 0, b"1")])  # the queue is not paused already
        assert values(store, "z") == [b"1"]

    @takes("cells", "widths")
    def test_settings_of_a_group_are_one_commit_with_their_swaps(self, store: Store) -> None:
        away = Swap("away", 7, b"1")
        with pytest.raises(Conflict):
            store.configure_group("q", "g", width=3, swaps=[Swap("x", 0, b"1"), away])
        assert store.groups("q") == [] and values(store, "x") == [None]
        store.configure_group("q", "g", width=3, swaps=[Swap("x", 0, b"1")])
        assert [group.width for group in store.groups("q")] == [3] and values(store, "x") == [b"1"]

    @takes("cells", "widths")
    def test_a_cell_that_a_change_of_settings_deletes_is_gone(self, store: Store) -> None:
        for _ in range(2):  # the second time nothing else changes
            _deletes(store, lambda swap: store.configure("q", paused=True, swaps=[swap]))
            _deletes(store, lambda swap: store.configure_group("q", "g", width=3, swaps=[swap]))

    @takes("cells", "triages")
    def test_a_cell_that_an_import_deletes_is_gone(self, store: Store) -> None:
        message = Message(fresh_id(store), "t", "q", b"1", "c", Lane.DEAD)
        for _ in range(2):  # the second time the message is stored already
            _deletes(store, lambda swap: store.restore([message], swaps=[swap]))
        _deletes(store, lambda swap: store.restore([], swaps=[swap]))
        assert look(store, message.id).lane is Lane.DEAD

    @takes("cells", "finds")
    def test_a_cancel_is_one_commit_with_its_swaps(self, store: Store) -> None:
        id, away = put_one(store), Swap("away", 7, b"1")
        with pytest.raises(Conflict):
            store.cancel([id], swaps=[Swap("x", 0, b"1"), away])
        (message,) = store.find([id])
        assert message is not None and message.lane is Lane.READY and values(store, "x") == [None]
        assert store.cancel([id], swaps=[Swap("x", 0, b"1")]) == [Cancel.CANCELLED]
        assert store.cancel([id], swaps=[Swap("y", 0, b"1")]) == [Cancel.TOO_LATE]
        assert store.cancel([], swaps=[Swap("z", 0, b"1")]) == []
        assert values(store, "x", "y", "z") == [b"1"] * 3

    def ids(self, store: Store, *keys: str) -> list[tuple[str, str]]:
        return [(fresh_id(store), key) for key in keys]

    @takes("triages")
    def test_what_was_of_the_moment_is_left_behind(self, store: Store) -> None:
        id = fresh_id(store)
        carried = Message(id, "t", "q", b"1", id, Lane.DEAD, due_ms=5, cancel=True, run="r", result=b"1", rested_ms=7)
        assert store.restore([carried]) == [True]
        message = look(store, id)
        assert (message.due_ms, message.cancel, message.run, message.result, message.rested_ms) == (
            *(None, False, None, None, 7),
        )

    @takes("triages")
    def test_a_dead_one_with_a_long_reason_has_its_beginning(self, store: Store) -> None:
        dead, poison = fresh_id(store), fresh_id(store)
        lanes = {dead: Lane.DEAD, poison: Lane.QUARANTINE}
        assert store.restore([Message(id, "t", "q", b"1", id, lane, reason=TOO_LONG) for id, lane in lanes.items()])
        assert (look(store, dead).reason, look(store, poison).reason) == (LONGEST, TOO_LONG)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"lane": Lane.READY},
            {"lane": Lane.DONE},
            {"id": "no id"},
            {"task": ""},
            {"priority": 9},
            {"redrives": -1},
            {"attempt": 2**63},
            {"reason": "\0"},
            {"headers": {"a": "\ud800"}},
        ],
    )
    @takes("triages")
    def test_what_no_store_could_take_is_refused(self, store: Store, wrong: dict[str, Any]) -> None:
        good, bad = fresh_id(store), fresh_id(store)
        messages = [Message(id, "t", "q", b"1", id, Lane.DEAD) for id in (good, bad)]
        with pytest.raises(EnqueueError):
            store.restore([messages[0], replace(messages[1], **wrong)])
        assert store.find([good, bad]) == [None, None]
        assert store.restore([]) == []


class TrendRules(Contract):
    @takes("triages")
    def test_groups_tell_how_many_came_lately(self, store: Store, clock: ManualClock) -> None:
        for why, wait in (("x", "50m"), ("x", "1m"), ("y", "9m"), ("x", "0s")):
            bury(store, why=fault(fingerprint=why * 16))
            clock.advance(wait)
        # Fingerprint x failed 60, 10 and 0 minutes ago, y 9 minutes ago.
        numbers = {g.fingerprint[0]: (g.count, g.recent, g.earlier) for g in store.failure_groups(trend=True)}
        assert numbers == {"x": (3, 2, 1), "y": (1, 1, 0)}
        clock.advance("1ms")
        numbers = {g.fingerprint[0]: (g.count, g.recent, g.earlier) for g in store.failure_groups(trend=True)}
        assert numbers == {"x": (3, 1, 1), "y": (1, 1, 0)}
        assert [(g.recent, g.earlier) for g in store.failure_groups()] == [(0, 0), (0, 0)]
        (only,) = store.failure_groups(where=Filter(fingerprint="x" * 16), trend=True)
        assert (only.recent, only.earlier, only.hour) == (1, 1, 2)


class ListRules(Contract):
    @takes("triages")
    def test_a_filter_takes_several_values(self, store: Store, clock: ManualClock) -> None:
        names = ["a", "b", "c"]
        ids = {
            name: bury(store, task=name, queue=name, reason=name, why=fault(error=name, fingerprint=name * 16))
            for name in names
        }
        for field in ("queue", "task", "reason", "error"):
            self.finds(store, {field: ("a", "c", "nothing")}, [ids["a"], ids["c"]])
        self.finds(store, {"fingerprint": ("a" * 16, "b" * 16)}, [ids["a"], ids["b"]])
        self.finds(store, {"queue": ("a", "b"), "task": ("b", "c")}, [ids["b"]])
        self.finds(store, {"queue": ()}, [])

    def finds(self, store: Store, fields: dict[str, Any], expected: list[str]) -> None:
        where = Filter(**fields)
        assert [m.id for m in store.peek(Lane.DEAD, where=where).messages] == expected
        assert not store.traits.finds or {m.id for m in store.peek(None, where=where).messages} == set(expected)
        assert {g.sample_id for g in store.failure_groups(where=where)} == set(expected)
        seen: list[str] = []
        cursor = None
        while len(seen) < 10:
            page = store.peek(Lane.DEAD, where=where, limit=1, cursor=cursor)
            seen += [m.id for m in page.messages]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == expected

    @takes("triages")
    def test_a_filter_can_ask_for_redrives_and_for_the_run(self, store: Store) -> None:
        fresh, once, twice = (bury(store) for _ in range(3))
        for id, run in ((once, None), (twice, "r"), (twice, "s")):
            store.triage([handle(store, id)], Redrive(run=run))
            settle(store, claim_one(store), DeadLetter("permanent"))
        for n, id in enumerate((fresh, once, twice)):
            self.finds(store, {"redrives": n}, [id])
        if store.traits.atomic_moves:
            self.finds(store, {"run": "s"}, [twice])
        self.finds(store, {"run": "r"}, [])
        store.triage([handle(store, twice)], Redrive(run="t"))
        if store.traits.finds:
            assert [m.id for m in store.peek(None, where=Filter(run="t")).messages] == [twice]
        assert claim(store)


def _deletes(store: Store, change: Callable[[Swap], object]) -> None:
    """Make a cell, and let the change delete it; another change of the version that it had is a conflict."""
    assert store.cells.swap([Swap("x", 0, b"1")]) == [True]
    gone = Swap("x", version(store.cells, "x"), None)
    change(gone)
    assert values(store, "x") == [None]
    with pytest.raises(Conflict):
        change(gone)
