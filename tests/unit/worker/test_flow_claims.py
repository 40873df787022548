"""What flow control lets a worker claim: nothing waits for ever behind what may not run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec.structs import replace
from tests.support.workers import until

from redrive import Aimd, App, RetryAfter
from redrive.flow import breaker as breakers
from redrive.flow import dependency as flow
from redrive.flow.dependency import DependencyState
from redrive.message import ClaimRequest, Exchange, Settlement, Swap


def on_a_loop(test: Callable[[App], Awaitable[None]]) -> Callable[[], None]:
    return lambda: asyncio.run(test(App("memory://")))  # type: ignore[arg-type]


@on_a_loop
async def test_what_shares_a_rate_with_tasks_that_have_nothing_is_claimed_without_a_storm(app: App) -> None:
    done, exchanges, exchange = Counter[str](), 0, app.store.exchange

    def counted(settlements: Sequence[Settlement], asks: Sequence[ClaimRequest]) -> Exchange:
        nonlocal exchanges
        exchanges += 1
        return exchange(settlements, asks)

    app.store.exchange = counted  # type: ignore[method-assign, assignment]

    @app.task(name="a", dependency="one")
    async def a(n: int) -> None: ...

    @app.task(name="b", dependency="two")
    async def b(n: int) -> None:
        done["b"] += 1

    app.queue("default", rate="2/s")
    await app.aenqueue_many([b.draft(n) for n in range(3)])
    async with app.worker():
        await until(lambda: done["b"] == 3)
    assert exchanges < 50


@on_a_loop
async def test_tasks_that_share_a_rate_share_it_by_priority(app: App) -> None:
    done: list[str] = []

    @app.task(name="low", dependency="one")
    async def low(n: int) -> None:
        done.append("low")

    @app.task(name="high", dependency="two")
    async def high(n: int) -> None:
        done.append("high")

    app.queue("default", rate="50/s")
    await app.aenqueue_many([low.using(priority=3).draft(n) for n in range(20)])
    await app.aenqueue_many([high.using(priority=0).draft(n) for n in range(20)])
    async with app.worker():
        await until(lambda: len(done) == 40)
    assert done == ["high"] * 20 + ["low"] * 20


@on_a_loop
async def test_behind_a_long_line_at_a_rate_nothing_stands_still(app: App) -> None:
    done = Counter[str]()

    @app.task(name="a", rate="50/s")
    async def a(n: int) -> None:
        done["a"] += 1

    @app.task(name="b")
    async def b(n: int) -> None:
        done["b"] += 1

    await app.aenqueue_many([a.draft(n) for n in range(1300)])  # more than a claim looks at
    await app.aenqueue_many([b.draft(0)])
    async with app.worker():
        await until(lambda: done["b"] == 1)
        before = done["a"]
        await until(lambda: done["a"] >= before + 50)


@on_a_loop
async def test_a_task_routed_to_the_queue_of_a_held_one_is_found(app: App) -> None:
    done = Counter[str]()

    @app.task(name="a")
    async def a(n: int) -> None:
        done["a"] += 1
        raise RetryAfter("1h")

    @app.task(name="b", queue="other")
    async def b(n: int) -> None:
        done["b"] += 1

    app.dependency("a")
    await app.aenqueue_many([a.draft(0)])
    async with app.worker():
        await until(lambda: done["a"] == 1)
        await asyncio.sleep(0.5)
        await app.aenqueue_many([b.using(queue="default").draft(0)])
        await until(lambda: done["b"] == 1)


@on_a_loop
async def test_a_probe_that_a_drained_worker_did_not_start_is_given_back(app: App) -> None:
    started, cell = asyncio.Event(), "flow/shop"

    @app.task(name="long")
    async def long() -> None:
        started.set()
        await asyncio.sleep(0.5)

    @app.task(name="call", dependency="shop")
    async def call() -> None: ...

    def probes() -> int:
        return len(flow.decode(app.store.cells.read([cell])[0]).breaker.probes)

    over = breakers.State("open", until_ms=app.store.now_ms() - 1)
    app.store.cells.swap([Swap(cell, 0, flow.encode(DependencyState(breaker=over)))])
    async with app.worker(concurrency=1, prefetch=5):
        await app.aenqueue_many([long.draft()])
        await started.wait()
        await app.aenqueue_many([call.draft()])
        await until(lambda: probes() == 1)
    assert probes() == 0 and app.counts().ready == 1


@on_a_loop
async def test_of_what_no_task_is_for_nothing_is_kept_and_no_token_taken(app: App) -> None:
    ran = asyncio.Event()

    @app.task(name="call", rate="1/m", version=1)
    async def call() -> None:
        ran.set()

    names = [f"unknown{n}" for n in range(50)]
    await app.aenqueue_many([replace(call.draft(), task=name) for name in names])
    await app.aenqueue_many([replace(call.draft(), version=2)])
    async with app.worker() as worker:
        await until(lambda: app.counts().scheduled == 51)
        assert worker._flow is not None and not {name for name, _ in worker._flow._guards._plans} & {*names}
        await app.aenqueue_many([call.draft()])
        await until(ran.is_set)


@on_a_loop
async def test_workers_that_start_together_share_a_concurrency_at_once_and_while_runs_are_long(app: App) -> None:
    now, go = 0, asyncio.Event()

    @app.task(name="call", dependency="shop")
    async def call(n: int) -> None:
        nonlocal now
        now += 1
        await go.wait()

    def heard() -> Mapping[str, int]:
        return flow.decode(app.store.cells.read(["flow/shop"])[0]).workers

    app.dependency("shop", concurrency=Aimd(start=8, most=8))
    await app.aenqueue_many([call.draft(n) for n in range(100)])
    async with app.worker(concurrency=20), app.worker(concurrency=20), app.worker(concurrency=20):
        try:
            await until(lambda: len(heard()) == 3)
            assert now <= 8 + 4 + 3  # whoever comes later finds the earlier ones
            before = heard()
            await until(lambda: all(at_ms > before[name] for name, at_ms in heard().items()))
        finally:
            go.set()
