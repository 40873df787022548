"""A paused task is not claimed, while the others of its queue go on; and it goes on once it is resumed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.urls import url_of
from tests.support.workers import until

from redrive import App, Breaker, Idempotency
from redrive.errors import ConfigError, Unsupported
from redrive.message import SKIP_LOOKED, Filter, Hasten, Lane, Message, Swap
from redrive.paused_task import CELL
from redrive.testing.sqs import SqsServer

EACH = 200
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 20))]
ENGINES = ["memory", "sqlite", "postgres", "redis"]


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else url_of(request.param, request, tmp_path)


class Shop:
    """Three tasks of one queue; `ran` counts their runs."""

    def __init__(self, url: str) -> None:
        self.app, self.ran = App(url), Counter[str]()

        @self.app.task(name="crm.push")
        async def push(n: int) -> None:
            self.ran["crm.push"] += 1

        @self.app.task(name="crm.pull")
        async def pull(n: int) -> None:
            self.ran["crm.pull"] += 1

        @self.app.task(name="mail.send")
        async def send(n: int) -> None:
            self.ran["mail.send"] += 1

        self.tasks = (push, pull, send)

    def fill(self, count: int = EACH) -> None:
        self.app.enqueue_many([task.draft(n) for n in range(count) for task in self.tasks])

    async def afill(self, count: int) -> None:
        await self.app.aenqueue_many([task.draft(n) for n in range(count) for task in self.tasks])

    def waiting(self) -> list[Message]:
        return self.app.store.peek(Lane.READY, where=Filter(queue="default"), limit=10_000).messages


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    shop = Shop(url)
    yield shop
    shop.app.store.close()


def test_the_others_of_its_queue_go_on_and_nothing_of_it_runs_until_it_is_resumed(shop: Shop) -> None:
    shop.fill()
    shop.app.pause_task("crm.push", reason="CRM migration", actor="ann")

    async def main() -> None:
        async with shop.app.worker(concurrency=10, name="one"):
            await until(lambda: shop.ran.total() == 2 * EACH)
            await until(lambda: shop.app.counts().leased == 0)
            assert shop.ran == {"crm.pull": EACH, "mail.send": EACH}
            assert {(m.task, m.attempt, m.faults, m.crashes) for m in shop.waiting()} == {("crm.push", 0, (), 0)}
            assert len(shop.waiting()) == EACH
            shop.app.resume_task("crm.push", reason="it is over", actor="ann")
            await until(lambda: shop.ran["crm.push"] == EACH)

    asyncio.run(main())
    counts = shop.app.counts()
    assert (counts.ready, counts.scheduled, counts.leased, counts.dead) == (0, 0, 0, 0)
    assert shop.ran == {task.name: EACH for task in shop.tasks}


def test_a_pattern_holds_each_task_that_it_matches_and_a_worker_hears_of_it_while_it_runs(shop: Shop) -> None:
    async def main() -> None:
        async with shop.app.worker(concurrency=4):
            await shop.afill(1)
            await until(lambda: shop.ran.total() == 3)
            shop.app.pause_task("crm.*", reason="CRM migration")
            await asyncio.sleep(2.5)  # within two seconds every worker has read it
            await shop.afill(EACH)
            await until(lambda: shop.ran["mail.send"] == EACH + 1)
            await until(lambda: shop.app.counts().leased == 0)
            assert (shop.ran["crm.push"], shop.ran["crm.pull"]) == (1, 1)
            with pytest.raises(ConfigError, match=r"held by the pause of 'crm\.\*'"):
                shop.app.resume_task("crm.push")
            shop.app.resume_task("crm.*")
            await until(lambda: shop.ran.total() == 3 * EACH + 3)

    asyncio.run(main())


def test_a_pause_with_a_time_ends_by_itself(shop: Shop) -> None:
    shop.fill(20)
    made = shop.app.pause_task("crm.push", reason="a minute of peace", for_="3s")
    assert made.until_ms == pytest.approx(made.at_ms + 3000, abs=500)

    async def main() -> None:
        async with shop.app.worker(concurrency=4):
            await until(lambda: shop.ran.total() == 40)
            assert not shop.ran["crm.push"]
            await until(lambda: shop.ran["crm.push"] == 20)
            assert shop.app.store.now_ms() >= (made.until_ms or 0)

    asyncio.run(main())
    assert shop.app.task_state("crm.push").paused is None


def test_what_is_claimed_and_has_not_begun_goes_back_to_its_place(url: str) -> None:
    app, began, over, ran = App(url), asyncio.Event(), asyncio.Event(), list[int]()

    @app.task(name="push", idempotency=Idempotency(key=lambda n: f"{n}"))
    async def push(n: int) -> None:
        ran.append(n)
        began.set()
        await over.wait()

    _, *rest = app.enqueue_many([push.draft(n) for n in range(4)])

    async def main() -> None:
        async with app.worker(concurrency=1, prefetch=5) as worker:
            await began.wait()
            await until(lambda: worker._in_flight.counts["default"] == 4)
            app.pause_task("push", reason="r")
            await until(lambda: worker._in_flight.counts["default"] == 1)
            found = app.store.find([ref.id for ref in rest])
            assert [(m.lane, m.attempt) for m in found if m is not None] == [(Lane.READY, 0)] * 3
            over.set()  # what runs, runs on
            await until(lambda: app.counts().leased == 0)
            assert ran == [0]
            app.resume_task("push")
            await until(lambda: len(ran) == 4)

    asyncio.run(main())
    assert ran == [0, 1, 2, 3], "in their order"
    app.store.close()


def test_others_behind_more_of_it_than_a_claim_looks_at_are_reached(shop: Shop) -> None:
    push, _, send = shop.tasks
    count = SKIP_LOOKED + 50
    shop.app.pause_task("crm.push", reason="r")
    shop.app.enqueue_many([push.draft(n) for n in range(count)])
    shop.app.enqueue_many([send.draft(n) for n in range(20)])

    async def main() -> None:
        async with shop.app.worker(concurrency=50):
            await until(lambda: shop.ran["mail.send"] == 20)
            assert not shop.ran["crm.push"]
            away = [m for m in shop.waiting() if m.deferral is not None]
            assert away and {(m.attempt, m.deferral and m.deferral.why) for m in away} == {(0, "pause")}

    asyncio.run(main())
    shop.app.resume_task("crm.push")
    shop.app.store.triage([m.handle for m in shop.waiting()], Hasten())  # instead of the two minutes
    shop.app.run_worker(burst=True)
    assert shop.ran["crm.push"] == count and shop.app.counts().dead == 0


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_a_burst_ends_with_its_messages_left(url: str, drain: bool, limited: bool) -> None:
    shop = Shop(url)
    if limited:
        shop.app.dependency("mail.send", breaker=Breaker())
    shop.fill(10)
    shop.app.pause_task("crm.*", reason="r")
    shop.app.run_worker(burst=True, drain=drain)
    assert shop.ran == {"mail.send": 10}
    assert shop.app.counts().ready == 20
    shop.app.store.close()


@pytest.mark.fault("kill -9 of workers while a task is paused")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_workers_that_are_killed_meanwhile_lose_nothing(
    engine: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, chance = url_of(engine, request, tmp_path), random.Random(seed)
    print(f"seed {seed}")
    shop = Shop(url)
    shop.fill()
    shop.app.pause_task("crm.push", reason="r")
    code = (
        "import sys, time\nfrom redrive import App\napp = App(sys.argv[1])\n"
        "for name in ('crm.push', 'crm.pull', 'mail.send'):\n"
        "    def run(n, name=name):\n        time.sleep(0.005)\n        open(sys.argv[2], 'a').write(name + '\\n')\n"
        "    app.task(name=name)(run)\n"
        "app.run_worker(concurrency=4, lease='2s')\n"
    )
    said = tmp_path / "ran"
    said.touch()
    for _ in range(2):
        before = len(said.read_text().splitlines())
        worker = subprocess.Popen([sys.executable, "-c", code, url, str(said)], stderr=subprocess.DEVNULL)
        least = before + chance.randrange(5, 80)
        asyncio.run(until(lambda least=least: len(said.read_text().splitlines()) > least))
        time.sleep(chance.uniform(0, 0.05))
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    shop.app.run_worker(burst=True)
    assert "crm.push" not in said.read_text() and not shop.ran["crm.push"]
    held = [m for m in shop.waiting() if m.task == "crm.push"]
    assert len(held) == EACH and {(m.attempt, m.crashes) for m in held} == {(0, 0)}
    shop.app.resume_task("crm.push")
    shop.app.run_worker(burst=True)
    assert shop.ran["crm.push"] == EACH and shop.app.counts().dead == 0
    shop.app.store.close()


def test_a_name_that_is_nearly_one_and_what_is_not_paused_are_refused(shop: Shop) -> None:
    app = shop.app
    with pytest.raises(ConfigError, match=r"did you mean 'crm\.push'"):
        app.pause_task("crm.pus", reason="r")
    with pytest.raises(ConfigError, match="paused: none"):
        app.resume_task("crm.push")
    for bad in ("", "x" * 201):
        with pytest.raises(ConfigError, match="a name or a pattern"):
            app.pause_task(bad, reason="r")
    for span in ("0s", "400d"):
        with pytest.raises(ConfigError, match="a year at most"):
            app.pause_task("crm.push", reason="r", for_=span)
    with pytest.raises(ConfigError):
        app.pause_task("crm.push", reason=" ")
    assert [*app.audit] == []
    app.pause_task("another.app", reason="it is not known here")
    assert app.task_state("another.app").queue is None


def test_who_paused_what_and_why_is_told_and_logged(shop: Shop) -> None:
    app = shop.app
    app.pause_task("crm.*", reason="CRM migration", actor="ann")
    app.pause_task("crm.push", reason="their limit", actor="bob", for_="2h")
    one, other, third = (app.task_state(task.name) for task in shop.tasks)
    assert one.paused is not None and (one.paused.by, one.paused.reason) == ("bob", "their limit")
    assert other.paused is not None and (other.paused.name, other.paused.by) == ("crm.*", "ann")
    assert (third.queue, third.paused) == ("default", None)
    left = app.resume_task("crm.push", actor="bob")
    assert left.paused is not None and left.paused.name == "crm.*"
    entries = [(entry.action, entry.about, entry.claimed, entry.reason) for entry in app.audit]
    assert entries == [
        ("task-resume", "task/crm.push", "bob", ""),
        ("task-pause", "task/crm.push", "bob", "their limit"),
        ("task-pause", "task/crm.*", "ann", "CRM migration"),
    ]


def test_a_damaged_cell_stops_no_worker_and_is_not_overwritten(shop: Shop) -> None:
    shop.app.store.cells.swap([Swap(CELL, 0, b"{")])
    shop.fill(5)
    shop.app.run_worker(burst=True)
    assert shop.ran.total() == 15
    with pytest.raises(Exception, match="cannot be read"):
        shop.app.pause_task("crm.push", reason="r")


def test_on_sqs_a_task_cannot_be_paused_which_says_why_and_what_to_do(tmp_path: Path) -> None:
    with SqsServer() as sqs:
        app = App(f"sqs://eu-central-1/shop?create=true&endpoint={sqs.url}&cells=sqlite:///{tmp_path}/cells.db")
        app.task(name="push")(lambda: None)
        with pytest.raises(Unsupported, match=r"maxReceiveCount; pause its queue, or hold the breaker"):
            app.pause_task("push", reason="r")
        assert app.task_state("push").paused is None and [*app.audit] == []
        app.store.close()


@pytest.mark.parametrize("wide", [False, True])
def test_messages_of_other_tasks_wait_behind_it_in_their_group_alone(shop: Shop, wide: bool) -> None:
    push, _, send = shop.tasks
    shop.app.store.configure("default", group_width=1)
    shop.app.pause_task("crm.push", reason="r")
    shop.app.enqueue_many([push.using(group="acme").draft(0), *(send.using(group="acme").draft(n) for n in range(3))])
    shop.app.enqueue_many([send.using(group="other" if wide else None).draft(n) for n in range(3)])
    shop.app.run_worker(burst=True)
    assert shop.ran == {"mail.send": 3}
    shop.app.resume_task("crm.push")
    shop.app.run_worker(burst=True)
    assert shop.ran == {"crm.push": 1, "mail.send": 6}
