"""A worker on SQS whose tasks wait longer than SQS can: never early, never lost, one attempt for each run.

The worker is the real one, the clock is moved between its bursts of work.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from tests.support.aws.places import REGION

import redrive
from redrive import App, Backoff, Retry, presets
from redrive.aws.redriver.run import Continuation, Redriver
from redrive.aws.redriver.settings import RedriverSettings
from redrive.aws.redriver.transfer import calls as sqs_calls
from redrive.awsapi.client import client
from redrive.errors import Refused
from redrive.flow.auto_redrive import AutoRedrive
from redrive.stores.cells import CellsOfStore
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.store import SqsStore
from redrive.testing import ManualClock
from redrive.testing.sqs import SqsServer

HOUR_S = 3600
DAY_S = 24 * HOUR_S
MODES = ["visibility", "visibility with cells", "requeue"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Iterator[SqsServer]:
    with SqsServer(clock, region=REGION) as server:
        yield server


@pytest.fixture
def make(server: SqsServer, clock: ManualClock) -> Iterator[Callable[..., App]]:
    made: list[App] = []

    def make(mode: str, **options: int) -> App:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        url = f"sqs://{REGION}/shop?create=true&poll=0&mode={mode.split()[0]}&endpoint={server.url}{more}"
        cells = CellsOfStore(MemoryStore(clock)) if mode.endswith("cells") else None
        made.append(App(url))
        made[-1]._store = SqsStore(url, clock_ms=clock, cells=cells)
        return made[-1]

    yield make
    for app in made:
        app.store.close()


def left(server: SqsServer, clock: ManualClock, name: str) -> int:
    return sum(int(count) for count in server.account.named(name).counts(clock()).values())


def run_until_over(
    app: App, server: SqsServer, clock: ManualClock, step_s: Callable[[], float], queue: str = "default"
) -> None:
    """A burst of work, and then some time, until the queue is empty."""
    for _ in range(1000):
        app.run_worker([queue], burst=True)
        if left(server, clock, f"shop-{queue}") == 0:
            return
        clock.advance(step_s())
    pytest.fail("it is not over")


def _turning() -> list[Any]:
    """Each wait in one of the modes in every run, turning with the seed; in all in `make soak`."""
    share = int(os.environ.get("TEST_SEED", "0"))
    return [
        pytest.param(mode, wait_s, marks=[] if (n + at + share) % len(MODES) == 0 else pytest.mark.soak)
        for at, wait_s in enumerate([901, HOUR_S, 13 * HOUR_S, 3 * DAY_S])
        for n, mode in enumerate(MODES)
    ]


@pytest.mark.parametrize(("mode", "wait_s"), _turning())
def test_a_retry_comes_once_and_never_early(
    make: Callable[..., App], server: SqsServer, clock: ManualClock, seed: int, mode: str, wait_s: int
) -> None:
    app, rng, ran = make(mode), random.Random(seed), list[tuple[int, int, int]]()

    @app.task(name="pay", retry=Retry(max_attempts=3, backoff=Backoff.fixed(wait_s), max_elapsed=None))
    def pay() -> None:
        c = redrive.context()
        ran.append((clock(), c.attempt, c.crashes))
        if len(ran) < 3:
            raise ConnectionError("down")

    pay.enqueue()
    run_until_over(app, server, clock, lambda: rng.uniform(wait_s / 20, wait_s / 3))
    assert [(attempt, crashes) for _, attempt, crashes in ran] == [(1, 0), (2, 0), (3, 0)]
    for (before_ms, *_), (after_ms, *_) in pairwise(ran):
        assert after_ms - before_ms >= wait_s * 1000, "early"
    assert left(server, clock, "shop-default-dlq") == 0


@pytest.mark.parametrize("mode", MODES[:2])
def test_a_retry_after_an_hour_is_not_lost_on_a_fifo_queue(
    make: Callable[..., App], server: SqsServer, clock: ManualClock, mode: str
) -> None:
    app, ran = make(mode), list[tuple[int, int]]()

    @app.task(name="pay", queue="paid.fifo", retry=Retry(max_attempts=3, backoff=Backoff.fixed("1h")))
    def pay() -> None:
        ran.append((redrive.context().attempt, clock()))
        if len(ran) == 1:
            raise ConnectionError("down")

    pay.using(group="one").enqueue()
    run_until_over(app, server, clock, lambda: 600, "paid.fifo")
    assert [attempt for attempt, _ in ran] == [1, 2]
    assert ran[1][1] - ran[0][1] >= HOUR_S * 1000


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_that_keeps_messages_for_a_day_loses_none_that_waits_for_three(
    make: Callable[..., App], server: SqsServer, clock: ManualClock, mode: str
) -> None:
    app, ran = make(mode), list[int]()

    @app.task(name="pay", retry=Retry(max_attempts=2, backoff=Backoff.fixed("3d"), max_elapsed=None))
    def pay() -> None:
        ran.append(clock())
        if len(ran) == 1:
            raise ConnectionError("down")

    pay.enqueue()
    server.account.named("shop-default").set({"MessageRetentionPeriod": str(DAY_S)}, clock())
    if mode != "requeue":  # only a copy lives longer; the message would be deleted where it waits
        with pytest.raises(Refused, match="keeps messages for 1d, and task 'pay' may wait 3d"):
            app.run_worker(burst=True)
        return
    run_until_over(app, server, clock, lambda: 2 * HOUR_S)
    assert len(ran) == 2 and ran[1] - ran[0] >= 3 * DAY_S * 1000


def test_fifty_attempts_run_on_a_queue_that_delivers_a_message_three_times(
    make: Callable[..., App], server: SqsServer, clock: ManualClock
) -> None:
    app, ran = make("requeue", max_receives=3), list[int]()

    @app.task(name="pay", retry=Retry(max_attempts=50, backoff=Backoff.fixed("1s")))
    def pay() -> None:
        ran.append(redrive.context().attempt)
        raise ConnectionError("down")

    pay.enqueue()
    run_until_over(app, server, clock, lambda: 2)
    assert ran == [*range(1, 51)]
    assert left(server, clock, "shop-default-dlq") == 1


# -- what elapses is trying

API = presets["standard_api"]  # 500 s, some twelve attempts


@pytest.fixture
def calls(make: Callable[..., App], clock: ManualClock) -> Callable[[str], tuple[App, list[int]]]:
    def calls(mode: str) -> tuple[App, list[int]]:
        """An app whose task always fails, and the attempts that it made."""
        app, ran = make(mode), list[int]()

        @app.task(name="call", retry=API)
        def call() -> None:
            ran.append(redrive.context().attempt)
            raise ConnectionError("down")

        return app, ran

    return calls


def has_had_all(ran: list[int]) -> bool:
    """Whether it was given up for its time alone: after 500 s of delays of 2, 6, 18, 54 and 60 s, each up to a tenth
    longer."""
    return ran == [*range(1, len(ran) + 1)] and 11 <= len(ran) <= 12


@pytest.mark.turns(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wait_s", [0, HOUR_S])
def test_a_message_that_was_delayed_for_an_hour_has_all_its_attempts(
    make: Callable[..., App], calls: Any, server: SqsServer, clock: ManualClock, mode: str, wait_s: int
) -> None:
    app, ran = calls(mode)
    app.tasks["call"].using(delay=wait_s).enqueue()
    run_until_over(app, server, clock, lambda: 5 if ran else 200)
    assert has_had_all(ran)
    assert left(server, clock, "shop-default-dlq") == 1


@pytest.mark.turns(3)
@pytest.mark.parametrize("mode", MODES)
def test_workers_that_are_down_for_ten_minutes_take_no_attempts(
    calls: Any, server: SqsServer, clock: ManualClock, mode: str
) -> None:
    app, ran = calls(mode)
    app.tasks["call"].enqueue()
    run_until_over(app, server, clock, lambda: 600)  # before each attempt
    assert has_had_all(ran)


@pytest.mark.turns(3)
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_what_the_redriver_delays_has_all_its_attempts_again(
    calls: Any, server: SqsServer, clock: ManualClock, mode: str
) -> None:
    app, ran = calls(mode)
    app.tasks["call"].enqueue()
    run_until_over(app, server, clock, lambda: 5)
    assert has_had_all(ran)
    url = server.account.named("shop-default").url
    settings = RedriverSettings(
        queue=url, dead=f"{url}-dlq", poison=f"{url}-poison", auto=AutoRedrive(base="15m", cap="1h", factor=4)
    )
    by = sqs_calls(client("sqs", region=REGION, endpoint=server.url))
    for _ in range(2):  # after 15 minutes, then after an hour
        ran.clear()
        carried = Redriver(by, settings, Continuation(), None, lambda: 60.0, clock).run(trigger=True)
        assert (carried.redriven, carried.isolated, carried.failed) == (1, 0, 0)
        run_until_over(app, server, clock, lambda: 5 if ran else 200)
        assert has_had_all(ran)
