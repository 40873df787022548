"""A bulk sync to a healthy endpoint takes no longer for having a budget and a breaker, and no message is left out."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer

from redrive import App, Backoff, Retry
from redrive.events import Notice

pytestmark = [pytest.mark.slow, pytest.mark.turns(3)]

SOAK = pytest.mark.soak
CALL_S = 0.02
SLACK_S = 3.0  # for what a busy machine does to either of two runs


class Unavailable(Exception):
    """The endpoint cannot take this record now, or never."""


class Refused(Exception):
    """The endpoint will never take this record."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of each hundred records: how many fail once, twice, always with what is retried, and with what is not."""

    once: int = 2
    twice: int = 2
    always: int = 0
    refused: int = 1

    def tries(self, record: int) -> int:
        """How many calls fail before one succeeds; -1 for a refusal."""
        n = record % 100
        if n < self.once:
            return 1
        if n < self.once + self.twice:
            return 2
        if n < self.once + self.twice + self.always:
            return 1_000
        return -1 if n >= 100 - self.refused else 0


@dataclass(frozen=True, slots=True)
class Synced:
    took_s: float
    done: int
    dead: Counter[str]
    opened: list[str]
    calls: Counter[int]


def sync(url: str, shape: Shape, records: int, *, dependency: bool, base: str = "50ms") -> Synced:
    """Enqueue all of them, then work until nothing is left."""
    app, calls, opened = App(url), Counter[int](), list[str]()
    app.queue("crm", concurrency=20)
    policy = Retry(max_attempts=5, backoff=Backoff(base, cap="1s"), never=(Refused,))

    @app.task(name="push", queue="crm", dependency="crm" if dependency else None, retry=policy)
    async def push(record: int) -> None:
        calls[record] += 1
        await asyncio.sleep(CALL_S)
        tries = shape.tries(record)
        if tries < 0:
            raise Refused(record)
        if calls[record] <= tries:
            raise Unavailable(record)

    app.subscribe(
        lambda events: opened.extend(e.text for e in events if isinstance(e, Notice) and e.name == "breaker_opened")
    )
    for first in range(0, records, 1000):
        app.enqueue_many([push.draft(record) for record in range(first, min(records, first + 1000))])
    began_s = time.monotonic()
    asyncio.run(_drain(app))
    took_s = time.monotonic() - began_s
    dead = Counter(message.reason for message in app.dlq.all())
    counts = app.counts("crm")
    assert counts.ready == counts.scheduled == counts.leased == counts.quarantine == 0
    app.store.close()
    return Synced(took_s, records - sum(dead.values()), dead, opened, calls)


async def _drain(app: App) -> None:
    async with app.worker(drain=True) as worker:
        await worker.wait()


def url_of(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = os.urandom(4).hex()
    if engine == "sqlite":
        return f"sqlite:///{tmp_path}/{name}.db"
    server: PostgresServer | RedisServer = request.getfixturevalue(f"{engine}_server")
    return f"{server.url}?{'schema' if engine == 'postgres' else 'namespace'}=sync_{name}"


@pytest.mark.parametrize(
    ("engine", "records"),
    [
        *((engine, 2_000) for engine in ("sqlite", "postgres", "redis")),
        *(pytest.param(engine, 10_000, marks=SOAK) for engine in ("sqlite", "postgres", "redis")),
    ],
)
@pytest.mark.parametrize("shape", [Shape(), Shape(always=2)], ids=["some_fail", "some_fail_always"])
@pytest.mark.timeout(600)
def test_a_bulk_sync_to_a_healthy_endpoint_does_not_crawl(
    engine: str, records: int, shape: Shape, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    without = sync(url_of(engine, request, tmp_path), shape, records, dependency=False)
    whole = sync(url_of(engine, request, tmp_path), shape, records, dependency=True)
    hundreds = records // 100
    for synced in (without, whole):
        expected = {"permanent": hundreds * shape.refused, "exhausted": hundreds * shape.always}
        assert synced.dead == {reason: count for reason, count in expected.items() if count}
        assert synced.done == records - hundreds * (shape.refused + shape.always)
        assert synced.calls == {
            record: min(5, shape.tries(record) + 1) if shape.tries(record) >= 0 else 1 for record in range(records)
        }
    assert whole.opened == []
    print(f"{engine}: {records} records in {without.took_s:.1f} s without a dependency, {whole.took_s:.1f} s with one")
    assert whole.took_s <= 1.5 * without.took_s + SLACK_S
