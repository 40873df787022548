"""Upper-case keys change the store, once they were asked and given a reason, which the audit log keeps."""

from __future__ import annotations

from threading import Event

import pytest
from tests.support.top import ACTOR, NO, PATIENCE_S, Scene, Watched

from redrive.flow.gates import Gates
from redrive.message import Lane
from redrive.top.model import Model
from redrive.top.screens.plan import PlanScreen
from redrive.triage.group_states import read_states
from redrive.triage.redrive.plan import PlanHandle
from redrive.triage.task_pauses import read_pauses


def test_upper_case_asks_and_changes_nothing_when_it_is_left(scene: Scene) -> None:
    before = scene.entries

    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm")
        await w.press("P")
        await w.until(lambda: w.question)
        assert "pause queue crm?" in w.question
        await w.press("escape")
        await w.until(lambda: not w.question)
        await w.sees("nothing was changed")

    scene.watch(test)
    assert not scene.store.paused() and scene.entries == before


def test_without_a_reason_nothing_is_changed_and_it_keeps_asking(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm")
        await w.press("P")
        await w.until(lambda: w.question)
        await w.type("   ")
        await w.until(lambda: "not done: say why" in w.question)
        await w.type("maintenance")
        await w.sees("queue crm is paused")

    scene.watch(test)
    assert scene.store.paused() == {"crm"} and scene.entries[0].reason == "maintenance"


def test_a_queue_goes_on_without_a_reason(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm")
        await w.answers("P", "their maintenance")
        await w.sees("PAUSED")
        await w.answers("R", "")
        await w.until(lambda: not scene.store.paused())

    scene.watch(test)
    assert [(entry.action, entry.reason) for entry in scene.entries[:2]] == [
        ("resume", ""),
        ("pause", "their maintenance"),
    ]


def test_queue_is_paused_and_resumed_with_its_entries_in_the_audit_log(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm")
        await w.answers("P", "their maintenance")
        await w.sees("PAUSED")
        assert scene.store.paused() == {"crm"}
        await w.press("P")
        await w.sees("pause: not possible")
        await w.answers("R", "they are back")
        await w.until(lambda: not scene.store.paused())

    scene.watch(test)
    told = [(entry.action, entry.about, entry.claimed, entry.reason) for entry in scene.entries[:2]]
    assert told == [
        ("resume", "queue/crm", ACTOR, "they are back"),
        ("pause", "queue/crm", ACTOR, "their maintenance"),
    ]


def test_dead_message_is_retried_and_another_is_discarded(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5")
        await w.sees(scene.dead[0][:23], scene.dead[1][:23])
        retried = w.screen.chosen
        await w.answers("R", "their data is fixed")
        await w.sees(f"message {retried} is back", "[dead 3]")
        discarded = w.screen.chosen
        assert discarded != retried
        await w.answers("D", "ordered twice")
        await w.sees(f"message {discarded} is discarded", "[dead 2]")
        back = scene.message(str(retried))
        assert back is not None and back.lane is Lane.READY and back.redrives == 1
        assert scene.message(str(discarded)) is None

    scene.watch(test)
    assert [(entry.action, entry.reason) for entry in scene.entries[:2]] == [
        ("discard", "ordered twice"),
        ("retry", "their data is fixed"),
    ]


def test_waiting_message_is_cancelled_and_not_retried(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5", "l", "l")
        await w.sees(scene.waiting[0][:23])
        chosen = str(w.screen.chosen)
        await w.press("R")
        await w.sees("retry: not possible")
        await w.answers("C", "ordered twice")
        await w.sees(f"message {chosen}: cancel done")
        found = scene.message(chosen)
        assert found is None or found.reason == "cancelled"

    scene.watch(test)


def test_waiting_message_is_made_due(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5", "l", "l")
        await w.sees(scene.waiting[0][:23])
        chosen = str(w.screen.chosen)
        await w.answers("N", "they wait for it")
        await w.sees(f"message {chosen}: due now, ")
        found = scene.message(chosen)
        assert found is not None and (found.due_ms or 0) <= scene.store.now_ms()

    scene.watch(test)
    assert [(entry.action, entry.reason) for entry in scene.entries[:1]] == [("run-now", "they wait for it")]


def test_task_is_paused_and_resumed_from_a_message(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5")
        await w.sees(scene.dead[0][:23])
        message = scene.message(str(w.screen.chosen))
        assert message is not None
        await w.answers("T", "their release")
        await w.sees(f"task {message.task} is paused until it is resumed")
        assert [*read_pauses(scene.store)] == [message.task]
        await w.answers("E", "released")
        await w.sees(f"task {message.task} is resumed")
        assert not read_pauses(scene.store)

    scene.watch(test)
    assert [(entry.action, entry.reason) for entry in scene.entries[:2]] == [
        ("task-resume", "released"),
        ("task-pause", "their release"),
    ]


def test_group_is_resolved_and_reopened(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("3")
        await w.sees("no such record")
        await w.press("O")
        await w.sees("reopen: not possible")
        await w.answers("S", "fixed")
        await w.sees("is resolved")
        await w.press("ctrl+l")
        await w.sees("resolved")
        assert [each.word for each in read_states(scene.store).values()] == ["resolved"]

    scene.watch(test)
    assert [(entry.action, entry.reason) for entry in scene.entries[:1]] == [("resolve", "fixed")]


def test_plan_of_what_waits_makes_it_due(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5", "l", "l")
        await w.sees(scene.waiting[0][:23])
        await w.press("p")
        await w.sees("lane:scheduled", "would make due")

    scene.watch(test)


def test_plan_of_a_group_shows_frozen_counts_and_moves_nothing_until_it_is_applied(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("3")
        await w.sees("no such record")
        assert "no such record" in w.cursor
        await w.press("p")
        await w.sees("would move", "3 messages", "crm 3", "nothing was moved")
        assert scene.store.counts().dead == 4 and not scene.app.dlq.runs()
        scene.bury("crm.push", "crm", NO, "no such record")  # after the plan: not of it
        await w.answers("A", "crm is back")
        await w.sees("started by ann@ops: crm is back", "planned 3")

    scene.watch(test)
    (run,) = scene.app.dlq.runs()
    assert (run.counts["planned"], run.actor, run.reason) == (3, ACTOR, "crm is back")
    assert run.selector == f"task:crm.push fingerprint:{NO}"


def test_key_pressed_while_a_plan_is_made_is_in_the_next(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.bury("crm.push", "crm", NO, "no such record")
    made, go_on, study = Event(), Event(), PlanScreen.study

    def slow_study(screen: PlanScreen, model: Model) -> PlanHandle:
        plan = study(screen, model)
        made.set()
        assert go_on.wait(PATIENCE_S)
        return plan

    monkeypatch.setattr(PlanScreen, "study", slow_study)

    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm")
        await w.press("p")
        await w.until(made.is_set)
        await w.press("x")
        go_on.set()
        await w.sees("would move", "never by itself")

    scene.watch(test)


def test_plan_begins_as_cautiously_as_elsewhere_and_keys_change_that(scene: Scene) -> None:
    for _ in range(60):
        scene.bury("crm.push", "crm", NO, "no such record")

    async def test(w: Watched) -> None:
        await w.press("2")
        await w.sees("crm")
        await w.press("p")
        await w.sees("canary      5 first", "if failed>20%", "doubled every 10 s")
        await w.press("c")
        await w.sees("canary      50 first")
        await w.press("c", "x", "s")
        await w.sees("canary      none", "never by itself", "slow start  no")
        await w.press("v", "c", "x")
        await w.sees("1/s at most", "canary      5 first", "if failed>20%")
        await w.answers("A")
        await w.sees("story")

    scene.watch(test)
    (run,) = scene.app.dlq.runs()
    settings = scene.app.dlq.run(run.id).plan.settings
    assert (settings.canary, settings.rate, settings.slow_start) == (5, 1.0, False)


def test_more_than_a_hundred_messages_are_typed_before_they_are_moved(scene: Scene) -> None:
    for _ in range(98):
        scene.bury("crm.push", "crm", NO, "no such record")

    async def test(w: Watched) -> None:
        await w.press("3")
        await w.sees("101")
        await w.press("p")
        await w.sees("101 messages")
        await w.press("A")
        await w.until(lambda: w.question)
        await w.type("100")
        await w.until(lambda: "type 101 to confirm" in w.question)
        await w.type("101")
        await w.until(lambda: "say why" in w.question)
        assert not scene.app.dlq.runs()
        await w.type("crm is back")
        await w.sees("planned 101")

    scene.watch(test)


@pytest.mark.parametrize(
    ("keys", "state"), [(["P"], "paused"), (["P", "R"], "running"), (["C"], "cancelled"), (["U"], "cancelled")]
)
def test_run_is_steered_by_its_keys(scene: Scene, keys: list[str], state: str) -> None:
    id = scene.planned()
    actions = {"P": "run pause", "R": "run resume", "C": "run cancel", "U": "run undo"}

    async def test(w: Watched) -> None:
        await w.press("4")
        await w.sees(id[:23])
        for key in keys:
            await w.answers(key, f"why {key}")
            await w.until(lambda key=key: scene.entries[0].action == actions[key])  # type: ignore[misc]
            await w.sees(f"run {id} is")
        await w.sees(state)

    scene.watch(test)
    assert scene.app.dlq.run(id).state == state
    assert scene.entries[0].reason == f"why {keys[-1]}" and scene.entries[0].about == id


def test_run_that_waits_for_a_person_is_approved(scene: Scene) -> None:
    plan = scene.app.dlq.select("queue:crm").plan(gates=Gates(approval="anyone"))
    plan.start(reason="r", actor="bob")

    async def test(w: Watched) -> None:
        await w.press("4")
        await w.sees(plan.id[:23])
        await w.answers("A", "checked")
        await w.sees("is approved")

    scene.watch(test)
    assert scene.entries[0].action == "run approve" and scene.entries[0].claimed == ACTOR


def test_breaker_is_forced_open_closed_and_released(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("7")
        await w.sees("stripe")
        for key, word, state in (("O", "FORCED OPEN", "forced_open"), ("C", "forced closed", "forced_closed")):
            await w.answers(key)
            await w.sees(word)
            assert scene.app.flow.show("stripe").breaker == state
        await w.answers("A")
        await w.until(lambda: scene.app.flow.show("stripe").breaker == "closed")

    scene.watch(test)
    assert [entry.action for entry in scene.entries[:3]] == ["flow"] * 3


def test_what_cannot_be_done_is_said_in_a_line(scene: Scene) -> None:
    async def test(w: Watched) -> None:
        await w.press("5")
        await w.sees(scene.dead[0][:23])
        await w.press("R")
        await w.until(lambda: w.question)
        scene.app.dlq.retry(scene.dead)  # another person was faster
        await w.type("fixed")
        await w.sees("not done: message", "it is not dead any more")

    scene.watch(test)
