"""Workflows and nested batches end to end: steps in order, results, deaths that a redrive resumes, and kills."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.orders import ONCE, Shop, adds_up

from redrive import Context, context
from redrive.batch import BatchRef
from redrive.errors import ConfigError, EnqueueError, StoreError
from redrive.message import Discard, Handle, Lane


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    made = Shop("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db")
    yield made
    made.app.store.close()


def states(ref: BatchRef) -> dict[str, str]:
    return {part.name: part.state.value for part in ref.info().parts}


def test_steps_run_in_order_and_take_the_results_of_earlier_ones(shop: Shop) -> None:
    ref = shop.order(1, **shop.callbacks)
    assert states(ref) == {
        "shop.charge": "running", "shop.book": "waiting", "shop.mail": "waiting", "shop.close": "waiting",
    }  # fmt: skip
    shop.work()
    assert shop.ran[:2] == [("charge", 1), ("book", 1, 7)]
    assert sorted(shop.ran[2:5]) == [("mail", f"1-{n}") for n in range(3)]
    assert shop.ran[5] == ("close", 1, "label-1")
    assert sorted(shop.ran[6:]) == [("complete",), ("success",)]
    assert ref.state == "done" and set(states(ref).values()) == {"done"}
    assert ref.counts.total == ref.counts.done == 6
    assert shop.app.store.changed_batches() == []


def test_a_callback_counts_the_members_of_all_parts(shop: Shop) -> None:
    @shop.app.task(name="shop.report", ctx=True)
    def report(ctx: Context) -> None:
        shop.note("report", ctx.batch.counts.total, ctx.batch.counts.done)

    shop.order(1, on_success=report.draft())
    nested = shop.app.batch([shop.mail.draft("eu")], name="eu")
    shop.app.batch([nested, shop.mail.draft("own")], name="all", on_success=report.draft()).enqueue()
    shop.work()
    assert sorted(what for what in shop.ran if what[0] == "report") == [("report", 2, 2), ("report", 6, 6)]


def test_messages_add_others_to_their_step_and_later_steps_wait_for_them(shop: Shop) -> None:
    @shop.app.task(name="shop.plan", ctx=True)
    def plan(ctx: Context, emails: list[str]) -> None:
        ctx.batch.add(*(shop.mail.draft(to) for to in emails))

    w = shop.app.workflow(name="news")
    w.step(shop.close, 1).after(w.step(plan, ["a", "b"]))
    ref = w.enqueue()
    shop.bad.add(("mail", "b"))
    shop.work()
    assert sorted(shop.ran) == [("mail", "a"), ("mail", "b")] and ref.state == "partial"
    shop.bad.clear()
    shop.app.dlq.retry(select="step:shop.plan")
    shop.work()
    assert shop.ran[-1] == ("close", 1, "") and ref.state == "done" and ref.counts.done == 4


def test_a_step_that_dies_withholds_the_later_ones_until_its_redrive_resumes_the_workflow(shop: Shop) -> None:
    shop.bad = {"book"}
    refs = [shop.order(n, **shop.callbacks) for n in range(20)]
    shop.work()
    assert {ref.state for ref in refs} == {"partial"}
    assert shop.ran.count(("complete",)) == shop.ran.count(("death",)) == 20
    assert not [what for what in shop.ran if what[0] in ("mail", "close", "success")]
    shop.bad = {("book", 3, 7)}
    plan = shop.app.dlq.select("step:shop.book").plan(canary=2, slow_start=False, rate="1000/s")
    assert plan.plan.total == 20
    plan.start(reason="the carrier is back")
    shop.work()
    ends = [ref.state for ref in refs]
    assert ends.count("done") == 19 and ends[3] == "partial"
    assert shop.ran.count(("success",)) == 19
    charges = [what for what in shop.ran if what[0] == "charge"]
    assert len(charges) == len(set(charges)) == 20, "no step that was done runs again"
    assert len([what for what in shop.ran if what[0] == "close"]) == 19


def test_a_result_that_cannot_be_passed_on_fails_the_step_until_it_returns_another(shop: Shop) -> None:
    returned: list[Any] = ["label", float("nan"), object()]
    undone = []
    told = list[Any]()
    shop.app.subscribe(told.extend)

    @shop.app.task(name="undo", ctx=True, keep_result="1h")
    def undo(ctx: Context) -> object:
        undone.append(ctx.message.id)
        return object()

    @shop.app.task(name="odd", on_dead=undo)
    def odd() -> Any:
        return returned.pop()

    w = shop.app.workflow(name="odd")
    w.step(shop.close, 1, label=w.step(odd).result)
    ref = w.enqueue()
    for left in (2, 1):
        shop.work()
        (dead,) = ref.members()
        assert dead.reason == "rejected" and "cannot get its result" in dead.faults[-1].text
        assert len(returned) == left and ref.state == "partial" and shop.ran == []
        shop.app.dlq.retry([dead.id])
    shop.work()
    assert ref.state == "done" and shop.ran == [("close", 1, "label")]
    dropped = [event.text for event in told if getattr(event, "name", "") == "result_dropped"]
    assert len(undone) == len(dropped) == 2 and all(any(id in text for text in dropped) for id in undone)


def test_a_selector_of_a_batch_takes_the_members_of_its_parts(shop: Shop) -> None:
    shop.bad = {"book"}
    first, second = shop.order(1), shop.order(2)
    shop.work()
    for text, expected in [
        (f"batch:{first.id}", 1), (f"batch:{first.id}/shop.book", 1), (f"batch:{first.id}/shop.charge", 0),
        ("step:shop.book", 2), ("step:*", 2), (f"batch:{second.id} step:shop.book", 1), (f"-batch:{first.id}", 1),
        (f"step:shop.book -batch:{first.id}", 1), (f"batch:{first.id[:8]}*", 1),
    ]:  # fmt: skip
        selection = shop.app.dlq.select(text)
        assert selection.count() == len(list(selection)) == expected, text
    assert [m.task for m in first.members()] == ["shop.book"]


def test_a_map_of_many_is_put_in_parts_once_it_begins(shop: Shop) -> None:
    shop.bad = {("mail", "1-17")}
    ref = shop.order(1, mails=1_100)
    shop.work()
    mails = [what for what in shop.ran if what[0] == "mail"]
    assert len(mails) == len(set(mails)) == 1_100
    assert ref.state == "done" and ref.counts.dead == 1, "one failure is tolerated"
    assert shop.ran[-1] == ("close", 1, "label-1")
    stored = [f"batch-drafts/{ref.id}/shop.mail/{n}" for n in range(5)]
    assert shop.app.store.cells.read(stored) == [None] * 5


def test_a_map_that_begins_at_once_and_an_empty_one(shop: Shop) -> None:
    w = shop.app.workflow(name="mails", on_success=shop.tell.draft("success"))
    w.map(shop.mail, [f"{n}" for n in range(700)])
    nothing = w.map(shop.mail, [])
    w.step(shop.close, 1).after(nothing)
    ref = w.enqueue()
    assert ref.counts.total == 701
    shop.work()
    assert ref.state == "done" and ref.counts.done == 701 and shop.ran[-1] == ("success",)


def test_a_transaction_has_all_messages_of_the_steps_that_begin_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/work.db")

    def enqueue(tx: Any) -> BatchRef:
        w = shop.app.workflow(name="mails", on_success=shop.tell.draft("success"))
        first = w.map(shop.mail, [f"a{n}" for n in range(1_400)])
        w.map(shop.mail, [f"b{n}" for n in range(299)]).named("others")
        w.step(shop.close, 1)
        w.map(shop.mail, [f"c{n}" for n in range(300)]).named("later").after(first)
        return w.enqueue(tx=tx)

    monkeypatch.setattr("redrive.batch.steps.TX_MAX", 1_699)
    with closing(sqlite3.connect(tmp_path / "work.db")) as connection:
        enqueue(connection)
        connection.rollback()
        assert shop.app.counts().ready == 0
        ref = enqueue(connection)
        connection.commit()
        assert ref.counts.open == shop.app.counts().ready == 1_700
        shop.work()
        assert ref.state == "done" and ref.counts.done == 2_000
        monkeypatch.setattr("redrive.batch.steps.TX_MAX", 1_698)
        with pytest.raises(ConfigError, match=r"1,699 messages .* at most 1,698"):
            enqueue(connection)
        assert not connection.in_transaction
    shop.app.store.close()


def test_a_key_makes_a_workflow_unique(shop: Shop) -> None:
    first = shop.order(1)
    again = shop.order(1)
    assert again.id == first.id and again.duplicate and not first.duplicate
    shop.work()
    assert shop.order(1).duplicate
    assert shop.ran.count(("charge", 1)) == 1


def test_a_cancelled_workflow_begins_no_more_steps(shop: Shop) -> None:
    ref = shop.order(1, **shop.callbacks)
    assert ref.cancel(reason="sold out") == 1
    shop.work()
    assert ref.state == "cancelled" and states(ref)["shop.close"] == "cancelled"
    assert shop.ran == [("complete",)]


def test_a_discard_that_waives_lets_the_later_steps_begin(shop: Shop) -> None:
    shop.bad = {"mail"}
    ref = shop.order(1, mails=2)
    shop.work()
    assert ref.state == "partial"
    dead = list(ref.members())
    shop.app.store.triage([Handle(m.id, m.redrives, Lane.DEAD) for m in dead], Discard("we told them", waive=True))
    shop.work()
    assert ref.state == "done" and shop.ran[-1] == ("close", 1, "label-1")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda s, w: None, "has 0 steps"),
        (lambda s, w: (a := w.step(s.mail, "a")).after(w.step(s.mail, "b").after(a)), "wait for each other"),
        (lambda s, w: w.step(s.mail, "a").after(s.app.workflow(name="other").step(s.mail, "b")), "another workflow"),
        (lambda s, w: w.step(s.mail, "a").named("x" * 256), "256 characters"),
        (lambda s, w: w.all([], name="x\x00"), "NUL"),
        (lambda s, w: w.map(s.mail, ["a"]).result, "several messages"),
        (lambda s, w: w.step(s.mail, "a").named("x/y"), "without '/'"),
        (lambda s, w: (w.step(s.mail, "a").named("a"), w.step(s.mail, "b").named("a")), "no other step has"),
        (lambda s, w: w.step(s.book, 1, w.step(s.charge.using(key="k"), 1).result), "has key="),
    ],
)
def test_what_makes_no_workflow_is_refused(shop: Shop, make: Any, why: str) -> None:
    w = shop.app.workflow(name="order")

    def enqueue() -> None:
        make(shop, w)
        w.enqueue()

    with pytest.raises(ConfigError, match=why):
        enqueue()
    assert shop.app.store.counts().ready == 0


def test_a_later_step_that_no_store_takes_is_refused_when_the_workflow_is_enqueued(shop: Shop) -> None:
    for made, why in (
        (shop.mail.using(key="k" * 2000).draft("a"), "2000 bytes"),
        (shop.mail.using(group="g" * 300).draft("a"), "300 characters"),
    ):
        w = shop.app.workflow(name="order")
        w.all([made], name="later").after(w.step(shop.mail, "first"))
        with pytest.raises(EnqueueError, match=why):
            w.enqueue()
    assert shop.app.store.counts().ready == 0


def test_steps_of_one_task_get_names_of_their_own(shop: Shop) -> None:
    w = shop.app.workflow(name="mails")
    first = w.step(shop.mail, "a")
    second = w.step(shop.mail, "b").after(first).named("second")
    third = w.step(shop.mail, "c").after(second).named("shop.mail-2")
    assert [step.name for step in (first, second, third)] == ["shop.mail", "second", "shop.mail-2"]
    ref = w.enqueue()
    shop.work()
    assert ref.state == "done" and shop.ran == [("mail", "a"), ("mail", "b"), ("mail", "c")]


# -- nested batches


def test_batches_in_batches_are_waited_for_on_two_levels(shop: Shop) -> None:
    app = shop.app

    @app.task(name="walk")
    def walk(level: int) -> None:
        shop.note("walk", level)
        if level:
            batch = context().batch
            assert batch is not None
            batch.add(*(walk.draft(level - 1) for _ in range(3)))

    inner = app.batch([walk.draft(2)], name="inner", on_success=shop.tell.draft("inner"))
    middle = app.batch([shop.mail.draft("m"), inner], name="middle", on_success=shop.tell.draft("middle"))
    outer = app.batch([shop.mail.draft("o"), middle], name="outer", on_success=shop.tell.draft("outer"))
    ref = outer.enqueue()
    shop.work()
    assert ref.state == "done" and ref.counts.done == ref.counts.total == 2 + 1 + 3 + 9
    told = [what[0] for what in shop.ran if what[0] in ("inner", "middle", "outer")]
    assert told == ["inner", "middle", "outer"]
    assert [info.id for info in app.batches()] == [ref.id]


def test_a_nested_batch_with_a_death_keeps_the_outer_one_from_success_until_its_redrive(shop: Shop) -> None:
    shop.bad = {("mail", "x")}
    inner = shop.app.batch([shop.mail.draft("x"), shop.mail.draft("y")], name="inner")
    with shop.app.batch(name="outer", **shop.callbacks) as outer:
        outer.add(shop.mail.draft("z"), inner)
        outer.add(shop.app.batch([], name="nothing"))
    shop.work()
    ref = outer.ref
    assert ref.state == "partial" and states(ref) == {"inner": "partial", "nothing": "done"} and adds_up(ref)
    shop.bad = set()
    shop.app.dlq.select(f"batch:{ref.id}").plan(canary=0).start(reason="mended")
    shop.work()
    assert ref.state == "done" and ref.counts.done == 3
    words = [what[0] for what in shop.ran if what[0] != "mail"]
    assert sorted(words) == ["complete", "complete", "death", "success"]


def test_a_nested_batch_that_is_not_filled_holds_the_outer_one(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def drafts(cut: bool) -> Iterator[Any]:
        yield shop.mail.draft("a")
        if cut:
            raise KeyboardInterrupt
        yield shop.mail.draft("b")

    def outer(cut: bool) -> Any:
        inner = shop.app.batch(drafts(cut), name="inner")
        return shop.app.batch([shop.mail.draft("z"), inner], name="outer", key="k", **shop.callbacks)

    with pytest.raises(KeyboardInterrupt):
        outer(cut=True).enqueue()
    shop.work()
    assert shop.ran == [("mail", "z")]
    ref = outer(cut=False).enqueue()
    shop.work()
    assert ref.state == "done" and ref.counts.total == 3
    assert sorted(what[0] for what in shop.ran) == ["complete", "mail", "mail", "mail", "success"]


@pytest.mark.parametrize("first", [0, 1_200])
def test_a_batch_is_not_sealed_while_a_nested_one_was_not_filled(shop: Shop, first: int) -> None:
    def drafts(cut: bool) -> Iterator[Any]:
        yield from (shop.mail.draft(f"{n}") for n in range(first))
        if cut:
            raise OSError("the file is missing")
        yield shop.mail.draft("last")

    outer = shop.app.batch(name="outer", **shop.callbacks)

    def fill() -> None:
        with outer:
            with pytest.raises(OSError, match="missing"):
                outer.add(shop.mail.draft("z"), shop.app.batch(drafts(cut=True), name="fr"))
            outer.add(shop.app.batch([shop.mail.draft("it")], name="it"))

    with pytest.raises(ConfigError, match="nested batches of 'outer' were not filled: fr"):
        fill()
    assert outer.ref.state == "filling"
    outer.add(shop.app.batch(drafts(cut=False), name="fr"))
    outer.seal()
    shop.work()
    assert outer.ref.state == "done" and outer.ref.counts.done == first + 3
    assert shop.ran.count(("complete",)) == shop.ran.count(("success",)) == 1


def test_a_nested_batch_is_refused_in_a_transaction_and_under_a_name_twice(shop: Shop) -> None:
    nested = shop.app.batch([], name="n")
    with pytest.raises(ConfigError, match="without tx="):
        shop.app.batch([nested], name="outer").enqueue(tx=object())
    with pytest.raises(ConfigError, match="two parts"):
        shop.app.batch([shop.app.batch([], name="n"), shop.app.batch([], name="n")], name="outer").enqueue()
    with pytest.raises(ConfigError, match="no '/'"):
        shop.app.batch([shop.app.batch([], name="n/m")], name="outer").enqueue()


def test_what_is_neither_a_draft_nor_a_batch_is_refused(shop: Shop) -> None:
    batch: Any = shop.app.batch([shop.app.workflow(name="w")], name="outer")  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="is no draft and no batch"):
        batch.enqueue()


# -- kills


def test_a_worker_that_fails_at_any_store_call_leaves_a_workflow_that_ends(tmp_path: Path) -> None:
    """Each call of the store fails once after it was done, as if its answer was lost; a sweep does the rest."""
    step = ended = 0
    while not ended:
        step += 1
        shop = Shop(f"sqlite:///{tmp_path}/{step}.db")
        shop.order(1, mails=300, **shop.callbacks)
        ended = not _cut(shop, step)
        shop.work()
        assert shop.app.batches()[0].state == "done", step
        runs = [what for what in shop.ran if what[0] in ("success", "complete", "close")]
        assert sorted(set(runs)) == [("close", 1, "label-1"), ("complete",), ("success",)], step
        shop.app.store.close()
    assert step > 5


def _cut(shop: Shop, step: int) -> bool:
    """Work until the store's `step`-th put loses its answer; False if there are fewer."""
    store, calls = shop.app.store, 0
    real = type(shop.app).put

    def put(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        done = real(self, *args, **kwargs)
        calls += 1
        if calls == step:
            raise StoreError("the answer is lost")
        return done

    type(shop.app).put = put  # type: ignore[method-assign]
    try:
        shop.work()
    finally:
        type(shop.app).put = real  # type: ignore[method-assign]
    assert store is shop.app.store
    return calls >= step


def test_the_result_of_a_step_is_that_of_the_message_that_an_edit_put_in_its_place(shop: Shop) -> None:
    shop.bad = {("charge", 1), ("charge", 2)}
    ref = shop.order(1)
    for order in (2, 3):
        shop.work()
        (dead,) = ref.members()
        shop.app.dlq.edit(dead.id, args={"order": order}, reason="a typo")
    shop.work()
    assert ref.state == "done" and ("book", 1, 7) in shop.ran
    assert ref.counts.done == ref.counts.total == 6 and ref.counts.opened == 8


# -- what a run sees of its batch


def test_a_callback_counts_the_members_of_all_parts_and_a_step_sees_its_workflow(shop: Shop) -> None:
    seen = []

    @shop.app.task(name="look", retry=ONCE)
    def look() -> None:
        batch = context().batch
        assert batch is not None
        seen.append((batch.counts.total, batch.state, batch.episode))

    shop.order(1, on_complete=look.draft())
    shop.work()
    w = shop.app.workflow(name="looks")
    w.step(look)
    w.enqueue()
    shop.work()
    assert seen == [(6, "done", 1), (1, "running", 1)]


def test_an_episode_of_a_workflow_that_a_redrive_holds_open_ends_with_the_redrive(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.bad = {("mail", "a"), ("mail", "b")}
    w = shop.app.workflow(name="mails", **shop.callbacks)
    w.map(shop.mail, "ab")
    ref = w.enqueue()
    shop.work()
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["redrive.batch.follow"], "redriving", lambda *_: True)
        shop.app.dlq.retry(ids=[next(ref.members()).id])
        shop.work()
        assert shop.ran.count(("complete",)) == 1
    shop.work()
    assert shop.ran.count(("complete",)) == 2
