"""What an outage holds back gives up its place in its group, where the group's order allows that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.urls import url_of
from tests.support.workers import until

from redrive import App, Backoff, Breaker, Retry, RetryAfter
from redrive.message import Lane

BACKLOG = 60


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App("memory://" if request.param == "memory" else url_of(request.param, request, tmp_path))
    yield app
    app.store.close()


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("held", ["by hand", "by its calls", "by a cool-down"])
def test_an_outage_of_one_dependency_does_not_stop_the_other_tasks_of_a_tenant(app: App, width: int, held: str) -> None:
    down, pushed, synced = True, set[int](), set[int]()
    breaker = Breaker(min_calls=3, open_for="60s", max_open="60s")
    app.dependency("crm", budget=None, breaker=breaker)

    @app.task(name="push", dependency="crm", retry=Retry(max_attempts=5, backoff=Backoff.fixed("10ms")))
    async def push(n: int) -> None:
        if down:
            raise RetryAfter("60s") if held == "by a cool-down" else ConnectionError("refused")
        pushed.add(n)

    @app.task(name="sync")
    async def sync(n: int) -> None:
        synced.add(n)

    app.store.configure("default", group_width=width)
    if held == "by hand":
        app.flow.open("crm", reason="their outage")

    async def main() -> None:
        nonlocal down
        of_tenant = push.using(group="acme"), sync.using(group="acme")
        async with app.worker(concurrency=10):
            await app.aenqueue_many([of_tenant[0].draft(n) for n in range(BACKLOG)])
            await app.aenqueue_many([of_tenant[1].draft(n) for n in range(20)])
            await until(lambda: len(synced) == 20)
            await asyncio.sleep(0.1)  # it is idle now
            await app.aenqueue_many([of_tenant[1].draft(n) for n in range(20, 40)])
            await until(lambda: len(synced) == 40)
            down = False
            assert not pushed

    asyncio.run(main())
    counts = app.counts()
    assert counts.waiting == BACKLOG and counts.dead == 0


def test_what_is_in_no_group_waits_unclaimed(app: App) -> None:
    synced, tried = set[int](), 1  # one is claimed to see whether it is in a group
    app.dependency("crm", budget=None)

    @app.task(name="push", dependency="crm")
    async def push(n: int) -> None: ...

    @app.task(name="sync")
    async def sync(n: int) -> None:
        synced.add(n)

    app.flow.open("crm", reason="their outage")

    async def main() -> None:
        async with app.worker(concurrency=10):
            await app.aenqueue_many([push.draft(n) for n in range(BACKLOG)])
            await app.aenqueue_many([sync.draft(n) for n in range(20)])
            await until(lambda: len(synced) == 20)

    asyncio.run(main())
    waiting = app.store.peek(Lane.READY, limit=1000).messages
    assert len(waiting) == BACKLOG
    assert sum(message.deferral is not None for message in waiting) <= tried


def test_in_strict_order_the_head_keeps_its_place(app: App) -> None:
    synced = set[str]()
    app.queue("default", group_width=1, group_order="strict")
    app.dependency("crm", budget=None)

    @app.task(name="push", dependency="crm")
    async def push() -> None: ...

    @app.task(name="sync")
    async def sync(group: str) -> None:
        synced.add(group)

    app.flow.open("crm", reason="their outage")

    async def main() -> None:
        async with app.worker(concurrency=10):
            await app.aenqueue_many([push.using(group="acme").draft(), sync.using(group="acme").draft("acme")])
            await app.aenqueue_many([sync.using(group="other").draft("other")])
            await until(lambda: "other" in synced)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert synced == {"other"}
    assert all(message.deferral is None for message in app.store.peek(Lane.READY).messages)
