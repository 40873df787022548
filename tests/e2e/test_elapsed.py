"""`max_elapsed` with real workers on every engine: it counts trying. Whatever a message waits for besides, it has all
its attempts. SQS, whose waits need a clock that jumps, is in tests/aws/test_sqs_waits.py."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer

import redrive
from redrive import App, Backoff, Retry
from redrive.message import Lane, Message

pytestmark = [pytest.mark.slow, pytest.mark.turns(3)]
WAIT_S = 0.7  # of real time: servers have clocks of their own
BACKOFF = Backoff.fixed("100ms")
TRYING = Retry(max_attempts=4, max_elapsed=WAIT_S - 0.1, backoff=BACKOFF)  # 4 attempts take some 0.3 s of it
SHORT = Retry(max_attempts=99, max_elapsed="290ms", backoff=BACKOFF)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app whose task `call` always fails."""
    url = f"sqlite:///{tmp_path}/work.db"
    if request.param != "sqlite":
        server: PostgresServer | RedisServer = request.getfixturevalue(f"{request.param}_server")
        own = "schema" if request.param == "postgres" else "namespace"
        url = f"{server.url}?{own}=elapsed_{os.urandom(4).hex()}"
    app = App(url)

    @app.task(name="call", retry=TRYING)
    def call() -> None:
        raise ConnectionError("down")

    @app.task(name="short", retry=SHORT)
    def short() -> None:
        raise ConnectionError("down")

    yield app
    app.store.close()


def enqueue(app: App, count: int = 1, delay: float = 0.0, task: str = "call") -> None:
    app.enqueue_many([app.tasks[task].using(delay=delay).draft() for _ in range(count)])


def dead(app: App) -> list[Message]:
    return app.store.peek(Lane.DEAD, limit=1000).messages


def fates(app: App) -> Counter[tuple[str | None, int]]:
    return Counter((message.reason, message.attempt) for message in dead(app))


def test_a_first_run_that_was_delayed_has_all_its_attempts(app: App) -> None:
    enqueue(app, delay=WAIT_S)
    app.run_worker(drain=True)
    assert fates(app) == {("exhausted", 4): 1}


def test_while_all_workers_are_down_nothing_elapses(app: App) -> None:
    enqueue(app)
    time.sleep(WAIT_S)  # before its first claim
    app.run_worker(burst=True)
    [waiting] = app.store.peek(Lane.READY, limit=10).messages
    assert 1 <= waiting.attempt < 4  # a burst on a busy machine may last until its retry is due
    time.sleep(WAIT_S)  # and before a retry
    app.run_worker(drain=True)
    assert fates(app) == {("exhausted", 4): 1}


def test_what_waits_behind_a_backlog_has_all_its_attempts(app: App) -> None:
    ran = Counter[str]()

    @app.task(name="slow", retry=Retry(max_attempts=3, max_elapsed="500ms", backoff=Backoff.fixed("10ms")))
    def slow() -> None:
        ran[redrive.context().message_id] += 1
        time.sleep(0.02)
        raise ConnectionError("down")

    app.queue("default", concurrency=1)
    enqueue(app, 30, task="slow")  # of 1.8 s of work, each waits for most
    app.run_worker(drain=True)
    assert fates(app) == {("exhausted", 3): 30} and set(ran.values()) == {3}


def test_a_spread_of_a_redrive_leaves_each_message_all_its_attempts(app: App) -> None:
    enqueue(app, 20)
    app.run_worker(drain=True)
    before = {message.id: message for message in dead(app)}
    assert fates(app) == {("exhausted", 4): 20}
    plan = app.dlq.select("queue:default").plan(
        rate="500/s", canary=0, slow_start=False, stop_if="never", spread=2 * WAIT_S
    )
    run = plan.start(reason="the endpoint is back", actor="ann@ops")
    app.run_worker(drain=True)
    assert run.state == "done" and run.counts["failed"] == 20
    assert fates(app) == {("exhausted", 4): 20}
    waited_ms = [m.faults[4].at_ms - m.life_ms for m in dead(app) if m.redrives == before[m.id].redrives + 1]
    assert len(waited_ms) == 20 and max(waited_ms) > WAIT_S * 1000 > min(waited_ms)


def test_runs_and_the_delays_between_them_elapse(app: App) -> None:
    enqueue(app, task="short")
    app.run_worker(drain=True)
    assert fates(app) == {("elapsed", 3): 1}  # a fourth would start after 300 ms


def test_a_long_run_elapses(app: App) -> None:
    @app.task(name="long", retry=Retry(max_attempts=99, max_elapsed="1900ms", backoff=BACKOFF))
    async def long() -> None:
        await asyncio.sleep(1.0)  # so long that the second run elapses, and the first does not on a busy machine
        raise ConnectionError("down")

    enqueue(app, task="long")
    app.run_worker(drain=True)
    [message] = dead(app)
    assert (message.reason, message.attempt) == ("elapsed", 2)
    assert [fault.tried_ms - fault.ran_ms for fault in message.faults] == [0, message.faults[0].ran_ms + 100]


def test_snoozes_do_not_elapse(app: App) -> None:
    @app.task(name="snoozing", retry=TRYING)
    def snoozing() -> None:
        if redrive.context().fence <= 3:
            raise redrive.Snooze(WAIT_S / 3)
        raise ConnectionError("down")

    enqueue(app, task="snoozing")
    app.run_worker(drain=True)
    assert fates(app) == {("exhausted", 4): 1}


def test_waiting_for_a_place_in_its_group_does_not_elapse(app: App) -> None:
    @app.task(name="head")
    def head() -> None:
        time.sleep(WAIT_S)

    app.queue("default", group_width=1)
    app.enqueue_many([app.tasks["head"].using(group="g").draft(), app.tasks["call"].using(group="g").draft()])
    app.run_worker(drain=True)
    assert fates(app) == {("exhausted", 4): 1}
