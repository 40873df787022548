"""What happens to the store is said on a page that somebody watches: on each engine, with a worker. Each test prints
after how many seconds the page said it, and how many of them after the store itself could tell."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.support import guard
from tests.support.browsing.room import PATIENCE_S
from tests.support.browsing.seeding import past
from tests.support.browsing.stage import Stage, stage, stopped
from tests.support.turns import in_turn

from redrive import Gates
from redrive.history.recorder import Minutes
from redrive.history.writer import HistoryWriter
from redrive.triage import pauses

pytestmark = [pytest.mark.xdist_group("web-truth")]
expect.set_options(timeout=PATIENCE_S * 1000)
ENGINES = [pytest.param(engine, marks=in_turn(n, 3)) for n, engine in enumerate(("sqlite", "postgres", "redis"))]
MILLIONS, MOST = 2_000_000, 10_000
Tell = Callable[[str, Callable[[], object], float, Callable[[], object]], None]
each_engine = pytest.mark.parametrize("at", ENGINES, indirect=True)


@pytest.fixture(scope="module")
def at(request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One room for all tests of an engine: each leaves it as the next one wants it."""
    with stage(request.param, tmp_path_factory.mktemp("web-truth"), browser) as made:
        yield made


@pytest.fixture(scope="module")
def worker(at: Stage) -> Iterator[None]:
    """A worker of what needs one, with a scheduler."""
    with at.home.worker("--queues", "billing,crm,mail,reports,media,data", "--name", "main"):
        yield


@pytest.fixture
def told(at: Stage, capsys: pytest.CaptureFixture[str]) -> Tell:
    def tell(line: str, says: Callable[[], object], began_s: float, known: Callable[[], object]) -> None:
        row = at.measure(line, says, began_s, known)
        with capsys.disabled():
            print(f"\n{row}", end="")

    return tell


@each_engine
def test_schedule_that_nobody_runs_and_then_that_somebody_does(
    at: Stage, told: Tell, request: pytest.FixtureRequest
) -> None:
    told("no scheduler runs a schedule", at.needs("no scheduler runs", "heartbeat"), time.monotonic(), lambda: True)
    request.getfixturevalue("worker")
    known = lambda: not any("scheduler" in need.text for need in at.home.app.status().needs)  # noqa: E731
    told("it runs again", lambda: not at.needs("no scheduler runs")(), time.monotonic(), known)


@pytest.mark.usefixtures("worker")
@each_engine
def test_messages_die_by_cause_and_are_quarantined(at: Stage, told: Tell) -> None:
    app, began_s = at.home.app, time.monotonic()
    put(at, "mail.send", ["nobody"])
    told("a message is dead", at.reads("[data-part=groups] tr", "ValueError"), began_s, lambda: app.counts("mail").dead)
    at.until(at.needs("1 message is dead"), "the need of dead messages")
    began_s = time.monotonic()
    app.dlq.quarantine([next(iter(app.dlq.select("task:mail.send"))).id], reason="look at it first", actor="ann")
    told("a message is in quarantine", at.needs("1 message is in quarantine"), began_s, lambda: True)


@pytest.mark.usefixtures("worker")
@each_engine
def test_breaker_opens_and_is_then_held_open_by_a_person(at: Stage, told: Tell) -> None:
    app, began_s = at.home.app, time.monotonic()
    put(at, "crm.push", range(60))
    says = at.needs("breaker of crm-api is open", "wait for it", "since")
    told("a breaker opens", says, began_s, lambda: state_of(at) == "open")
    app.flow.open("crm-api", reason="their maintenance", actor="ann")
    chip = at.page.locator('[data-part=queues] tr[data-row="crm"] .chip[title*="held open by ann"]')
    told("a breaker is held open", chip.count, time.monotonic(), lambda: True)
    assert at.reads("[data-part=dependencies]", "crm-api forced open")()
    assert not at.page.locator("[data-part=first]").count(), "the store is not empty any more"
    waiting = app.counts("crm").waiting
    at.page.goto(f"{at.site}/flow")
    counted = int(at.page.locator('tr[data-row="crm-api"] td').nth(8).inner_text().replace(",", ""))
    assert counted == waiting > 0
    at.at.open("/")


@pytest.mark.usefixtures("worker")
@each_engine
def test_objective_burns(at: Stage, told: Tell) -> None:
    minute, minutes = at.home.app.store.now_ms() // 60_000, Minutes()
    for ago in range(90):
        minutes[minute - ago] = {"a": 100, "g": 20, "e": 100, "o0done": 20, "o4dead": 80}
    began_s = time.monotonic()
    HistoryWriter(at.home.app.store).write({("billing", "billing.charge"): minutes})
    told(
        "an objective pages",
        at.needs("objective of task billing.charge", "Now", "times too fast"),
        began_s,
        lambda: True,
    )


@pytest.mark.usefixtures("worker")
@each_engine
def test_run_is_stopped_by_its_canary_and_another_waits_for_approval(at: Stage, told: Tell) -> None:
    app = at.home.app
    put(at, "billing.charge", range(12))
    at.until(lambda: app.counts("billing").dead == 12, "the dead")
    picked = app.dlq.select("task:billing.charge")
    run, began_s = picked.plan(canary=3, attempts=1).start(reason="the bank is up", actor="ann"), time.monotonic()
    says = at.needs(f"run {run.id} stopped itself", "canary")
    told("a run is stopped by its canary", says, began_s, lambda: run.state == "stopped")
    plan = picked.plan(canary=0, gates=Gates(approval="bob"))
    run, began_s = plan.start(reason="now it is", actor="ann"), time.monotonic()
    told("a run waits for approval", at.needs(run.id, "approval by bob is awaited"), began_s, lambda: run.why)
    run.cancel(actor="ann")
    told("it waits no more", lambda: not at.needs(run.id)(), time.monotonic(), lambda: run.state == "cancelled")


@pytest.mark.usefixtures("worker")
@each_engine
def test_run_is_stuck_behind_a_breaker(at: Stage, told: Tell) -> None:
    """`crm-api` is held open."""
    app = at.home.app
    with past(at.home, 0) as now:
        now.die("crm.push", [900])
    plan = app.dlq.select("task:crm.push").plan(canary=0)
    run, began_s = plan.start(reason="once they are back", actor="ann"), time.monotonic()
    told(
        "a run is stuck",
        at.needs(run.id, "moves nothing: the breaker of crm-api is held open"),
        began_s,
        lambda: stuck(at),
    )
    began_s = time.monotonic()
    run.pause(actor="ann", reason="until tomorrow")
    told("a run is paused on purpose", at.needs(f"run {run.id} is paused", "Note"), began_s, lambda: True)


@pytest.mark.usefixtures("worker")
@each_engine
def test_what_somebody_stopped_on_purpose_comes_last(at: Stage, told: Tell) -> None:
    app = at.home.app
    at.at.open("/tasks")
    began_s = time.monotonic()
    app.pause_task("mail.send", reason="the form is being mended", actor="ann")
    told("a task is paused", at.reads('tr[data-row="mail.send"]', "paused"), began_s, lambda: True)
    at.at.open("/")
    began_s = time.monotonic()
    pauses.pause(app.store, "reports", actor="ann", reason="the warehouse moves")
    told("a queue is paused", at.reads('[data-part=queues] tr[data-row="reports"]', "paused"), began_s, lambda: True)
    needs = at.page.locator("[data-part=needs] li").all_text_contents()
    kinds = [each.split()[0] for each in needs]
    assert kinds == sorted(kinds, key=["Now", "Today", "Note"].index) and kinds[-1] == "Note", needs
    app.resume_task("mail.send", actor="ann")


@pytest.mark.usefixtures("worker")
@each_engine
def test_parked_is_no_scheduled(at: Stage, told: Tell) -> None:
    """The queue `reports` is paused, and has room for one of each group."""
    began_s = time.monotonic()
    with past(at.home, 0) as now:
        now.put("report.build", range(4), group="tenant-acme")
    says = at.reads("[data-part=counts] li", "Parked", "3")
    told("messages are parked", says, began_s, lambda: True)
    assert at.home.app.counts("reports").parked == 3
    for lane, rows in (("parked", 3), ("scheduled", 0)):
        at.page.goto(f"{at.site}/messages?lane={lane}&queue=reports")
        expect(at.page.locator("main tbody tr")).to_have_count(rows)
    at.at.open("/")


@pytest.mark.usefixtures("worker")
@each_engine
def test_worker_hangs_and_is_killed(at: Stage, told: Tell) -> None:
    app = at.home.app
    with at.home.worker("--queues", "stats", "--name", "victim", "--lease", "6s") as victim:
        began_s = time.monotonic()
        put(at, "stats.roll", [1])
        says = at.needs("victim-0 is hung: stats.roll blocks", "Now")
        told("a worker is hung", says, began_s, lambda: any(each.hung for each in app.workers()))
        began_s = time.monotonic()
        guard.kill_tree(victim.pid)
        told("a worker is killed", at.needs("victim-0 is gone"), began_s, lambda: gone(at))
        expect(at.page.locator("[data-part=counts]")).to_contain_text("gone")


@pytest.mark.usefixtures("worker")
@each_engine
def test_every_surface_lists_the_same(at: Stage) -> None:
    app = at.home.app

    def lists() -> list[list[str]]:
        asked = at.page.request.get(f"{at.site}/", headers={"Accept": "application/json"}).json()
        status = app.status()
        return [[need.text for need in status.needs], [each["text"] for each in asked["needs"]]]

    at.until(lambda: (two := lists())[0] == two[1], "the same list")
    for text in lists()[0]:
        at.until(at.needs(text), text)


@pytest.mark.usefixtures("worker")
@each_engine
def test_poller_never_gets_the_answer_of_its_last_poll(at: Stage) -> None:
    seconds = [6] if os.environ.get("TEST_SOAK") is None else [6, 60]
    other = at.at.context.request
    for rest_s in seconds:
        asked = other.get(f"{at.site}/queues", headers={"Accept": "application/json"}).json()
        before = next(each["dead"] for each in asked["queues"] if each["queue"] == "data")
        with past(at.home, 0) as now:
            now.die("data.take_in", [[{"row": 1}]])
        time.sleep(rest_s)
        asked = other.get(f"{at.site}/queues", headers={"Accept": "application/json"}).json()
        assert next(each["dead"] for each in asked["queues"] if each["queue"] == "data") == before + 1
        assert asked.get("age_s", 0) < 5 and "stale" not in asked, json.dumps(asked)[:400]


@pytest.mark.usefixtures("worker")
@each_engine
def test_times_tick_and_what_an_action_said_goes(at: Stage, told: Tell) -> None:
    at.at.open("/groups")
    time_shown = at.page.locator("main tbody time span").nth(1)
    first, began_s = time_shown.inner_text(), time.monotonic()
    told("times tick", lambda: time_shown.inner_text() != first, began_s, lambda: True)
    at.at.open("/queues/media")
    at.page.locator("summary", has_text="Pause").click()
    at.page.locator("details[open].do").get_by_label("Reason").fill("a look")
    at.page.locator("details[open].do").get_by_role("button", name="Pause").click()
    expect(at.page.locator(".said")).to_contain_text("paused")
    pauses.resume(at.home.app.store, "media", actor="ann")
    told("a flash goes", lambda: not at.page.locator(".said").count(), time.monotonic(), lambda: True)
    at.at.open("/")


@pytest.mark.usefixtures("worker")
@each_engine
def test_store_stops_and_is_killed(at: Stage, told: Tell) -> None:
    expect(at.page.locator("#live-state")).to_have_text("live")
    began_s = time.monotonic()
    with stopped(at):
        told("the store is stopped", at.reads(".bar.lost", "has not answered since"), began_s, lambda: True)
        assert at.page.title().startswith("⚠ ")
        assert float(at.page.locator("[data-part=needs] .needs").first.evaluate(OPACITY)) < 1
    began_s = time.monotonic()
    told("it goes on", lambda: not at.page.locator(".bar.lost").count(), began_s, lambda: True)
    assert not at.page.title().startswith("⚠ ")
    began_s = time.monotonic()
    if at.server is not None:
        at.server.kill()
    else:
        for end in ("", "-wal", "-shm"):
            (at.home.folder / f"work.db{end}").unlink()
    told("the store is killed", at.reads(".bar.lost", "has not answered since"), began_s, lambda: True)
    assert at.page.title().startswith("⚠ ")
    at.at.errors[:] = [each for each in at.at.errors if "503" not in each]


OPACITY = "each => getComputedStyle(each).opacity"


def put(at: Stage, task: str, values: Iterable[object]) -> None:
    with past(at.home, 0) as now:
        now.put(task, values)


def stuck(at: Stage) -> bool:
    return any("moves nothing" in need.text for need in at.home.app.status().needs)


def state_of(at: Stage) -> str | None:
    return at.home.app.flow.show("crm-api", waiting=False).breaker


def gone(at: Stage) -> bool:
    return any(each.gone and "victim-0" in each.name for each in at.home.app.workers())


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_two_million_messages(
    engine: str, browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One more in a store of two millions is on the page, or the page says how old its figures are."""
    with stage(engine, tmp_path, browser) as at:
        app = at.home.app
        draft = app.tasks["mail.send"].using(delay="7d").draft("user@example.net")
        for _ in range(MILLIONS // MOST):
            app.store.put([draft] * MOST)
        put(at, "crm.push", range(5))
        ready = at.reads("[data-part=counts] li", "Ready", "5")
        at.until(lambda: ready() and at.reads("[data-part=counts] li", "Scheduled", "2,000,000")(), "the counts")
        for line, action, says in (
            (
                "one more of 2,000,000",
                lambda: put(at, "crm.push", [9]),
                at.reads("[data-part=counts] li", "Ready", "6"),
            ),
            ("a breaker is held open", lambda: hold_open(at), at.reads("[data-part=dependencies]", "forced open")),
        ):
            action()
            began_s = time.monotonic()
            row = at.measure(line, lambda: says() or at.page.locator(".bar.old").count(), began_s, lambda: True)  # noqa: B023
            with capsys.disabled():
                print(f"\n{row}{'' if says() else ', by the bar'}", end="")
            at.until(says, line)
        asked = at.page.request.get(f"{at.site}/", headers={"Accept": "application/json"}).json()
        assert asked["age_s"] < 5 or asked["stale"]["age_s"] == asked["age_s"]


def hold_open(at: Stage) -> None:
    at.home.app.flow.open("crm-api", reason="their maintenance", actor="ann")
