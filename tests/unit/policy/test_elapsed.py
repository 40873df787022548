"""`max_elapsed` by the kit: runs and the delays between them elapse, and nothing else that a message waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive import App, Backoff, Breaker, Budget, Context, Draft, Idempotency, Retry, RetryAfter, Snooze, presets
from redrive.testing import Kit

ATTEMPTS = 6
#: Six attempts take 150 s, and a seventh would start after 180 s.
TRYING = Retry(max_attempts=99, max_elapsed="170s", backoff=Backoff.fixed("30s"))


def fail(rd: Kit, app: App, **options: Any) -> Any:
    """A task that always fails."""

    @app.task(name="call", retry=TRYING, **options)
    def call(n: int = 0) -> None:
        raise ConnectionError("down")

    rd.use(app)
    return call


@pytest.fixture
def app() -> App:
    return App("memory://")


def fates(rd: Kit) -> list[tuple[str | None, int]]:
    return [(dead.reason, dead.attempt) for dead in rd.dead()]


def test_an_attempt_that_would_start_too_late_is_not_waited_for(rd: Kit, app: App) -> None:
    fail(rd, app).enqueue()
    assert rd.drain().elapsed_s == 150
    assert fates(rd) == [("elapsed", ATTEMPTS)]
    [dead] = rd.dead()
    assert [fault.tried_ms for fault in dead.faults] == [30_000 * n for n in range(ATTEMPTS)]


def test_a_delay_before_the_first_claim_does_not_elapse(rd: Kit, app: App) -> None:
    fail(rd, app).using(delay="1h").enqueue()
    rd.drain()
    assert fates(rd) == [("elapsed", ATTEMPTS)]


def test_workers_that_were_down_do_not_elapse(rd: Kit, app: App) -> None:
    fail(rd, app).enqueue()
    for _ in range(ATTEMPTS):
        rd.advance("10m")
        assert rd.run_due().runs == 1
    assert fates(rd) == [("elapsed", ATTEMPTS)]


def test_the_preset_for_apis_is_as_patient_after_an_hour_as_at_once(rd: Kit, app: App) -> None:
    @app.task(name="call", retry=presets["standard_api"])
    def call() -> None:
        raise ConnectionError("down")

    rd.use(app)
    call.enqueue()
    call.using(delay="1h").enqueue()
    rd.drain()
    assert [reason for reason, _ in fates(rd)] == ["elapsed"] * 2
    assert all(11 <= attempts <= 13 for _, attempts in fates(rd))


def test_runs_elapse_and_the_wait_behind_them_does_not(rd: Kit, app: App) -> None:
    @app.task(name="slow", retry=Retry(max_attempts=99, max_elapsed="170s", backoff=Backoff.fixed("30s")))
    def slow() -> None:
        rd.advance("20s")
        raise ConnectionError("down")

    rd.use(app)
    app.enqueue_many([slow.draft() for _ in range(20)])  # each waits minutes for its turns
    rd.drain()
    assert fates(rd) == [("elapsed", 4)] * 20  # runs of 20 s at 0, 50, 100 and 150 s; the next would begin at 200 s


def test_a_long_history_loses_none_of_the_time(rd: Kit, app: App) -> None:
    @app.task(name="often", retry=Retry(max_attempts=999, max_elapsed="10m", backoff=Backoff.fixed("10s")))
    def often() -> None:
        raise ConnectionError("down")

    rd.use(app)
    often.enqueue()
    rd.drain()
    assert fates(rd) == [("elapsed", 61)]
    assert len(rd.dead()[0].faults) == 20


def test_a_redrive_begins_anew_and_its_spread_does_not_elapse(rd: Kit, app: App) -> None:
    fail(rd, app)
    app.enqueue_many([app.tasks["call"].draft(n) for n in range(5)])
    rd.drain()
    assert fates(rd) == [("elapsed", ATTEMPTS)] * 5
    assert app.dlq.retry(select="queue:default", delay="3h", reason="it is back", actor="ann").ids
    rd.drain()
    assert fates(rd) == [("elapsed", ATTEMPTS)] * 5
    assert {dead.redrives for dead in rd.dead()} == {1}


def test_a_snooze_elapses_neither_with_its_run_nor_with_its_wait(rd: Kit, app: App) -> None:
    @app.task(name="snoozing", retry=TRYING, ctx=True)
    def snoozing(ctx: Context) -> None:
        if ctx.fence % 2:
            rd.advance("5m")
            raise Snooze("1h")
        raise ConnectionError("down")

    rd.use(app)
    snoozing.enqueue()
    rd.drain()
    assert fates(rd) == [("elapsed", ATTEMPTS)]


def test_a_crash_and_what_its_lease_took_do_not_elapse(rd: Kit, app: App) -> None:
    call = fail(rd, app)
    call.enqueue()
    for _ in range(4):
        rd.crash_next(call)
        rd.run_due()
        rd.advance("10m")
        assert rd.run_due().runs == 1
        rd.advance("10m")
    rd.drain()
    assert fates(rd) == [("elapsed", ATTEMPTS)]


def test_a_wait_for_a_newer_worker_does_not_elapse(rd: Kit, app: App) -> None:
    app.park_for_s = 7200.0
    rd.use(app)
    rd.store.put([Draft(task="call")])
    rd.drain(until="1h")
    fail(rd, app)
    rd.drain()
    assert fates(rd) == [("elapsed", ATTEMPTS)]


@pytest.mark.parametrize("order", ["turns", "strict"])
def test_a_wait_for_a_place_in_its_group_does_not_elapse(rd: Kit, app: App, order: Any) -> None:
    @app.task(name="head")
    def head() -> None:
        rd.advance("1h")

    app.queue("default", group_width=1, group_order=order)
    call = fail(rd, app)
    app.enqueue_many([head.using(group="g").draft(), call.using(group="g").draft()])
    rd.drain()
    assert fates(rd) == [("elapsed", ATTEMPTS)]


HELD: dict[str, Callable[[App], None]] = {
    "a breaker": lambda app: app.dependency(
        "shop", breaker=Breaker(min_calls=2, open_for="100s", max_open="100s"), budget=None
    ),
    "a budget": lambda app: app.dependency("shop", budget=Budget.fixed(1, per="10m")),
    "a rate": lambda app: app.dependency("shop", rate="1/m", budget=None, breaker=None),
}


@pytest.mark.parametrize("by", HELD)
def test_what_holds_a_message_back_does_not_elapse(rd: Kit, app: App, by: str) -> None:
    HELD[by](app)
    fail(rd, app, dependency="shop")
    app.enqueue_many([app.tasks["call"].draft(n) for n in range(4)])
    took_s = rd.drain().elapsed_s
    assert fates(rd) == [("elapsed", ATTEMPTS)] * 4
    assert took_s > 300


def test_a_cool_down_that_another_message_asked_for_does_not_elapse(rd: Kit, app: App) -> None:
    app.dependency("shop", budget=None, breaker=None)
    call = fail(rd, app, dependency="shop")

    @app.task(name="throttled", dependency="shop", ctx=True)
    def throttled(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RetryAfter("1h")

    call.enqueue()
    rd.run_due()
    throttled.enqueue()
    assert rd.drain().elapsed_s > 3600
    assert fates(rd) == [("elapsed", ATTEMPTS)]


def test_a_wait_that_the_failing_side_asked_of_this_message_elapses(rd: Kit, app: App) -> None:
    @app.task(name="asked", retry=Retry(max_attempts=99, max_elapsed="9h", backoff=Backoff.fixed("1s")))
    def asked() -> None:
        raise RetryAfter("8h")  # more than the 6 h that one wait may take: it comes back, free, and waits on

    rd.use(app)
    asked.enqueue()
    rd.drain()
    assert fates(rd) == [("elapsed", 2)]


def test_a_duplicate_that_waits_for_its_key_does_not_elapse(rd: Kit, app: App) -> None:
    call = fail(rd, app, idempotency=Idempotency(key=lambda n=0: f"k{n}", keep="1d"))
    call.enqueue(1)
    call.enqueue(1)
    rd.drain()
    assert fates(rd) == [("elapsed", ATTEMPTS)] * 2
    assert {run.attempt for run in rd.runs} == {*range(1, ATTEMPTS + 1)}
