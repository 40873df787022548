"""Parts of a batch over weeks: counts, results and stored lists that others need after a part has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.orders import ONCE, Shop, adds_up

from redrive import context
from redrive.batch import Batch, BatchRef, BatchState
from redrive.batch.parts import Part
from redrive.batch.state import swap_of
from redrive.errors import ConfigError, Conflict
from redrive.message import Discard, Handle, Keep, Lane
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock


class LateShop(Shop):
    """A shop whose clock can be advanced."""

    clock: ManualClock

    def later(self, span: str) -> None:
        for step in (span, "2m", "2m"):
            self.clock.advance(step)
            self.app.store.exchange([], [])
        self.work()

    def discard(self, ref: BatchRef, step: str = "") -> None:
        dead = [member for member in ref.members() if (member.batch or "").endswith(step)]
        self.app.store.triage([Handle(m.id, m.redrives, Lane.DEAD) for m in dead], Discard("given up"))
        self.work()

    def redrive(self, ref: BatchRef) -> None:
        self.bad = set()
        self.app.dlq.select(f"batch:{ref.id}").plan(canary=0).start(reason="mended")
        self.work()

    def lists(self, ref: BatchRef, step: str) -> int:
        """How many of the first three stored lists of a step there are."""
        cells = self.app.store.cells.read([f"batch-drafts/{ref.id}/{step}/{n}" for n in range(3)])
        return sum(cell is not None for cell in cells)


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LateShop]:
    clock = ManualClock()
    made = LateShop(
        store=MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "work.db", clock_ms=clock)
    )
    made.clock = clock
    yield made
    made.app.store.close()


def test_a_part_that_was_discarded_still_counts_while_the_whole_waits_for_another(shop: LateShop) -> None:
    shop.bad = {("mail", "a"), ("mail", "b")}
    inner = shop.app.batch([shop.mail.draft("a"), shop.mail.draft("c")], name="inner")
    ref = shop.app.batch([shop.mail.draft("b"), inner], name="outer", **shop.callbacks).enqueue()
    shop.work()
    shop.discard(ref, "/inner")
    before = ref.counts
    assert (before.total, before.discarded, before.dead) == (3, 1, 1)
    shop.later("8d")
    assert ref.counts == before and shop.app.store.batch_ids() == [ref.id]
    shop.redrive(ref)
    assert ref.counts.done == 2 and shop.ran.count(("complete",)) == 2, "the redrive ends an episode, too"


def test_the_counts_of_steps_go_with_their_workflow(shop: LateShop) -> None:
    shop.bad = {("mail", "a"), ("mail", "b")}
    w = shop.app.workflow(name="mails")
    for name in "abc":
        w.step(shop.mail, name).named(name)
    ref = w.enqueue()
    shop.work()
    shop.discard(ref, "/a")
    shop.later("8d")
    assert ref.counts.total == 3 and adds_up(ref)
    shop.discard(ref)
    assert ref.state == "partial"
    shop.later("8d")
    assert shop.app.store.batch_ids() == []


def test_a_step_keeps_its_result_while_a_member_that_it_added_waits_for_a_redrive(shop: LateShop) -> None:
    shop.bad = {("mail", "x")}

    @shop.app.task(name="first", retry=ONCE)
    def first() -> str:
        batch = context().batch
        assert batch is not None
        batch.add(shop.mail.draft("x"))
        return "label"

    w = shop.app.workflow(name="order")
    w.step(shop.close, 1, label=w.step(first).result)
    ref = w.enqueue()
    shop.work()
    assert ref.state == "partial"
    shop.later("400d")
    shop.redrive(ref)
    assert ref.state == "done" and shop.ran[-1] == ("close", 1, "label")


def ship_after_a_step_that_adds(shop: LateShop) -> BatchRef:
    """A workflow: `first` returns a label and adds a member in the queue `later`, then `ship` takes the label."""

    @shop.app.task(name="first", retry=ONCE)
    def first() -> str:
        shop.note("first")
        batch = context().batch
        assert batch is not None
        batch.add(shop.mail.using(queue="later").draft("x"))
        return "label"

    @shop.app.task(name="ship")
    def ship(label: str | None) -> None:
        shop.note("ship", label)

    shop.app.queue("later")
    w = shop.app.workflow(name="order", **shop.callbacks)
    w.step(ship, w.step(first).result)
    return w.enqueue()


def forget_done(shop: LateShop) -> None:
    assert shop.app.store.retain("default", done=Keep(count=0))[0] > 0


def test_a_step_keeps_its_result_in_spite_of_retention_while_a_member_that_it_added_waits(shop: LateShop) -> None:
    ref = ship_after_a_step_that_adds(shop)
    shop.app.run_worker(["default"], burst=True)
    assert ref.counts.open == 1
    forget_done(shop)
    shop.work()
    assert ref.state == "done" and ("ship", "label") in shop.ran


@pytest.mark.parametrize("dies_first", [False, True])
def test_no_step_runs_without_the_result_that_retention_removed(
    shop: LateShop, monkeypatch: pytest.MonkeyPatch, dies_first: bool
) -> None:
    """As after the worker was killed between the end of the step and its look at the workflow."""
    told = list[Any]()
    shop.app.subscribe(told.extend)
    ref = ship_after_a_step_that_adds(shop)
    if dies_first:
        shop.bad = {"first"}
        shop.work()
        shop.bad = set()
        shop.app.dlq.retry(select="step:first")
    with monkeypatch.context() as patch:
        patch.setattr("redrive.worker.pipeline.Pipeline.follow", lambda *_: None)
        shop.app.run_worker(["default"], burst=True)
    forget_done(shop)
    for _ in range(2):
        told.clear()
        shop.work()
        assert ref.state == "partial" and not [what for what in shop.ran if what[0] in ("ship", "success")]
        stuck = [event.text for event in told if getattr(event, "name", "") == "batch_stuck"]
        assert stuck and all(ref.id in text and "result of step 'first' is gone" in text for text in stuck)
    ref.cancel(reason="shipped by hand")
    shop.work()
    assert ref.state == "cancelled" and shop.app.store.changed_batches() == []
    assert shop.ran.count(("complete",)) == 1 + dies_first


def test_a_step_after_a_waived_one_gets_none(shop: LateShop) -> None:
    ref = ship_after_a_step_that_adds(shop)
    shop.bad = {"first"}
    shop.work()
    shop.app.dlq.retry(select="step:first")
    shop.work()
    (dead,) = ref.members()
    shop.app.dlq.discard([dead.id], reason="done by hand", waive=True)
    shop.work()
    assert ref.state == "done" and ("ship", None) in shop.ran


def test_an_outer_batch_that_is_filled_for_weeks_knows_how_its_nested_one_ended(shop: LateShop) -> None:
    with shop.app.batch(name="outer", **shop.callbacks) as outer:
        outer.add(shop.app.batch([shop.mail.draft("a")], name="inner"))
        shop.work()
        shop.later("8d")
        outer.add(shop.mail.draft("b"))
    shop.work()
    assert outer.ref.state == "done" and outer.ref.counts.done == 2


def test_a_cancelled_step_puts_no_more_of_its_stored_members(shop: LateShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.batch.steps.follow", lambda *_: None)  # the producer is killed after its first commit
    w = shop.app.workflow(name="mails", **shop.callbacks)
    w.map(shop.mail, [str(n) for n in range(600)])
    ref = w.enqueue()
    assert ref.counts.open == ref.cancel(reason="no") == 250
    shop.work()
    assert ref.state == "cancelled" and ref.counts.total == 250 and shop.ran == [("complete",)]


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_cancel_ends_a_batch_that_names_a_nested_one_which_was_never_begun(
    shop: LateShop, sealed: bool, inner: bool
) -> None:
    store, id = shop.app.store, "0199f3a1-0000-7000-8000-000000000000"
    parts = (Part("eu", nested=True), Part("it", begun=True))[: 1 + inner]
    state = BatchState(id, "outer", shop.clock(), filled=1, sealed=sealed, parts=parts)
    state = replace(state, on_complete=shop.tell.draft("complete"), on_success=shop.tell.draft("success"))
    draft = replace(shop.mail.draft("z"), batch=f"{id}/it" if inner else id)
    store.put([draft], swaps=[swap_of(store, state, None)])
    shop.work()
    ref = BatchRef(id, store)
    assert ref.state == ("waiting" if sealed else "filling")
    ref.cancel(reason="eu will not come")
    shop.work()
    assert ref.state == "cancelled" and shop.ran == [("mail", "z"), *[("complete",)] * sealed]
    assert ref.info().ended_ms is not None and store.changed_batches() == []
    shop.later("8d")
    assert store.batch_ids() == [] and store.cells.read([f"batch/{id}"]) == [None]


def test_nothing_is_left_of_a_workflow_that_was_cancelled(shop: LateShop) -> None:
    ref = shop.order(1, mails=600)
    assert shop.lists(ref, "shop.mail") == 3
    ref.cancel(reason="sold out")
    shop.work()
    shop.later("6d")
    assert ref.state == "cancelled"
    shop.later("2d")
    assert shop.app.store.batch_ids() == [] and shop.lists(ref, "shop.mail") == 0


def test_a_batch_that_is_cancelled_while_it_is_filled_is_forgotten_unless_a_producer_goes_on(shop: LateShop) -> None:
    def begun(key: str) -> Batch:
        batch = shop.app.batch(name="outer", key=key, width=2, **shop.callbacks).__enter__()
        batch.add(shop.mail.draft("a"), shop.app.batch([shop.mail.draft("b")], name="inner"))
        batch.ref.cancel(reason="its producer was killed")
        return batch

    left, batch = begun("left"), begun("resumed")
    shop.work()
    assert left.ref.state == "cancelled" and shop.ran == [] and shop.app.store.changed_batches() == []
    batch = shop.app.batch(name="outer", key="resumed", **shop.callbacks).__enter__()
    batch.add(shop.mail.draft("a"), shop.app.batch([shop.mail.draft("b")], name="inner"), shop.mail.draft("c"))
    batch.seal()
    assert [group.width for group in shop.app.store.groups("default")] == [2]
    shop.work()
    assert batch.ref.state == "cancelled" and shop.ran == [("mail", "c"), ("complete",)]
    assert {id.partition("/")[0] for id in shop.app.store.batch_ids()} == {left.ref.id, batch.ref.id}
    shop.later("8d")
    assert shop.app.store.batch_ids() == []
    with pytest.raises(ConfigError, match="unknown"):
        left.ref.info()


# -- producers


class Killed(BaseException):
    """The producer died here."""


def test_a_producer_that_is_killed_at_any_store_call_leaves_an_outer_batch_that_ends(
    shop: LateShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers finish all that is there before each call; with the same key the next producer goes on."""
    store, calls, killed_at = shop.app.store, 0, 0
    real = {name: getattr(type(store), name) for name in ("put", "mark_batches")}
    is_producer = False

    def call(name: str) -> None:
        def cut(self: object, *args: object, **options: object) -> object:
            nonlocal calls, is_producer
            if is_producer:
                is_producer = False
                shop.work()
                is_producer = True
                done = real[name](self, *args, **options)
                calls += 1
                if calls == killed_at:
                    raise Killed
                return done
            return real[name](self, *args, **options)

        monkeypatch.setattr(type(store), name, cut)

    for name in real:
        call(name)
    for only_nested in (True, False):
        killed_at = calls = 0
        while killed_at <= calls:
            killed_at, calls, shop.ran = killed_at + 1, 0, []
            for _ in range(2):
                own = [] if only_nested else [shop.mail.draft("own")]
                inner = shop.app.batch([shop.mail.draft("a")], name="inner")
                empty = shop.app.batch([], name="empty")
                outer = shop.app.batch([*own, empty, inner], name="outer", key=f"{own}{killed_at}", **shop.callbacks)
                is_producer = True
                try:
                    outer.enqueue()
                except Killed:
                    pass
                finally:
                    is_producer = False
                shop.work()
            assert outer.ref.state == "done" and adds_up(outer.ref), killed_at
            assert outer.ref.counts.done == len(own) + 1
            assert sorted(shop.ran) == sorted(
                [("complete",), ("mail", "a"), *[("mail", "own")] * len(own), ("success",)]
            )


@pytest.mark.parametrize("inner", ["empty", "done"])
def test_a_producer_without_a_key_that_is_killed_right_after_the_seal_loses_no_callback(
    shop: LateShop, monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    monkeypatch.setattr("redrive.batch.fill.follow", lambda *_: None)  # each producer is killed after its last commit
    with shop.app.batch(name="outer", **shop.callbacks) as outer:
        outer.add(shop.app.batch([shop.mail.draft("a")] if inner == "done" else [], name="inner"))
        shop.work()
    shop.work()
    assert outer.ref.state == "done" and ("success",) in shop.ran


def test_the_same_key_enqueues_no_nested_batch_that_was_forgotten(shop: LateShop) -> None:
    def outer(cut: bool = False) -> BatchRef:
        def members() -> Iterator[Any]:
            yield shop.app.batch([shop.mail.draft("a")], name="inner")
            if cut:
                raise Killed
            yield shop.mail.draft("b")

        return shop.app.batch(members(), name="outer", key="k", **shop.callbacks).enqueue()

    shop.bad = {("mail", "b")}
    with pytest.raises(Killed):
        outer(cut=True)
    shop.work()
    for _ in range(2):
        shop.later("8d")
        ref = outer()
        shop.work()
    assert ref.duplicate and ref.counts.total == 2 and shop.ran.count(("mail", "a")) == 1


def test_two_producers_of_one_key_name_a_nested_batch_once(shop: LateShop) -> None:
    first, second = (shop.app.batch(name="outer", key="k") for _ in range(2))
    with first:
        second.__enter__()
        for one in (first, second):
            one.add(shop.app.batch([shop.mail.draft("a")], name="inner"))
        assert len(first.ref.info().parts) == 1
    with pytest.raises(Conflict):
        second.seal()
    shop.work()
    assert first.ref.state == "done" and shop.ran == [("mail", "a")]
