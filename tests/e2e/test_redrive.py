"""Redrive runs with real workers, counted where the calls arrive."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.endpoint import Answer, Endpoint
from tests.support.servers import PostgresServer, RedisServer

from redrive import App, Backoff, Breaker, Context, Retry
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Draft, Lane, Message, Settlement
from redrive.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

PATIENCE_S = 120
DAY_MS = 86_400_000
TASKS = """
import os
from urllib.request import Request, urlopen

from redrive import App, Retry

app = App.from_env()


@app.task(name="crm.push", queue="crm", retry=Retry(max_attempts=1))
def push(n: int) -> None:
    urlopen(Request(os.environ["ENDPOINT"], str(n).encode(), {"Idempotency-Key": str(n)}), timeout=30)
"""
FAULT = Fault(Kind.TRANSIENT, "urllib.error.HTTPError", "HTTP Error 503", "fp")
BAD, GOOD = Answer(503), Answer(204)


def over(*gate: str) -> pytest.MarkDecorator:
    """Over every store with a file or a server: those in the gate, the others in soaks."""
    engines = ("sqlite", "postgres", "redis")
    marked = [engine if engine in gate else pytest.param(engine, marks=pytest.mark.soak) for engine in engines]
    return pytest.mark.parametrize("url", marked, indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    server: PostgresServer | RedisServer = request.getfixturevalue(f"{request.param}_server")
    own = "schema" if request.param == "postgres" else "namespace"
    return f"{server.url}?{own}=redrive_{os.urandom(4).hex()}"


class Crm:
    """An app whose task calls an endpoint, and worker processes of it."""

    def __init__(self, url: str, folder: Path, endpoint: Endpoint) -> None:
        (folder / "tasks.py").write_text(TASKS)
        ours = {"REDRIVE_URL": url, "REDRIVE_LOG": "off", "ENDPOINT": endpoint.url}
        ours["REDRIVE_STATE_DIR"] = str(folder / "state")
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("REDRIVE_")} | ours
        self._folder, self.endpoint, self.app = folder, endpoint, App(url)

    def bury(self, count: int) -> dict[str, Message]:
        """Put so many messages that died at the endpoint, which is broken; what is dead, by id."""
        self.endpoint.answer = lambda request: BAD
        store = self.app.store
        store.put([Draft(task="crm.push", queue="crm", body=b'{"n":%d}' % n) for n in range(count)])
        claimed = store.exchange([], [ClaimRequest("crm", count, 60_000)]).deliveries
        store.exchange([Settlement(delivery.receipt, DeadLetter("exhausted"), FAULT) for delivery in claimed], [])
        assert len(self.dead()) == count
        return self.dead()

    def burst(self, workers: int = 1) -> None:
        """Let worker processes work until nothing is due or left to move."""
        command = [sys.executable, "-m", "redrive", "worker", "tasks:app", "-q", "crm:20", "--burst"]
        with ExitStack() as stack:
            children = [
                stack.enter_context(subprocess.Popen(command, cwd=self._folder, env=self._env)) for _ in range(workers)
            ]
            try:
                assert [child.wait(PATIENCE_S) for child in children] == [0] * workers
            finally:
                for child in children:
                    child.kill()

    def dead(self) -> dict[str, Message]:
        return {m.id: m for m in self.app.store.peek(Lane.DEAD, limit=10_000).messages}


@pytest.fixture
def crm(url: str, tmp_path: Path) -> Crm:
    with Endpoint() as endpoint:
        crm = Crm(url, tmp_path, endpoint)
        yield crm
        crm.app.store.close()


def told(**but: int) -> dict[str, int]:
    """A run's counts, those not named 0."""
    return dict.fromkeys(("planned", "moved", "done", "failed", "skipped", "changed", "waiting"), 0) | but


def most_within_1_s(times_ms: Sequence[float]) -> int:
    times = sorted(times_ms)
    return max(bisect_left(times, begin_ms + 1000) - i for i, begin_ms in enumerate(times))


@over("sqlite")
def test_100_that_fail_again_at_once_are_redriven_at_50_a_second(crm: Crm, soak: bool) -> None:
    before = crm.bury(100)
    plan = crm.app.dlq.select("queue:crm").plan(rate="50/s", canary=0, slow_start=False, stop_if="never")
    assert (plan.total, crm.dead()) == (100, before)  # nothing is moved by a plan
    run = plan.start(reason="it is said to be fixed", actor="ann@ops")
    crm.burst()
    assert run.state == "done"
    assert run.counts == told(planned=100, moved=100, failed=100)
    view = run.view()
    assert 2 <= (view.over_ms - view.started_ms) / 1000 <= 60  # as long as that on a busy machine only
    assert Counter(request.key for request in crm.endpoint.requests) == {str(n): 1 for n in range(100)}
    after = crm.dead()
    assert after.keys() == before.keys() and len(after) == 100
    for id, message in after.items():
        was = before[id]
        assert (message.redrives, message.attempt, message.run, message.reason) == (1, 1, run.id, "exhausted")
        assert (message.enqueued_ms, message.correlation_id) == (was.enqueued_ms, was.correlation_id)
        assert message.faults[:1] == was.faults and len(message.faults) == 2
    assert {failure.id for failure in run.failures()} == after.keys()
    assert {failure.error for failure in run.failures()} == {"urllib.error.HTTPError"}
    moves_ms = [message.life_ms for message in after.values()]
    assert most_within_1_s(moves_ms) <= 50 * 1.1 + 1
    assert max(moves_ms) - min(moves_ms) >= 1900
    # Where the calls arrive they have come through a worker, which on a busy machine may stand still for a moment.
    assert most_within_1_s([request.at_s * 1000 for request in crm.endpoint.requests]) <= (1 if soak else 1.5) * 56


@over()
def test_a_canary_at_an_endpoint_that_is_still_broken_stops_the_run_and_at_a_good_one_all_arrive(crm: Crm) -> None:
    before = crm.bury(60)
    broken = crm.app.dlq.select("queue:crm").plan(rate="100/s", canary=5, slow_start=False).start(reason="deployed")
    crm.burst()
    assert broken.state == "stopped" and "canary: 5 of 5 failed" in broken.why
    assert broken.counts == told(planned=60, moved=5, failed=5, skipped=55)
    assert len(crm.endpoint.requests) == 5 and crm.dead().keys() == before.keys()
    assert sum(message.redrives for message in crm.dead().values()) == 5
    assert any(broken.why in line.text for line in broken.story())
    crm.endpoint.answer = lambda request: GOOD
    mended = (
        crm.app.dlq.select("queue:crm").plan(rate="100/s", canary=5, slow_start=False).start(reason="deployed, really")
    )
    crm.burst()
    assert (mended.state, mended.counts["done"], len(crm.dead())) == ("done", 60, 0)
    assert Counter(request.key for request in crm.endpoint.requests[5:]) == {str(n): 1 for n in range(60)}


@over()
def test_of_two_overlapping_plans_each_message_is_driven_once_and_the_other_run_says_changed(crm: Crm) -> None:
    crm.bury(150)
    plans = [
        crm.app.dlq.select(f"queue:crm {more}").plan(rate="200/s", canary=0, slow_start=False)
        for more in ("", "args.n:<100")
    ]
    runs = [plan.start(reason="both of us saw it", actor=f"p{n}@ops") for n, plan in enumerate(plans)]
    crm.burst(workers=2)
    counts = [run.counts for run in runs]
    assert [run.state for run in runs] == ["done", "done"]
    assert counts[0]["moved"] + counts[1]["moved"] == 150
    assert counts[0]["changed"] + counts[1]["changed"] == 100
    assert Counter(request.key for request in crm.endpoint.requests) == {str(n): 1 for n in range(150)}
    assert Counter(message.redrives for message in crm.dead().values()) == {1: 150}


# A dependency that breaks meanwhile


@pytest.mark.soak
def test_where_the_dependency_breaks_the_run_goes_slower_waits_for_its_breaker_and_goes_on(tmp_path: Path) -> None:
    app = App(store=SqliteStore(tmp_path / "work.db"))
    app.dependency("crm", breaker=Breaker(failure_rate=0.9, window="4s", min_calls=20, open_for="2s", max_open="2s"))
    calls: list[tuple[float, bool]] = []
    down_s = (2.0, 10.0)  # since the first call

    @app.task(name="push", dependency="crm", retry=Retry(max_attempts=1))
    async def push(n: int) -> None:
        now_s = time.time()
        began_s = calls[0][0] if calls else now_s
        broken = down_s[0] <= now_s - began_s < down_s[1]
        calls.append((now_s, not broken))
        if broken:
            raise ConnectionRefusedError("down")

    store, count = app.store, 450
    store.put([Draft(task="push", body=b'{"n":%d}' % n) for n in range(count)])
    claimed = store.exchange([], [ClaimRequest("default", count, 60_000)]).deliveries
    store.exchange([Settlement(one.receipt, DeadLetter("exhausted"), FAULT) for one in claimed], [])
    run = (
        app.dlq.select("")
        .plan(rate="100/s", canary=0, slow_start=False, stop_if="never", halve_on_failures=True)
        .start(reason="back")
    )

    async def to_the_end() -> None:
        end_s = time.monotonic() + PATIENCE_S - 20
        async with app.worker({"default": 50}):
            while not run.view().closed:
                assert time.monotonic() < end_s, run.view()
                await asyncio.sleep(0.1)

    asyncio.run(to_the_end())
    assert run.state == "done"
    story = [(line.at_ms / 1000, line.text) for line in run.story()]
    slower = [at_s for at_s, text in story if text.startswith("slower:")]
    assert [text.split()[1] for _, text in story if text.startswith("slower:")][:3] == ["50/s,", "25/s,", "12.5/s,"]
    assert all(later - earlier >= 0.9 for earlier, later in pairwise(slower))
    waits = [at_s for at_s, text in story if text == "waits: the breaker of crm is open"]
    assert waits and any(at_s > waits[0] and text == "goes on" for at_s, text in story)
    # What was moved before it waited is claimed at once; from then on there are probes, three at each opening.
    in_vain = [at_s for at_s, good in calls if not good and at_s > waits[0] + 1]
    assert len(in_vain) <= 3 * (2 + (down_s[1] - down_s[0]) / 2)
    counts, bad = run.counts, sum(not good for _, good in calls)
    assert (counts["moved"], counts["failed"], counts["done"]) == (count, bad, count - bad)
    assert store.counts().dead == bad and len(calls) == count
    store.close()


# A month later


class Later:
    """The wall clock, some time ahead."""

    by_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.by_ms


class Month:
    """An app with a message that died, a month ago. `fails` says of each attempt whether it does."""

    def __init__(self, folder: Path, fails: Callable[[int, int], bool]) -> None:
        clock = Later()
        self.store = SqliteStore(folder / "work.db", clock_ms=clock)
        self.app = App(store=self.store)
        self.attempts: list[tuple[int, int]] = []  # of which life, and of that
        retry = Retry(max_attempts=4, max_elapsed="1h", backoff=Backoff.fixed("10ms"))

        @self.app.task(name="bill", retry=retry, keep_result="1h", ctx=True)
        def bill(ctx: Context, n: int) -> str:
            message = self.message()
            self.attempts.append((message.redrives, ctx.attempt))
            if fails(message.redrives, ctx.attempt):
                raise ConnectionError("no route")
            return "billed"

        self.id = bill.using(deadline=datetime.now(UTC) + timedelta(days=1)).enqueue(1).id
        self.app.run_worker(drain=True)
        assert self.message().lane is Lane.DEAD and self.attempts == [(0, n) for n in (1, 2, 3, 4)]
        self.died = self.message()
        self.attempts.clear()
        clock.by_ms = 31 * DAY_MS

    def message(self) -> Message:
        (found,) = self.store.find([self.id])
        assert found is not None
        return found

    def redrive(self, **how: Any) -> dict[str, int]:
        """Plan and run it; the run's counts."""
        at_once: dict[str, Any] = {"canary": 0, "slow_start": False, "stop_if": "never"}
        run = self.app.dlq.select("age:>30d").plan(**at_once | how).start(reason="they are back")
        self.app.run_worker(drain=True)
        assert run.state == "done"
        return run.counts


def test_what_was_dead_for_a_month_is_redriven_and_gets_its_full_life_again(tmp_path: Path) -> None:
    month = Month(tmp_path, lambda life, attempt: life == 0 or attempt < 4)
    counts = month.redrive()
    assert month.attempts == [(1, n) for n in (1, 2, 3, 4)]  # max_elapsed is an hour, and began anew
    done = month.message()
    assert (done.lane, done.result, done.redrives) == (Lane.DONE, b'"billed"', 1)
    assert done.deadline_ms is None and done.enqueued_ms == month.died.enqueued_ms
    assert done.life_ms - month.died.life_ms >= 31 * DAY_MS
    assert done.faults[:4] == month.died.faults and len(done.faults) == 7
    assert (counts["failed"], counts["done"]) == (1, 0)  # the verdict is that of its first run
    month.store.close()


def test_a_plan_s_attempts_bound_the_new_life(tmp_path: Path) -> None:
    month = Month(tmp_path, lambda life, attempt: True)
    month.redrive(attempts=2)
    assert month.attempts == [(1, 1), (1, 2)]
    assert (month.message().lane, month.message().reason) == (Lane.DEAD, "exhausted")
    month.store.close()


def test_a_plan_that_keeps_deadlines_redrives_nothing_whose_time_is_over(tmp_path: Path) -> None:
    month = Month(tmp_path, lambda life, attempt: True)
    counts = month.redrive(keep_deadline=True)
    assert month.attempts == [] and counts["failed"] == 1
    assert (month.message().lane, month.message().reason) == (Lane.DEAD, "deadline")
    month.store.close()
