"""Priorities are strict under load with a rate limit on: what is urgent overtakes what waits for a slot."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.workers import until

from redrive import App

RATE, WAITING, URGENT = 50, 110, 5
TAKEN = 20  # slots that two workers may hold already for what they have claimed


@pytest.mark.slow
def test_urgent_messages_overtake_what_waits_for_a_rate(app: App) -> None:
    order: list[str] = []

    @app.task(name="call", dependency="shop")
    async def call(kind: str) -> None:
        order.append(kind)

    app.dependency("shop", rate=f"{RATE}/s")

    async def work() -> None:
        await app.aenqueue_many([call.draft("bulk") for _ in range(WAITING)])
        async with app.worker(concurrency=5), app.worker(concurrency=5):
            await until(lambda: len(order) >= 10)
            began = len(order)
            await app.aenqueue_many([call.using(priority=0).draft("urgent") for _ in range(URGENT)])
            await until(lambda: order.count("urgent") == URGENT)
            overtaken = WAITING - order.count("bulk")
            assert order.count("bulk") - began <= TAKEN, f"{order.count('bulk') - began} went before"
            assert overtaken >= WAITING / 2
            await until(lambda: len(order) == WAITING + URGENT)

    asyncio.run(work())


@pytest.mark.slow
def test_of_what_is_due_at_once_the_four_levels_go_in_their_order(app: App) -> None:
    order: list[int] = []

    @app.task(name="call", rate="100/s")
    async def call(level: int) -> None:
        order.append(level)

    app.enqueue_many([call.using(priority=n % 4).draft(n % 4) for n in range(60)])

    async def work() -> None:
        async with app.worker(concurrency=1, prefetch=0):
            await until(lambda: len(order) == 60)

    asyncio.run(work())
    assert order == sorted(order)
