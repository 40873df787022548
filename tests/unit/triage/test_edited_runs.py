"""A run that changes what waits: what it changes, counts and takes back, and what it leaves as it is."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.redrives import AT_ONCE, Scene, dies, works

from redrive import Breaker
from redrive.errors import ConfigError, SelectorError
from redrive.message import (
    ClaimRequest,
    Decision,
    Deferral,
    Delivery,
    Draft,
    Edit,
    Hasten,
    Lane,
    Message,
    RetryAt,
    WaitFields,
)
from redrive.triage.redrive import records
from redrive.triage.redrive.run import Run

HOUR_MS = 3_600_000


def counts(**said: int) -> dict[str, int]:
    words = ("planned", "moved", "done", "failed", "skipped", "changed", "waiting")
    return dict.fromkeys(words, 0) | said


class Waiting(Scene):
    """An app whose messages wait."""

    def put(self, count: int, **parts: object) -> list[str]:
        drafts = [Draft(task="t", **parts) for _ in range(count)]  # type: ignore[arg-type]
        return [put.id for put in self.store.put(drafts)]

    def later(self, count: int, **parts: object) -> list[str]:
        return self.put(count, delay_ms=HOUR_MS, **parts)

    def edit(self, selector: str, **options: object) -> Run:
        made = self.app.select(selector).plan(**AT_ONCE | options)  # type: ignore[arg-type]
        run = made.start(reason="they must not wait", actor="ann")
        self.carrier = self.carry(run.id)
        return run

    def given(self, run: Run, count: int) -> None:
        """Carry on until so many were tried and their marks written, with nobody to work them."""
        for _ in range(100):
            if sum(run.counts[name] for name in ("moved", "changed")) >= count:
                self.carrier.release()
                return
            self.carrier.tick()
            self.clock.advance("0.05s")
        raise AssertionError(run.counts)

    def finish(self, run: Run) -> None:
        """Carry on until the run is over, with nobody to work its messages."""
        while run.state == "running":
            self.carrier.tick()
            self.clock.advance("0.1s")
        self.carrier.release()

    def all(self) -> dict[str, Message]:
        return {message.id: message for message in self.store.peek(None, limit=10_000).messages}

    def found(self, *ids: str) -> list[Message]:
        return [message for message in self.store.find(ids) if message is not None]


@pytest.fixture
def scene() -> Waiting:
    return Waiting()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"priority": 0}, {"priority": 0}),
        ({"to_queue": "bulk"}, {"queue": "bulk"}),
        ({"deadline": "0s"}, {"deadline_ms": None}),
        ({"priority": 1, "to_queue": "bulk"}, {"priority": 1, "queue": "bulk"}),
    ],
)
@pytest.mark.parametrize("delay_ms", [0, HOUR_MS])
def test_what_an_option_says_changes_and_an_undo_gives_it_back(
    scene: Waiting, option: dict[str, object], said: dict[str, object], delay_ms: int
) -> None:
    ids = scene.put(5, delay_ms=delay_ms, deadline_ms=scene.clock() + 9 * HOUR_MS)
    before = scene.all()
    run = scene.edit("lane:(ready,scheduled) task:t", **option)
    scene.given(run, 5)
    assert all(scene.all()[id] == msgspec.structs.replace(before[id], run=scene.all()[id].run, **said) for id in ids)
    assert run.undo(reason="not so") == 5
    assert scene.all() == before
    assert run.counts == counts(planned=5, skipped=5) and run.view().returned == 5


def test_a_deadline_counts_from_the_change_and_a_delay_puts_off_what_is_due(scene: Waiting) -> None:
    scene.put(2)
    scene.clock.advance("1h")
    began_ms = scene.clock()
    run = scene.edit("lane:ready", delay="10m", deadline="20m")
    scene.given(run, 2)
    for message in scene.all().values():
        assert 600_000 <= (message.due_ms or 0) - began_ms < 602_000
        assert 1_200_000 <= (message.deadline_ms or 0) - began_ms < 1_202_000
    assert run.undo() == 2
    assert all((m.due_ms or 0) < began_ms and m.deadline_ms is None for m in scene.all().values())


def test_what_is_cancelled_never_runs_and_comes_back_when_that_is_undone(scene: Waiting) -> None:
    scene.put(3)
    scene.later(4)
    before = scene.all()
    run = scene.edit("lane:(ready,scheduled)", cancel=True)
    scene.finish(run)
    assert run.counts == counts(planned=7, moved=7, done=7) and not scene.ran
    assert {m.state_at(scene.clock()) for m in scene.all().values()} == {"cancelled"}
    assert run.undo() == 7 and scene.all() == before
    assert run.counts == counts(planned=7, skipped=7)


def test_an_undo_of_a_cancel_says_before_what_it_cannot_bring_back(scene: Waiting) -> None:
    alone, grouped, member = *scene.put(1), *scene.put(1, group="g"), *scene.put(1, batch="b")
    plan = scene.app.select("lane:(ready,parked)").plan(cancel=True)
    assert (plan.total, plan.plan.lasting) == (3, 2)
    run = scene.edit("lane:(ready,parked)", cancel=True)
    scene.finish(run)
    (ended,) = scene.store.batch_counts(["b"])
    assert (ended.open, ended.cancelled) == (0, 1)
    scene.carrier.release()
    assert run.undo() == 1
    assert [m.lane for m in scene.found(alone, grouped, member)] == [Lane.READY, Lane.DONE, Lane.DONE]
    assert scene.store.batch_counts(["b"]) == [ended] and scene.store.check() == []


def test_a_key_that_was_taken_since_keeps_what_was_cancelled_away(scene: Waiting) -> None:
    (old,) = scene.put(1, key="k")
    run = scene.edit("lane:ready", cancel=True)
    scene.finish(run)
    (new,) = scene.put(1, key="k")
    scene.carrier.release()
    assert new != old and run.undo() == 0
    assert [m.state_at(scene.clock()) for m in scene.found(old, new)] == ["cancelled", "ready"]


def test_what_was_claimed_or_changed_since_the_plan_is_left_and_counted(scene: Waiting) -> None:
    running, ran, edited, hurried, rest = scene.later(5)
    plan = scene.app.select("lane:scheduled").plan(**AT_ONCE | {"priority": 0})  # type: ignore[arg-type]
    (m,) = scene.found(edited)

    scene.store.triage([m.edit_handle], Edit("other", (WaitFields(queue="bulk"),)))
    scene.store.triage([m.handle for m in scene.found(hurried, running, ran)], Hasten())
    claimed = {d.message.id: d for d in scene.claim()}
    scene.settle([claimed[ran], claimed[hurried]], lambda d: RetryAt(scene.clock() + HOUR_MS, "retry"))
    before = scene.all()
    run = plan.start(reason="now")
    scene.carrier = scene.carry(run.id)
    scene.given(run, 5)
    assert run.counts["changed"] == 4 and run.counts["moved"] == 1
    after = scene.all()
    assert {id for id in before if before[id] != after[id]} == {rest} and after[running].lane is Lane.LEASED


def test_what_is_due_has_a_canary_that_a_failure_stops(scene: Waiting) -> None:
    scene.put(50)
    run = scene.edit("lane:ready", to_queue="bulk", canary=5, rate="100/s")
    scene.given(run, 5)
    scene.carrier = scene.carry(run.id)
    deliveries = scene.store.exchange([], [ClaimRequest("bulk", 50, 60_000)]).deliveries
    assert len(deliveries) == 5
    scene.settle(deliveries, dies)
    for _ in range(20):
        scene.carrier.tick()
        scene.clock.advance("0.1s")
    assert run.state == "stopped" and "5 of 5 failed" in run.why
    assert run.counts == counts(planned=50, moved=5, failed=5, skipped=45)
    assert sum(m.queue == "default" and m.lane is Lane.READY for m in scene.all().values()) == 45


def test_what_is_not_due_yet_is_done_once_it_is_changed_and_its_outcome_is_not_kept(scene: Waiting) -> None:
    ids = scene.later(12)
    plan = scene.app.select("lane:scheduled").plan(priority=0)
    assert plan.plan.settings.canary == 0 and plan.plan.settings.stop_if == "" and plan.plan.settings.unwatched
    run = scene.edit("lane:scheduled", priority=0)
    scene.finish(run)
    assert run.counts == counts(planned=12, moved=12, done=12) and not scene.ran
    scene.clock.advance("1h")
    scene.work()
    assert scene.ran == dict.fromkeys(ids, 1)
    assert scene.store.cells.read([f"run/{run.id}/v/{id}" for id in ids]) == [None] * 12
    scene.carrier.release()
    assert run.undo() == 0 and run.counts["done"] == 12


def test_a_stopped_edit_leaves_the_rest(scene: Waiting) -> None:
    scene.later(100)
    run = scene.edit("lane:scheduled", cancel=True, rate="50/s")
    scene.tick(times=3)
    run.pause(actor="bob", reason="lunch")
    scene.tick()
    moved = run.counts["moved"]
    scene.tick(times=20)
    assert run.counts["moved"] == moved < 100
    run.cancel(actor="bob", reason="no")
    scene.tick(times=3)
    waiting = scene.store.peek(Lane.READY, limit=1000).messages
    assert run.state == "cancelled" and len(waiting) == 100 - moved and {m.run for m in waiting} == {None}


def test_a_kill_after_the_change_is_made_up_for_by_the_next_runner(scene: Waiting) -> None:
    scene.later(6)
    run = scene.edit("lane:scheduled", cancel=True, rate="20/s")
    scene.carrier.tick()
    scene.carrier = scene.carry(run.id, "two")  # the first runner is gone, with all that it remembered
    scene.clock.advance(records.LEASE_MS / 1000 + 1)
    scene.finish(run)
    assert run.counts == counts(planned=6, moved=6, done=6)


def test_a_group_keeps_its_order_and_flow_control_its_time(scene: Waiting) -> None:
    scene.put(3, group="g")
    why = Deferral("breaker", "crm", ("slot",), scene.clock() + HOUR_MS)
    scene.put(1)
    held = False

    def deferred(delivery: Delivery) -> Decision:
        nonlocal held
        held = delivery.message.group is None
        return RetryAt.deferred(scene.clock() + HOUR_MS, "breaker", why) if held else RetryAt(scene.clock(), "retry")

    scene.settle(scene.claim(2), deferred)
    every = scene.app.select("lane:(ready,scheduled,parked)")
    assert dict(every.plan(to_queue="other").excluded) == {"in a group": 3}
    assert dict(every.plan(delay="1h").excluded) == {"in a group": 3, "held": 1}
    assert every.plan(deadline="1h").total == every.plan(cancel=True).total == every.plan(priority=0).total == 4


def test_the_audit_log_and_the_story_have_it(scene: Waiting) -> None:
    scene.later(2)
    for options, action in (({"priority": 0}, "edit"), ({"cancel": True}, "cancel")):
        run = scene.edit("lane:scheduled task:t", **options)
        scene.finish(run)
        entry = next(iter(scene.app.audit))
        assert (entry.action, entry.reason, entry.count, entry.about) == (action, "they must not wait", 2, run.id)
        assert "done: 2 done" in run.story()[-1].text


@pytest.mark.parametrize("selector", ["lane:leased", "lane:(ready,dead)", "lane:ready or task:t"])
def test_only_what_waits_is_changed(scene: Waiting, selector: str) -> None:
    with pytest.raises(SelectorError, match="lanes of what waits, to change it"):
        scene.app.select(selector).plan(priority=0)


@pytest.mark.parametrize("selector", ["lane:ready", "lane:parked", "lane:(ready,scheduled)"])
def test_a_plan_of_what_waits_says_what_to_change(scene: Waiting, selector: str) -> None:
    with pytest.raises(SelectorError, match="has nothing to change"):
        scene.app.select(selector).plan()


@pytest.mark.parametrize(
    ("selector", "options", "why"),
    [
        ("lane:dead", {"priority": 0}, "only a plan over lane:ready"),
        ("lane:dead", {"deadline": "1h"}, "only a plan over lane:ready"),
        ("lane:dead", {"cancel": True}, "only a plan over lane:ready"),
        ("lane:ready", {"cancel": True, "priority": 0}, "gets no queue, priority, deadline or delay"),
        ("lane:ready", {"cancel": True, "delay": "1h"}, "gets no queue, priority, deadline or delay"),
        ("lane:ready", {"priority": 4}, "a whole number from 0 to 3"),
        ("lane:ready", {"priority": 0, "attempts": 3}, "keeps its attempts"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    scene: Waiting, selector: str, options: dict[str, object], why: str
) -> None:
    scene.put(1)
    with pytest.raises(ConfigError, match=why):
        scene.app.select(selector).plan(**options)  # type: ignore[arg-type]


def test_breakers_hold_no_edit(scene: Waiting) -> None:
    scene.app.dependency("crm", breaker=Breaker())
    scene.app.task(name="t", dependency="crm")(works)
    scene.later(2)
    scene.app.flow.open("crm", reason="it is down")
    run = scene.edit("lane:scheduled", cancel=True)
    scene.finish(run)
    assert run.counts["done"] == 2


def test_the_chunks_cannot_be_read_by_a_program_that_does_not_know_them(scene: Waiting) -> None:
    scene.later(1)
    plan = scene.app.select("lane:scheduled").plan(priority=0)
    (cell,) = scene.store.cells.read([records.chunk_cell(plan.id, 0)])
    assert cell is not None and [len(row) for row in msgspec.json.decode(cell.value)] == [6]
