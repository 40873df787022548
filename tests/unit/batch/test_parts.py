"""Parts of a batch over weeks: counts, results and stored lists that others need after a part has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.batch.test_workflows import ONCE, Shop, adds_up

from redrive import context
from redrive.batch import BatchRef
from redrive.message import Discard, Handle, Lane
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
