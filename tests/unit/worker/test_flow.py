"""Flow control with real workers: what is denied waits in the queue, loses nothing, and holds up nobody else."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path

import pytest
from tests.support.workers import Heard, store_in, until

from redrive import Aimd, App, Backoff, Breaker, Budget, Rate, Retry, RetryAfter
from redrive.errors import ConfigError, StoreUnavailable
from redrive.message import Cell, Lane, Swap

QUICK = Breaker(min_calls=5, open_for="300ms", max_open="300ms", window="2s", probes=8)
SOON = Retry(max_attempts=10, backoff=Backoff.fixed("20ms"))


def on_a_loop(test: Callable[[App], Awaitable[None]]) -> Callable[[App], None]:
    @wraps(test)
    def run(app: App) -> None:
        asyncio.run(test(app))  # type: ignore[arg-type]

    return run


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    store = store_in(tmp_path, request.param)
    yield App(store=store)
    store.close()


@on_a_loop
async def test_an_open_breaker_spends_no_attempt_and_holds_up_no_other_task(app: App) -> None:
    heard, down, calls = Heard(app), True, Counter[str]()

    @app.task(name="call", dependency="shop", retry=SOON)
    async def call(n: int) -> None:
        calls["shop"] += 1
        if down:
            raise ConnectionError("refused")

    @app.task(name="other")
    async def other(n: int) -> None:
        calls["other"] += 1

    app.dependency("shop", breaker=QUICK, budget=None)
    await app.aenqueue_many([call.draft(n) for n in range(12)])
    async with app.worker(concurrency=5):
        await until(lambda: "breaker_opened" in heard.notices)
        before = calls["shop"]
        await app.aenqueue_many([other.draft(n) for n in range(50)])
        await until(lambda: calls["other"] == 50)
        assert calls["shop"] <= before + 20
        down = False
        await until(lambda: (at := app.counts()).ready + at.scheduled + at.leased == 0)
    assert app.counts().dead == 0
    assert heard.outcomes.count("done") == 62
    assert max(fate.attempt for fate in heard.fates) <= 10
    assert "breaker_closed" in heard.notices


@on_a_loop
async def test_a_rate_is_kept_by_two_workers_together(app: App) -> None:
    starts: list[float] = []

    @app.task(name="call", rate="100/s")
    async def call(n: int) -> None:
        starts.append(time.monotonic())

    await app.aenqueue_many([call.draft(n) for n in range(150)])
    async with app.worker(concurrency=10), app.worker(concurrency=10):
        await until(lambda: len(starts) == 150)
    starts.sort()
    # 10 at once, then 100 a second: a run may begin late, and so nearer to the next one.
    assert starts[-1] - starts[0] >= (150 - 10) / 100 - 0.05


@on_a_loop
async def test_behind_a_rate_the_urgent_go_first_and_the_rest_in_order(app: App) -> None:
    done: list[int] = []

    @app.task(name="call", rate="100/s")
    async def call(n: int) -> None:
        done.append(n)

    heard = Heard(app)
    await app.aenqueue_many([call.draft(n) for n in range(100)])
    async with app.worker(concurrency=20):
        await until(lambda: len(done) >= 20)
        before = len(done)
        await app.aenqueue_many([call.using(priority=0).draft(1000 + n) for n in range(5)])
        await until(lambda: len(done) == 105)
    urgent = [done.index(1000 + n) for n in range(5)]
    assert max(urgent) <= before + 40  # what was claimed by then, and a busy machine
    assert [n for n in done if n < 1000] == sorted(range(100))
    assert heard.outcomes.count("held") == 0  # nothing is claimed that may not run


@on_a_loop
async def test_a_wait_that_is_asked_for_holds_the_whole_dependency(app: App) -> None:
    starts: dict[int, float] = {}
    first = asyncio.Event()

    @app.task(name="call", dependency="shop")
    async def call(n: int) -> None:
        if n == 0 and not first.is_set():
            first.set()
            raise RetryAfter("500ms")
        starts[n] = time.monotonic()

    app.store.put([call.draft(0)])
    async with app.worker(concurrency=5):
        await first.wait()
        asked = time.monotonic()
        await asyncio.sleep(0.05)  # so that its end is told
        await app.aenqueue_many([call.draft(n) for n in range(1, 20)])
        await until(lambda: len(starts) == 20)
    assert min(starts.values()) - asked >= 0.45


@on_a_loop
async def test_retries_wait_for_their_budget(app: App) -> None:
    calls: list[float] = []

    @app.task(name="call", dependency="shop", retry=Retry(max_attempts=3, backoff=Backoff.fixed("10ms")))
    async def call(n: int) -> None:
        calls.append(time.monotonic())
        raise ConnectionError("refused")

    app.dependency("shop", breaker=None, budget=Budget(ratio=0, life="1s", floor=20))
    await app.aenqueue_many([call.draft(n) for n in range(20)])
    async with app.worker(concurrency=20):
        await until(lambda: app.counts().dead == 20)
    assert len(calls) == 60  # 20 of 40 retries found a token of the reserve, the others came at 20 a second
    assert calls[-1] - calls[0] >= 0.9


@on_a_loop
async def test_a_retry_without_budget_dies_where_it_is_not_to_wait(app: App) -> None:
    @app.task(name="call", dependency="shop", retry=Retry(max_attempts=9, backoff=Backoff.fixed("10ms")))
    async def call(n: int) -> None:
        raise ConnectionError("refused")

    app.dependency("shop", breaker=None, budget=Budget.fixed(3, per="1h", on_exhausted="dead_letter"))
    await app.aenqueue_many([call.draft(n) for n in range(3)])
    async with app.worker():
        await until(lambda: app.counts().dead == 3)
    dead = app.store.peek(Lane.DEAD).messages
    assert [message.reason for message in dead] == ["budget"] * 3
    assert sum(message.attempt for message in dead) == 6  # three first runs and three retries


@on_a_loop
async def test_a_concurrency_adapts_and_is_kept(app: App) -> None:
    now = most = done = 0

    @app.task(name="call", dependency="shop")
    async def call(n: int) -> None:
        nonlocal now, most, done
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        done += 1

    app.dependency("shop", concurrency=Aimd(start=3, most=3))
    await app.aenqueue_many([call.draft(n) for n in range(60)])
    async with app.worker(concurrency=20):
        await until(lambda: done == 60)
    assert most == 3


@on_a_loop
async def test_a_key_has_a_breaker_of_its_own(app: App) -> None:
    done = Counter[str]()

    @app.task(name="call", dependency="hooks", retry=SOON)
    async def call(customer: str, n: int) -> None:
        if customer == "bad":
            raise ConnectionError("refused")
        done[customer] += 1

    app.dependency(
        "hooks", breaker=Breaker(min_calls=5, open_for="1h", max_open="1h"), budget=None, per="args.customer"
    )
    await app.aenqueue_many([call.draft(customer, n) for n in range(30) for customer in ("bad", "good")])
    async with app.worker(concurrency=5):
        await until(lambda: done["good"] == 30)
    assert app.counts().dead == 0


@pytest.mark.parametrize(
    "said",
    [
        {"budget": 3},
        {"breaker": "open"},
        {"per": "customer"},
        {"rate": "fast"},
        {"rate": 5},
        {"concurrency": 5},
        {"parent": Breaker()},
        {"per": "group", "parent": 3},
    ],
)
def test_what_cannot_be_meant_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        App("memory://").dependency("shop", **said)  # type: ignore[arg-type]


def test_a_rate_with_a_key_of_its_own_is_a_control_of_its_own() -> None:
    from redrive.worker.flow.local_state import controls

    app = App("memory://")

    @app.task(name="call", dependency="shop", rate="5/s")
    def call(account: str) -> None: ...

    app.dependency("shop", rate=Rate("10/s", per="args.account"))
    app.queue("default", rate="1/s")
    assert [(d.name, d.per) for d in controls(app, "call", "default")] == [
        ("queue:default", None),
        ("task:call", None),
        ("shop:rate", "args.account"),
        ("shop", None),
    ]


def test_without_its_cells_a_worker_goes_by_its_own_copies(tmp_path: Path) -> None:
    store = store_in(tmp_path, "memory")
    cells, down = store.cells, True

    class Away:
        def read(self, keys: Sequence[str]) -> list[Cell | None]:
            if down:
                raise StoreUnavailable("no cells")
            return cells.read(keys)

        def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
            if down:
                raise StoreUnavailable("no cells")
            return cells.swap(swaps, durable=durable)

    store.cells = Away()
    app = App(store=store)
    heard, starts = Heard(app), list[float]()

    @app.task(name="call", dependency="shop", rate="50/s")
    async def call(n: int) -> None:
        starts.append(time.monotonic())

    async def main() -> None:
        nonlocal down
        await app.aenqueue_many([call.draft(n) for n in range(30)])
        async with app.worker():
            await until(lambda: len(starts) == 30)
            down = False
            await app.aenqueue_many([call.draft(n) for n in range(60)])
            await until(lambda: "flow_shared" in heard.notices and len(starts) == 90)

    asyncio.run(main())
    assert starts[29] - starts[0] >= (30 - 5) / 50 - 0.05
    assert heard.notices.count("flow_local") == 1 == heard.notices.count("flow_shared")
    assert cells.read(["flow/shop", "flow/task:call"]) != [None, None]


@on_a_loop
async def test_a_queue_has_a_rate_and_what_a_task_is_asked_holds_only_that_task(app: App) -> None:
    done = Counter[str]()

    @app.task(name="call", rate="1000/s")
    async def call(n: int) -> None:
        done["call"] += 1
        if done["call"] == 1:
            raise RetryAfter("1h")

    @app.task(name="other")
    async def other(n: int) -> None:
        done["other"] += 1

    app.queue("default", rate="500/s")
    await app.aenqueue_many([task.draft(n) for n in range(20) for task in (call, other)])
    async with app.worker(concurrency=1, prefetch=0):
        await until(lambda: done["other"] == 20)
    assert done["call"] < 20


def test_what_waits_unclaimed_behind_a_breaker_is_no_part_of_what_its_policy_allows(app: App) -> None:
    heard, down = Heard(app), True

    @app.task(name="call", dependency="shop", retry=Retry(30, max_elapsed="1500ms", backoff=Backoff.fixed("20ms")))
    async def call(n: int) -> None:
        if down:
            raise ConnectionError("refused")

    app.dependency("shop", breaker=Breaker(min_calls=5, open_for="1s", max_open="1s", probes=2), budget=None)

    async def main() -> None:
        nonlocal down
        await app.aenqueue_many([call.draft(n) for n in range(4)])
        async with app.worker():
            await until(lambda: heard.notices.count("breaker_opened") >= 4)  # for three seconds and more
            down = False
            await until(lambda: (at := app.counts()).ready + at.scheduled + at.leased == 0)

    asyncio.run(main())
    assert app.counts().dead == 0
    assert heard.outcomes.count("done") == 4


def test_a_burst_does_not_wait_for_what_is_left_alone_and_works_through_what_is_only_spaced(app: App) -> None:
    done: list[str] = []

    @app.task(name="call", dependency="shop")
    def call(n: int) -> None:
        raise RetryAfter("1h")

    @app.task(name="spaced", rate="50/s")
    def spaced(n: int) -> None:
        done.append("spaced")

    @app.task(name="other")
    def other(n: int) -> None:
        done.append("other")

    app.enqueue_many([task.draft(n) for n in range(20) for task in (call, spaced, other)])
    app.run_worker(burst=True)
    assert Counter(done) == {"spaced": 20, "other": 20}
    assert app.counts().dead == 0 and app.counts().leased == 0
