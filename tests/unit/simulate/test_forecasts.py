"""Forecasts of plans, breakers and queues, from a store's history; and their score."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.support.simulation.endpoints import Fragile
from tests.support.simulation.redrives import Redriving
from tests.support.simulation.world import START_MS

from redrive import App, Backoff, Breaker, Retry
from redrive.flow import breaker as breakers
from redrive.flow import dependency as flow
from redrive.flow.dependency import DependencyState
from redrive.history.writer import HistoryWriter
from redrive.message import Swap
from redrive.presence import QueueWork, WorkerInfo
from redrive.presence.directory import ProcessCell
from redrive.present.forecasts import breaker_words, plan_words, queue_words, score_words
from redrive.simulate.forecast import forecast_breaker, forecast_plan, forecast_queue
from redrive.simulate.score import ScoredForecast, _within, foretell, foretold, read_score
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock
from redrive.triage.redrive.plan import PlanHandle
from redrive.triage.redrive.run import Run

FOREVER = START_MS * 2


def write_minutes(app: App, queue: str, task: str, minutes: list[dict[str, int]]) -> None:
    """The counts of the last minutes, the last one being over."""
    now = app.store.now_ms() // 60_000
    writer = HistoryWriter(app.store)
    writer.write({(queue, task): {now - len(minutes) + n: counts for n, counts in enumerate(minutes)}})
    assert not writer.pending


def foreseen(scene: Redriving, run: Run) -> None:
    assert foretell(scene.store, scene.app, PlanHandle(scene.store, run.plan, scene.app)) is not None


def play_on(scene: Redriving) -> None:
    """Play until the run is over, and closed."""
    scene.play()
    while not scene.run.view().closed:
        scene.clock.advance(1)
        scene.carrier.tick()


# -- plans


def test_a_plan_is_foretold_as_its_run_goes() -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(800)
    run = scene.start(rate="40/s", slow_start=True, canary=5)
    foreseen(scene, run)
    play_on(scene)
    made = foretold(scene.store, run.id)
    score = read_score(scene.store)
    assert made is not None and made.over_s is not None
    assert (made.failed, made.stopped, made.peak_per_s) == (0, "", pytest.approx(40, abs=2))
    assert score.scored[0].off is not None and score.scored[0].off < 0.05
    assert score_words(score) == f"of the last 1, 1 within {100 * score.within:.3g}%"  # type: ignore[operator]


def test_what_earlier_runs_came_to_is_expected_of_the_next() -> None:
    scene = Redriving(Fragile(100_000, outages=((START_MS, START_MS + 1_000),)))
    scene.bury(100)
    first = scene.start(rate="20/s", stop_if="never")
    play_on(scene)
    failed = first.counts["failed"]
    assert 15 < failed < 25
    run = scene.start(rate="20/s", stop_if="never")
    made = forecast_plan(scene.store, scene.app, run.plan)
    assert made is not None and made.basis == "earlier runs" and made.fails == failed / 100
    assert (made.like, made.came_through, made.like_done, made.like_failed) == (1, 1, 100 - failed, failed)
    words = list(plan_words(made))
    assert f"1 of the last 1 runs like it came through: {100 - failed:,} done, {failed:,} failed" in words


def test_a_plan_that_will_stop_itself_is_told_so() -> None:
    scene = Redriving(Fragile(100_000, outages=((START_MS, FOREVER),)))
    scene.bury(100)
    scene.start(rate="20/s", canary=5)
    play_on(scene)
    run = scene.start(rate="20/s", canary=5)
    foreseen(scene, run)
    play_on(scene)
    made = foretold(scene.store, run.id)
    assert made is not None and made.stopped.startswith("canary: 5 of 5 failed (100 %)")
    scored = read_score(scene.store).scored[0]
    assert scored.right and scored.status == "stopped"


def test_a_forecast_that_missed_the_end_counts_as_a_miss() -> None:
    scene = Redriving(Fragile(100_000, outages=((START_MS, FOREVER),)))
    scene.bury(100)
    run = scene.start(rate="20/s", canary=5)
    foreseen(scene, run)  # nothing is known yet: it foretells that all go well
    play_on(scene)
    score = read_score(scene.store)
    assert [(each.right, each.off) for each in score.scored] == [(False, None)]
    assert score_words(score) == "of the last 1, none was near"


def test_the_load_of_a_plan_stands_beside_what_its_tasks_made_in_the_last_hour() -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(1000)
    write_minutes(scene.app, "crm", "crm.push", [{"o0done": 600}, {"o0done": 3000, "o0retry": 600}, {"o0done": 600}])
    run = scene.start(rate="80/s")
    made = forecast_plan(scene.store, scene.app, run.plan)
    assert made is not None
    assert (made.took_per_s, made.took_most_per_s) == (pytest.approx(4800 / 3600), 60)
    assert made.basis == "the last 5m" and made.fails == pytest.approx(600 / 4800)
    assert next(plan_words(made)).endswith("these tasks made 1.33/s in the last hour, 60/s in its busiest minute")


def test_a_large_plan_is_foretold_from_its_first_messages() -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(20_000)
    run = scene.start(rate="100/s", slow_start=True)
    made = forecast_plan(scene.store, scene.app, run.plan)
    assert made is not None and made.over_s == pytest.approx(70 + (20_000 - 1270) / 100, rel=0.03)
    assert made.peak_per_s == pytest.approx(100, abs=6)


@pytest.mark.parametrize(
    ("claims_per_s", "cpu_share", "needs"),
    [(20, 0.1, 0.3), (20, 0.2, 0.6), (20, 0.3, 0.9), (9, 0.1, None), (20, None, None), (None, 0.9, None)],
)
def test_a_plan_whose_workers_lack_a_processor_is_not_comparable(
    claims_per_s: float | None, cpu_share: float | None, needs: float | None
) -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(1000)
    queues, now_ms = (QueueWork(name="crm", concurrency=20),), scene.app.store.now_ms()
    for name in ("one", "two"):  # the plan's 80/s are 40/s more for each
        ProcessCell(scene.app.store).write(
            WorkerInfo(name=name, started_ms=now_ms, seen_ms=now_ms, queues=queues, claims_per_s=claims_per_s,
                       cpu_share=cpu_share)
        )  # fmt: skip
    run = scene.start(rate="80/s", slow_start=False)
    made = forecast_plan(scene.store, scene.app, run.plan)
    assert made is not None and made.workers == 2
    assert made.processor == (None if needs is None else pytest.approx(needs, rel=0.1))
    said = [words for words in plan_words(made) if "not comparable" in words]
    assert bool(said) == made.processor_bound == (needs is not None and needs > 0.8)


def test_nine_of_ten_within_twelve_percent() -> None:
    def one(off: float | None) -> ScoredForecast:
        return ScoredForecast(
            run="r", made_ms=0, total=1, over_s=1, came_s=1, failed=0, came_failed=0, status="done", off=off, right=True
        )

    nine = [one(off / 100) for off in (1, 2, 3, 4, 5, 6, 7, 12, 8)]
    assert _within([*nine, one(0.9)]) == _within([*nine, one(None)]) == (10, 9, 0.12)
    assert _within([one(None)] * 3) == (3, 0, None)


# -- breakers


def waiting(minutes: list[int | None], **rule: object) -> App:
    """An app whose dependency is open, with messages that wait for it."""
    app = App(store=MemoryStore(ManualClock(START_MS)))
    app.dependency("crm", breaker=Breaker(**rule))  # type: ignore[arg-type]
    retry = Retry(max_attempts=100, max_elapsed=None, backoff=Backoff("1s", 2, "10s"))

    @app.task(name="crm.push", queue="crm", dependency="crm", retry=retry)
    def push(n: int) -> None: ...

    for n, dies_in in enumerate(minutes):
        at = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(minutes=dies_in or 0)
        (push if dies_in is None else push.using(deadline=at)).enqueue(n)
    now_ms = app.store.now_ms()
    opened = breakers.State(status="open", since_ms=now_ms, until_ms=now_ms + 5000, opened=1)
    app.store.cells.swap([Swap(flow.cell_of("crm", ""), 0, flow.encode(DependencyState(breaker=opened)))])
    return app


def test_an_open_breaker_tells_what_comes_back_and_how_fast() -> None:
    app = waiting([None] * 200)
    made = forecast_breaker(app.store, app, app.flow.show("crm"))
    assert made is not None and made.waiting == 200
    # 3 a second, doubling every 10 s: 43 in 10 s, 130 in 20 s, and 200 in 24.6 s.
    assert sum(made.first_minute[:10]) == pytest.approx(43, abs=6)
    assert made.soon.gone_s == pytest.approx(24.6, abs=2)
    assert made.soon.died == 0


def test_an_open_breaker_tells_how_many_will_have_died() -> None:
    app = waiting([10] * 30 + [120] * 20 + [None] * 50)
    made = forecast_breaker(app.store, app, app.flow.show("crm"))
    assert made is not None
    assert [(each.open_s, each.died) for each in made.later] == [(300, 0), (1800, 30), (14_400, 50)]
    assert list(breaker_words(made))[-1].endswith("will have died: 0 in 5m, 30 in 30m, 50 in 4h")


def test_a_breaker_at_rest_has_no_forecast() -> None:
    app = waiting([None])
    control = app.flow.show("crm")
    assert forecast_breaker(app.store, app, msgspec.structs.replace(control, breaker="closed")) is None
    assert forecast_breaker(app.store, None, control) is None


# -- queues


def test_a_backlog_is_gone_at_the_present_rate() -> None:
    app = App(store=MemoryStore(ManualClock(START_MS)))

    @app.task(name="t", queue="q")
    def t() -> None: ...

    app.enqueue_many([t.draft() for _ in range(900)])
    write_minutes(app, "q", "t", [{"e": 60, "o0done": 240}] * 5)
    made = forecast_queue(app.store, "q")
    assert (made.in_per_s, made.out_per_s) == (pytest.approx(1, rel=0.2), pytest.approx(4, rel=0.2))
    assert made.gone_s == pytest.approx(300, rel=0.2)
    write_minutes(app, "q", "t", [{"e": 6000}])
    assert queue_words(forecast_queue(app.store, "q")).startswith("never at the present rate: ")


def test_nothing_is_foretold_of_a_queue_of_which_nothing_is_known() -> None:
    app = App(store=MemoryStore(ManualClock(START_MS)))

    @app.task(name="t", queue="q")
    def t() -> None: ...

    assert queue_words(forecast_queue(app.store, "q")) == "nothing waits"
    t.draft()
    app.store.put([t.draft()])
    assert queue_words(forecast_queue(app.store, "q")) == "unknown: nothing was counted in the last 5m"
