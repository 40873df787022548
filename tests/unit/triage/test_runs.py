"""A redrive run: what it moves, what it says of that, and what a kill between any two commits leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.redrives import Scene, dies, fails_once, works

import redrive
from redrive.errors import PlanRefused, Refused
from redrive.events import Notice
from redrive.message import (
    Ack,
    DeadLetter,
    Decision,
    Delivery,
    Discard,
    Draft,
    Handle,
    Isolate,
    Lane,
    Redrive,
    RetryAt,
    Swap,
)
from redrive.triage.redrive import plan as plans
from redrive.triage.redrive import progress, records, runner
from redrive.triage.redrive import run as runs
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.records import RedriveSettings
from redrive.triage.redrive.run import Run
from redrive.triage.service import RedriveService


@pytest.fixture
def scene() -> Scene:
    return Scene()


def counts(**said: int) -> dict[str, int]:
    words = ("planned", "moved", "done", "failed", "skipped", "changed", "waiting")
    return dict.fromkeys(words, 0) | said


def test_all_are_moved_once_and_their_first_runs_are_counted(scene: Scene) -> None:
    ids = scene.bury(30)
    run = scene.start(rate="100/s")
    scene.over(run)
    assert run.state == "done" and run.counts == counts(planned=30, moved=30, done=30)
    assert scene.ran == dict.fromkeys(ids, 1)
    assert scene.dead() == []


def test_what_fails_again_at_once_is_dead_again_with_one_redrive_and_its_history(scene: Scene) -> None:
    ids = scene.bury(20)
    run = scene.start()
    scene.over(run, dies)
    assert run.counts == counts(planned=20, moved=20, failed=20)
    assert [m.redrives for m in scene.dead()] == [1] * 20
    assert sorted(m.id for m in scene.dead()) == sorted(ids)
    assert all(len(m.faults) == 2 for m in scene.dead())
    assert [(f.id, f.error, f.text) for f in run.failures(limit=1)] == [(run.failures()[0].id, "ValueError", "bad")]
    assert {f.id for f in run.failures()} == set(ids)


def test_the_first_counted_run_is_the_verdict_and_a_later_one_is_not_counted(scene: Scene) -> None:
    scene.bury(3)
    run = scene.start()
    scene.over(run, fails_once)
    assert run.counts == counts(planned=3, moved=3, failed=3)
    assert sum(scene.ran.values()) == 6 and scene.dead() == []


def test_what_is_free_is_no_verdict(scene: Scene) -> None:
    scene.bury(2)
    snoozed: set[str] = set()

    def snoozes(delivery: Delivery) -> Decision:
        if delivery.message.id in snoozed:
            return Ack()
        snoozed.add(delivery.message.id)
        return RetryAt(scene.store.now_ms() + 500, "snooze", counts=False)

    run = scene.start()
    scene.tick(snoozes, times=4)
    assert run.counts == counts(planned=2, moved=2, waiting=2) and run.state == "running"
    scene.over(run, snoozes)
    assert run.counts == counts(planned=2, moved=2, done=2)


def test_a_canary_that_fails_stops_the_run_and_the_rest_stays_dead(scene: Scene) -> None:
    scene.bury(50)
    run = scene.start(canary=5, rate="100/s")
    scene.over(run, dies)
    assert run.state == "stopped" and "5 of 5 failed" in run.why
    assert run.counts == counts(planned=50, moved=5, failed=5, skipped=45)
    assert [m.redrives for m in scene.dead()].count(0) == 45
    assert any("canary" in line.text and "45" in line.text for line in run.story())
    assert ("run_stopped", run.why) in scene.notices


def test_a_canary_that_holds_lets_the_rest_go(scene: Scene) -> None:
    scene.bury(50)
    run = scene.start(canary=5, rate="500/s")
    scene.tick(works)
    assert run.counts["moved"] <= 5
    scene.over(run)
    assert run.counts == counts(planned=50, moved=50, done=50)


def test_a_stop_rule_stops_it_in_the_middle(scene: Scene) -> None:
    scene.bury(200)
    run = scene.start(rate="50/s", stop_if="failed>20%")
    scene.tick(works, times=15)
    scene.over(run, dies)
    assert run.state == "stopped" and 0 < run.counts["failed"] < 60
    assert run.counts["skipped"] == 200 - run.counts["moved"]


def test_after_its_canary_a_share_is_looked_at_from_twenty_verdicts_on(scene: Scene) -> None:
    scene.bury(40)
    run = scene.start(rate="10/s", canary=5)

    def sixth_and_seventh_die(delivery: Delivery) -> Decision:
        return DeadLetter("exhausted") if 5 < sum(scene.ran.values()) <= 7 else Ack()

    scene.over(run, sixth_and_seventh_die)
    assert run.state == "done" and run.counts["failed"] == 2


def test_a_pause_moves_nothing_and_resuming_goes_on(scene: Scene) -> None:
    scene.bury(100)
    run = scene.start(rate="50/s")
    scene.tick(times=3)
    run.pause(actor="bob", reason="lunch")
    moved = run.counts["moved"]
    scene.tick(times=20)
    assert run.state == "paused" and "bob" in run.why and run.counts["moved"] - moved <= 5
    run.resume(actor="bob")
    scene.over(run)
    assert run.counts == counts(planned=100, moved=100, done=100)
    assert [line.text for line in run.story() if "by bob" in line.text] == ["paused by bob: lunch", "resumed by bob"]


def test_a_cancelled_run_leaves_what_it_has_not_moved(scene: Scene) -> None:
    scene.bury(100)
    run = scene.start(rate="50/s")
    scene.tick(times=3)
    run.cancel(reason="wrong ones")
    scene.tick(times=5)
    assert run.state == "cancelled" and run.counts["waiting"] == 0
    assert run.counts["moved"] + run.counts["skipped"] == 100 and len(scene.dead()) == run.counts["skipped"]
    with pytest.raises(Refused, match="cancelled: it cannot resume"):
        run.resume()


def test_undo_returns_what_has_not_run_as_it_was(scene: Scene) -> None:
    scene.bury(40)
    before = {m.id: m for m in scene.dead()}
    run = scene.start(rate="500/s")
    scene.move(40)
    scene.settle(scene.claim(10))
    scene.carrier.release()
    assert run.undo(actor="bob", reason="wrong ones") == 30
    assert run.state == "cancelled" and run.counts == counts(planned=40, moved=10, done=10, skipped=30)
    assert {m.id: m for m in scene.dead()} == {m.id: before[m.id] for m in scene.dead()} and len(scene.dead()) == 30


def test_a_message_that_changed_since_the_plan_is_left_and_counted(scene: Scene) -> None:
    ids = scene.bury(5)
    run = scene.start()
    scene.store.triage([Handle(ids[0], 0, Lane.DEAD)], Discard("away"))
    scene.store.triage([Handle(ids[1], 0, Lane.DEAD)], Redrive())
    scene.over(run)
    assert run.counts == counts(planned=5, moved=3, done=3, changed=2)


def test_a_moved_message_that_a_person_cancels_is_skipped(scene: Scene) -> None:
    ids = scene.bury(3)
    run = scene.start(delay="1h")
    scene.tick(times=3)
    scene.store.cancel(ids[:1])
    scene.tick(times=80)
    assert run.counts == counts(planned=3, moved=2, waiting=2, skipped=1)


def test_a_plan_is_applied_once(scene: Scene) -> None:
    scene.bury(2)
    run = scene.start()
    plan = records.read_plan(scene.store.cells, run.id)
    assert plan is not None
    with pytest.raises(PlanRefused, match="applied already"):
        runs.begin(scene.store, plan, actor="bob", reason="again")


def test_overlapping_runs_move_no_message_twice(scene: Scene) -> None:
    ids = scene.bury(60)
    runs_of = [scene.start(rate="100/s"), scene.start(rate="100/s")]
    carriers = [scene.carry(run.id, f"c{n}") for n, run in enumerate(runs_of)]
    for _ in range(40):
        for one in carriers:
            one.tick()
        scene.work()
        scene.clock.advance("0.1s")
    assert [run.state for run in runs_of] == ["done", "done"]
    assert sum(run.counts["moved"] for run in runs_of) == 60 == sum(run.counts["changed"] for run in runs_of)
    assert scene.ran == dict.fromkeys(ids, 1)


def test_a_spread_lets_them_come_back_over_that_time(scene: Scene) -> None:
    scene.bury(50)
    scene.start(spread="100s")
    scene.move(50)
    now_ms = scene.store.now_ms()
    late = [(m.due_ms or 0) - now_ms for m in scene.store.peek(Lane.READY, limit=100).messages]
    assert max(late) > 50_000 and min(late) < 50_000 and max(late) <= 100_001


def test_it_is_closed_once_all_verdicts_are_in_and_is_listed_still(scene: Scene) -> None:
    scene.bury(3)
    run = scene.start()
    assert records.index(scene.store).open == (run.id,)
    scene.over(run)
    scene.tick(times=3)
    assert records.index(scene.store) == records.Index((), (run.id,))
    assert run.view().closed and run.counts["done"] == 3


def test_a_kill_between_any_two_commits_loses_no_count(scene: Scene) -> None:
    """Whatever it had in memory is lost; another goes on when the lease has run out."""
    ids = scene.bury(120)
    run = scene.start(rate="100/s", canary=5)
    for n in range(400):
        scene.carrier = scene.carry(run.id, f"carrier-{n}")  # it knows nothing of what the one before did
        scene.tick(dies if n % 2 and n > 20 else works)
        scene.clock.advance("5.1s")
        if run.state != "running":
            break
    assert run.state in ("done", "stopped")
    told = run.counts
    assert told["planned"] == told["moved"] + told["skipped"] + told["changed"] and told["waiting"] == 0
    assert scene.ran == dict.fromkeys([id for id in ids if scene.ran[id]], 1) and len(scene.ran) == told["moved"]
    assert told["changed"] == 0 and told["failed"] == sum(m.redrives for m in scene.dead())


def test_who_lost_the_lease_moves_nothing_more(scene: Scene) -> None:
    scene.bury(100)
    run = scene.start(rate="10/s")
    scene.tick()
    scene.clock.advance("6s")
    other = scene.carry(run.id, "other")
    assert other.tick() is not None
    assert scene.carrier.tick() is None
    scene.clock.advance("1s")
    assert other.tick() is not None and run.view().carried_by == "other"


def test_two_of_the_same_name_carry_a_run_and_take_up_what_the_other_moved(scene: Scene) -> None:
    """Workers of a store that is not durable may have one name: `local/1` in each container."""
    ids = scene.bury(60)
    run = scene.start(rate="50/s")
    first, second = scene.carry(run.id, "local/1"), scene.carry(run.id, "local/1")
    second.tick()
    for _ in range(40):  # the first moves all of them, and is no more
        first.tick()
        scene.clock.advance("0.1s")
    scene.carrier = second
    scene.over(run)
    assert run.counts == counts(planned=60, moved=60, done=60) and scene.ran == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("every_s", [0.1, 0.25, 1.0])
def test_what_a_person_cancels_is_found_in_each_chunk(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    for module in (plans, runner, progress):
        monkeypatch.setattr(module, "CHUNK", 10)
    monkeypatch.setattr(progress, "FIND_MAX", 4)
    ids = scene.bury(50)
    run = scene.start(delay="1h")
    scene.move(50)
    scene.store.cancel(ids[9::10])  # the last of each
    for _ in range(int(120 / every_s)):
        scene.carrier.tick()
        scene.clock.advance(every_s)
    assert run.counts == counts(planned=50, moved=45, waiting=45, skipped=5)
    scene.store.cancel(ids)  # what is found in crowds is found at once
    for _ in range(30):
        scene.carrier.tick()
        scene.clock.advance("0.25s")
    assert run.counts == counts(planned=50, skipped=50) and run.state == "done"


def test_a_message_that_stands_twice_in_a_plan_holds_up_nothing(scene: Scene) -> None:
    """It was moved to quarantine while the plan of both lanes was drawn up."""
    ids = scene.bury(3)
    seen = list(scene.app.dlq.select())
    scene.store.triage([Handle(ids[1], 0, Lane.DEAD)], Isolate("odd"))
    seen += scene.app.dlq.select("lane:quarantine")
    plan = plans.draw_up(scene.store, seen, "", RedriveSettings())
    runs.begin(scene.store, plan, actor="ann", reason="fixed")
    run = Run(scene.store, plan.id, scene.app)
    first, scene.carrier = scene.carry(plan.id, "first"), scene.carry(plan.id, "second")
    for _ in range(2):
        first.tick()
        scene.clock.advance("0.1s")
    scene.clock.advance("6s")  # it is no more, and nobody knows what it moved with its second batch
    scene.over(run)
    told = run.counts
    assert told["planned"] == 4 and told["done"] == told["moved"] == 3 and told["changed"] + told["skipped"] == 1


def test_a_clock_that_is_set_back_makes_no_lease_longer(scene: Scene) -> None:
    scene.bury(10)
    run = scene.start(rate="10/s")
    scene.tick()
    scene.clock._now_ms -= 3_600_000
    scene.carrier = scene.carry(run.id, "other")
    scene.over(run, within=50)
    assert run.counts == counts(planned=10, moved=10, done=10)


def test_a_worker_carries_a_run_and_a_burst_ends_with_it() -> None:
    app, ran = redrive.App("memory://"), []
    down = True

    @app.task(retry=redrive.Retry(max_attempts=1))
    def push(n: int) -> None:
        ran.append(n)
        if down:
            raise ConnectionError("down")

    app.enqueue_many([push.draft(n) for n in range(40)])
    app.run_worker(burst=True)
    assert app.counts().dead == 40
    down = False
    plan = app.dlq.select("error:*ConnectionError").plan(rate="100/s", canary=5, slow_start=False)
    run = plan.start(reason="up again")
    seen: list[str] = []
    app.subscribe(lambda events: seen.extend(e.name for e in events if isinstance(e, Notice)))
    app.run_worker(burst=True)
    assert run.counts == counts(planned=40, moved=40, done=40) and run.state == "done"
    assert sorted(ran[40:]) == list(range(40)) and app.counts().dead == 0
    assert seen.index("run_started") < seen.index("run_done")


def test_who_waits_for_a_run_carries_it_where_no_worker_does() -> None:
    app = redrive.App("memory://")

    @app.task(retry=redrive.Retry(max_attempts=1))
    def push(n: int) -> None:
        raise ConnectionError("down")

    app.enqueue_many([push.draft(n) for n in range(10)])
    app.run_worker(burst=True)
    run = app.dlq.select().plan(canary=0, slow_start=False, stop_if="never").start(reason="up again")
    with pytest.raises(TimeoutError, match="is running"):
        run.wait(timeout=0.5)
    assert run.counts["moved"] == 10 == app.counts().ready
    app.run_worker(burst=True)
    assert run.wait(timeout=30) == "done"
    assert run.counts["failed"] == 10


@pytest.mark.parametrize("key", ["runs", "rules"])
def test_a_worker_goes_on_where_it_cannot_read_what_there_is_to_carry(key: str) -> None:
    app, ran = redrive.App("memory://"), []

    @app.task()
    def push(n: int) -> None:
        ran.append(n)

    app.store.cells.swap([Swap(key, 0, b'{"open": 3, "f": {"kind": "of a newer version"}}')])
    seen: list[str] = []
    app.subscribe(lambda events: seen.extend(e.name for e in events if isinstance(e, Notice)))
    app.enqueue_many([push.draft(1)])
    app.run_worker(burst=True)
    assert ran == [1] and "runs_unavailable" in seen


def test_an_outage_is_told_once_a_minute_however_often_it_is_looked_for_runs(scene: Scene) -> None:
    told: list[str] = []

    def notice(name: str, text: str, about: str = "", /, count: int = 1) -> None:
        told.append(name)

    carrying = RedriveService(scene.app, "one", notice)
    scene.store.close()
    for _ in range(50):
        carrying.look(now=True)
    assert told == ["runs_unavailable"]


def test_a_service_that_can_start_no_thread_tries_again_and_can_be_closed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, started, start = list[str](), list[str](), threading.Thread.start

    def notice(name: str, text: str, about: str = "", /, count: int = 1) -> None:
        told.append(f"{name}: {text}")

    def limited(thread: threading.Thread) -> None:
        if thread.name == "redrive-runs" and not told:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread.name)

    monkeypatch.setattr(threading.Thread, "start", limited)
    scene.bury(1)
    scene.start()
    RedriveService(scene.app, "one", notice).close()
    carrying = RedriveService(scene.app, "one", notice)
    carrying.look(now=True)
    assert told == ["runs_unavailable: can't start new thread"] and started == []
    assert not carrying.busy(["any"])
    carrying.look(now=True)
    carrying.close()
    assert started == ["redrive-runs"]


def test_a_burst_does_not_wait_for_a_canary_that_others_have_to_work() -> None:
    app, ran = redrive.App("memory://"), []

    @app.task(queue="crm", retry=redrive.Retry(max_attempts=1))
    def push(n: int) -> None:
        ran.append(n)
        if len(ran) <= 20:
            raise ConnectionError("down")

    app.queue("mail")
    app.enqueue_many([push.draft(n) for n in range(20)])
    app.run_worker(burst=True)
    run = app.dlq.select().plan(canary=3, slow_start=False).start(reason="up again")
    app.run_worker(["mail"], burst=True)
    assert run.counts == counts(planned=20, moved=3, waiting=3)
    app.run_worker(["crm"], burst=True)
    assert run.counts == counts(planned=20, moved=20, done=20)


def test_a_run_is_not_waited_for_within_an_event_loop(scene: Scene) -> None:
    scene.bury(1)
    run = scene.start()

    async def waits(wait: Callable[[], object]) -> None:
        wait()

    for wait in (run.wait, run.undo):
        with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread"):
            asyncio.run(waits(wait))
    assert run.state == "running"


def test_an_undo_needs_no_health_check(scene: Scene) -> None:
    scene.app.dlq.health("crm-up", lambda: True)
    scene.bury(3)
    run = scene.start(gates=redrive.Gates(health="crm-up"), delay="1h")
    scene.move(3)
    scene.carrier.release()
    assert Run(scene.store, run.id, redrive.App(store=scene.store)).undo() == 3


def test_who_does_not_know_the_health_check_of_a_run_leaves_it_to_others(scene: Scene) -> None:
    scene.bury(3)
    run = scene.start(gates=redrive.Gates(health="crm-up"))
    assert scene.carrier.tick() is None and run.view().carried_by == ""
    scene.clock.advance("6s")
    assert scene.carrier.tick() is None and "no worker knows the health check 'crm-up'" in run.why
    scene.app.dlq.health("crm-up", lambda: True)
    assert scene.carrier.tick() is not None and run.view().carried_by == "one"


@pytest.mark.parametrize("act", ["undo", "cancel"])
def test_a_run_whose_health_check_nobody_knows_can_be_ended(scene: Scene, act: str) -> None:
    scene.bury(3)
    run = scene.start(gates=redrive.Gates(health="crm-pu"))
    assert scene.carrier.tick() is None
    getattr(run, act)(reason="a typo in its gates")
    scene.tick(times=3)
    assert run.view().closed and run.counts == counts(planned=3, skipped=3)


# -- breakers of keys


@pytest.fixture(params=["group", "args.account"])
def keyed(request: pytest.FixtureRequest, scene: Scene) -> tuple[Scene, Callable[[str], str]]:
    """A scene whose dependency is split by tenant; how to bury a message of one."""
    scene.app.dependency("crm", per=request.param, breaker=redrive.Breaker(open_for="5s"))
    scene.app.task(name="t", dependency="crm")(lambda account="": None)

    def bury(tenant: str) -> str:
        group, body = (
            (tenant or None, b"{}") if request.param == "group" else (None, b'{"account":"%s"}' % tenant.encode())
        )
        [put] = scene.store.put([Draft(task="t", group=group, body=body)])
        scene.work(dies)
        scene.clock.advance("1ms")
        scene.ran.clear()
        return put.id

    return scene, bury


def begin(scene: Scene, **words: Any) -> Run:
    """As `Scene.start`, of a plan that knows the app."""
    selection = scene.app.dlq.select("")
    plan = plans.draw_up(scene.store, selection, "", read_settings(**words), app=scene.app)
    runs.begin(scene.store, plan, actor="ann", reason="fixed")
    scene.carrier = scene.carry(plan.id)
    return Run(scene.store, plan.id, scene.app)


def test_a_run_waits_for_the_breaker_of_a_key_that_its_messages_have(keyed: Any) -> None:
    scene, bury = keyed
    for _ in range(3):
        bury("acme")
    scene.app.flow.open("crm", key="acme", reason="down", actor="ann")
    run = begin(scene, rate="100/s")
    scene.tick(times=50)
    assert (run.counts["moved"], run.why) == (0, "the breaker of crm/acme is held open")
    assert ("run_waiting", "the breaker of crm/acme is held open") in scene.notices
    scene.app.flow.close("crm", key="acme", reason="up", actor="ann")
    scene.over(run)
    assert run.state == "done" and run.counts["done"] == 3


def test_the_breaker_of_another_key_holds_a_run_up_in_nothing(keyed: Any) -> None:
    scene, bury = keyed
    for _ in range(3):
        bury("acme")
    scene.app.flow.open("crm", key="other", reason="down", actor="ann")
    run = begin(scene, rate="100/s")
    scene.over(run)
    assert run.counts["done"] == 3


def test_a_run_goes_on_up_to_the_first_message_whose_key_is_held(keyed: Any) -> None:
    scene, bury = keyed
    free = [bury("good") for _ in range(4)]
    held = bury("acme")
    behind = bury("good")
    scene.app.flow.open("crm", key="acme", reason="down", actor="ann")
    run = begin(scene, rate="100/s")
    scene.tick(times=30)
    assert set(scene.ran) == {*free} and "crm/acme" in run.why
    assert {message.id for message in scene.store.peek(Lane.DEAD).messages} == {held, behind}
    scene.app.flow.auto("crm", key="acme", reason="up", actor="ann")
    scene.over(run)
    assert run.counts["done"] == 6


def test_a_run_that_asks_no_breakers_looks_for_no_keys(keyed: Any) -> None:
    scene, bury = keyed
    bury("acme")
    scene.app.flow.open("crm", key="acme", reason="down", actor="ann")
    run = begin(scene, rate="100/s", gates=redrive.Gates(breaker=False))
    scene.over(run)
    assert run.counts["done"] == 1


def test_what_changed_or_has_no_key_is_held_by_none(keyed: Any) -> None:
    scene, bury = keyed
    gone = bury("acme")
    bury("")
    run = begin(scene, rate="100/s")
    scene.app.dlq.discard([gone], reason="gone", actor="ann")
    scene.app.flow.open("crm", key="acme", reason="down", actor="ann")
    scene.over(run)
    assert (run.counts["done"], run.counts["changed"]) == (1, 1)
