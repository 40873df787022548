"""A dependency that is split by key costs a batch a few calls of the cells, however many of its keys are sick."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.workers import Heard, store_in, until

from redrive import App, Backoff, Breaker, Budget, Retry
from redrive.message import Cell, Swap
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

    @app.task(name="call", dependency="crm", retry=Retry(max_attempts=2, backoff=Backoff.fixed("20ms")))
    async def call(group: str) -> None:
        runs[group] += 1
        if runs[group] == 1:
            raise ConnectionError("refused")

    async def main() -> None:
        await app.aenqueue_many([call.using(group=group).draft(group) for group in GROUPS])
        async with app.worker(concurrency=KEYS):
            await until(lambda: runs.total() == 2 * KEYS)

    asyncio.run(main())
    assert calls_of(app) < KEYS
