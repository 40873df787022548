"""A dependency that is split by key costs a batch a few calls of the cells, however many of its keys are sick.
A breaker over all keys spares those with too few calls to be judged alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.workers import Heard, store_in, until

from redrive import App, Backoff, Breaker, Budget, Rate, Retry
from redrive.message import Cell, Hasten, Lane, Swap
from redrive.store import Cells
from redrive.worker.flow import transitions

KEYS = 200
GROUPS = [f"tenant-{n}" for n in range(KEYS)]


class Counted:
    """Cells that count their calls."""

    def __init__(self, cells: Cells) -> None:
        self._cells, self.calls = cells, 0

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        self.calls += 1
        return self._cells.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        self.calls += 1
        return self._cells.swap(swaps, durable=durable)


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    store = store_in(tmp_path, request.param)
    store.cells = Counted(store.cells)
    yield App(store=store)
    store.close()


def calls_of(app: App) -> int:
    assert isinstance(app.store.cells, Counted)
    return app.store.cells.calls


def test_the_breakers_of_many_keys_turn_in_a_few_calls(app: App) -> None:
    heard = Heard(app)
    app.dependency("crm", per="group", budget=None, breaker=Breaker(min_calls=1, open_for="60s"))

    @app.task(name="call", dependency="crm", retry=Retry(backoff=Backoff.fixed("60s")))
    async def call() -> None:
        raise ConnectionError("refused")

    async def main() -> None:
        await app.aenqueue_many([call.using(group=group).draft() for group in GROUPS])
        async with app.worker(concurrency=KEYS):
            await until(lambda: heard.notices.count("breaker_opened") == KEYS)

    asyncio.run(main())
    assert calls_of(app) < KEYS
    logs = [transitions.read(app.store.cells, f"crm/{group}") for group in GROUPS]
    assert [[turn.after for turn in log] for log in logs] == [["open"]] * KEYS


def test_retries_of_many_keys_ask_their_budgets_in_a_few_calls(app: App) -> None:
    runs = Counter[str]()
    app.dependency("crm", per="group", breaker=None, budget=Budget())

    @app.task(name="call", dependency="crm", retry=Retry(max_attempts=2, backoff=Backoff.fixed("1h")))
    async def call(group: str) -> None:
        runs[group] += 1
        if runs[group] == 1:
            raise ConnectionError("refused")

    async def work(total: int) -> int:
        """Work until so many have run and all are settled; return the calls of the cells."""
        before = calls_of(app)
        async with app.worker(concurrency=KEYS):
            await until(lambda: runs.total() == total and not app.counts().leased)
        return calls_of(app) - before

    app.enqueue_many([call.using(group=group).draft(group) for group in GROUPS])
    assert asyncio.run(work(KEYS)) < KEYS
    waiting = app.store.peek(Lane.READY, limit=KEYS).messages
    # All at once: on a loaded machine, retries that are due one after the other would be as many batches.
    assert app.store.triage([message.handle for message in waiting], Hasten()) == [True] * KEYS
    assert asyncio.run(work(2 * KEYS)) < KEYS


def test_a_breaker_over_all_keys_spares_those_with_too_few_calls(app: App) -> None:
    heard, down, calls = Heard(app), True, Counter[str]()
    quick = Breaker(min_calls=20, open_for="300ms", max_open="300ms", probes=8)
    app.dependency("crm", per="group", budget=None, parent=quick)

    @app.task(name="call", dependency="crm", retry=Retry(max_attempts=10, backoff=Backoff.fixed("20ms")))
    async def call(group: str) -> None:
        calls["down" if down else "up"] += 1
        if down:
            raise ConnectionError("refused")

    async def main() -> None:
        nonlocal down
        await app.aenqueue_many([call.using(group=group).draft(group) for group in GROUPS])
        async with app.worker(concurrency=20):
            await until(lambda: "breaker_opened" in heard.notices)
            await asyncio.sleep(0.5)
            down = False
            await until(lambda: (at := app.counts()).ready + at.scheduled + at.leased == 0)

    asyncio.run(main())
    assert calls["down"] < KEYS / 2
    assert (calls["up"], app.counts().dead) == (KEYS, 0)
    turns = [turn.after for turn in transitions.read(app.store.cells, "crm:all")]
    assert (turns[0], turns[-1]) == ("open", "closed")


def test_sick_keys_do_not_open_the_breaker_over_all(app: App) -> None:
    runs = Counter[str]()
    app.dependency("crm", per="group", budget=None, parent=Breaker(min_calls=20))

    @app.task(name="call", dependency="crm", retry=Retry(max_attempts=2, backoff=Backoff.fixed("20ms")))
    async def call(group: str) -> None:
        runs[group] += 1
        if group.endswith("7"):
            raise ConnectionError("refused")

    async def main() -> None:
        await app.aenqueue_many([call.using(group=group).draft(group) for group in GROUPS])
        async with app.worker(concurrency=20):
            await until(lambda: (at := app.counts()).ready + at.scheduled + at.leased == 0)

    asyncio.run(main())
    assert (len(runs), app.counts().dead) == (KEYS, KEYS / 10)
    assert transitions.read(app.store.cells, "crm:all") == []


def test_a_probe_of_all_keys_that_its_own_key_refuses_is_given_back(app: App) -> None:
    """The breaker over all is half-open, and the second of its probes is over the rate of its own key."""
    runs, heard = Counter[str](), Heard(app)
    parent = Breaker(probes=2, probe_lease="60s")
    app.dependency("crm", per="group", budget=None, rate=Rate("1/h", burst=1), parent=parent)

    @app.task(name="call", dependency="crm")
    async def call(group: str) -> None:
        runs[group] += 1

    app.store.configure("default", group_width=2)

    app.flow.open("crm:all", reason="maintenance")
    app.flow.auto("crm:all", reason="it is over")  # half-open

    async def main() -> None:
        async with app.worker(concurrency=20):
            await app.aenqueue_many([call.using(group="one").draft("one") for _ in range(2)])
            await until(lambda: runs["one"] == 1)
            await app.aenqueue_many([call.using(group="other").draft("other")])
            await until(lambda: "breaker_closed" in heard.notices)

    asyncio.run(main())
    assert runs == {"one": 1, "other": 1}
