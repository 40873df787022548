"""Roll-outs on SQS, whose claims leave out no task: what an older worker does not know gets to the newer one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.aws.places import REGION
from tests.support.workers import Heard, until

from redrive import App
from redrive.stores.cells import CellsOfStore
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.store import SqsStore
from redrive.testing import ManualClock
from redrive.testing.sqs import SqsServer


@pytest.fixture
def opened() -> Iterator[Callable[..., App]]:
    made: list[App] = []
    cells = MemoryStore()
    with SqsServer(region=REGION) as server:

        def open_app(*, with_cells: bool, **options: Any) -> App:
            url = f"sqs://{REGION}/shop?create=true&poll=1&endpoint={server.url}"
            app = App(url, **options)
            app._store = SqsStore(url, cells=CellsOfStore(cells) if with_cells else None)
            made.append(app)
            return app

        yield open_app
        for app in made:
            app.store.close()


@pytest.mark.parametrize("with_cells", [True, False])
def test_what_older_workers_receive_gets_to_the_newer_one(opened: Callable[..., App], with_cells: bool) -> None:
    """Three older workers receive from the queue too, and with cells none dies though `park_for` is short."""
    park_for = "1ms" if with_cells else "1h"
    olds, ran = [opened(with_cells=with_cells, park_for=park_for) for _ in range(3)], list[int]()
    new = opened(with_cells=with_cells)
    heard = [Heard(old) for old in olds]

    @new.task(name="push")
    async def push(id: int) -> None:
        ran.append(id)

    async def main() -> None:
        async with new.worker(["default"]):
            new.store.put([push.draft(-1)])
            await until(lambda: ran)
            async with olds[0].worker(["default"]), olds[1].worker(["default"]), olds[2].worker(["default"]):
                for n in range(40):
                    await asyncio.to_thread(new.store.put, [push.draft(n)])
                await until(lambda: len(set(ran)) == 41, 100.0)  # without cells workers can only guess who knows it

    asyncio.run(main())
    assert sorted(ran) == [*range(-1, 40)]
    assert {outcome for one in heard for outcome in one.outcomes} <= {"held"}


def test_with_cells_a_message_that_no_worker_knows_is_looked_at_every_four_seconds() -> None:
    """No worker that starts could find it to wake it."""
    clock = ManualClock()
    with SqsServer(clock, region=REGION) as server:
        url = f"sqs://{REGION}/shop?create=true&poll=0&endpoint={server.url}"
        app = App(url, park_for="1h")
        app._store = SqsStore(url, clock_ms=clock, cells=CellsOfStore(MemoryStore(clock)))
        heard = Heard(app)
        other = App("memory://")
        app.store.put([other.task(name="push")(_nothing).draft()])
        for _ in range(12):
            app.run_worker(["default"], burst=True)
            clock.advance("4s")
        app.store.close()
    waits = [fate.delay_ms or 0 for fate in heard.fates]
    assert len(waits) == 12 and max(waits) <= 4_000


def test_without_cells_it_waits_longer_each_time() -> None:
    """There is no record of when it was first seen; how often it was received is known."""
    clock = ManualClock()
    with SqsServer(clock, region=REGION) as server:
        url = f"sqs://{REGION}/shop?create=true&poll=0&endpoint={server.url}"
        app = App(url, park_for="1h")
        app._store = SqsStore(url, clock_ms=clock)
        heard = Heard(app)
        other = App("memory://")
        app.store.put([other.task(name="push")(_nothing).draft()])
        for _ in range(8):
            app.run_worker(["default"], burst=True)
            clock.advance("11s")
        app.store.close()
    waits = [fate.delay_ms or 0 for fate in heard.fates]
    assert waits == sorted(waits) and waits[0] == 500 and waits[-1] > 3_000


def test_without_cells_it_goes_from_worker_to_worker_and_then_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that receives it pauses the queue, so the next receive is another worker's."""
    chances = itertools.cycle([0.9] * 7 + [0.1])
    monkeypatch.setattr("redrive.worker.rollout.newer.uniform", lambda *_: next(chances))
    monkeypatch.setattr("redrive.worker.rollout.newer.PARK_LOOK_MS", 2_000)
    monkeypatch.setattr("redrive.worker.rollout.pauses.QUEUE_PAUSE_S", (0.01, 0.01))
    with SqsServer(region=REGION) as server:
        app = App(f"sqs://{REGION}/shop?create=true&poll=0&endpoint={server.url}", park_for="1h")
        heard, other = Heard(app), App("memory://")
        app.store.put([other.task(name="push")(_nothing).draft()])

        async def main() -> None:
            async with app.worker(["default"]):
                await until(lambda: len(heard.fates) >= 24, 120)

        asyncio.run(main())
        app.store.close()
    waits = [fate.delay_ms or 0 for fate in heard.fates[:24]]
    longer = waits[7::8]
    assert [wait for wait in waits if wait > 100] == longer and longer[0] < longer[-1] and max(longer) <= 2_000


def _nothing() -> None: ...
