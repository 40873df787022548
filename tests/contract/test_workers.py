"""Who is alive: each process keeps one record, one that is killed is shown as gone, one that ends by itself is not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.urls import url_of
from tests.support.workers import until

from redrive import App, Retry
from redrive.audit.log import Audit
from redrive.errors import ConfigError, Refused, StoreUnavailable
from redrive.message import Cell, Swap, version_of
from redrive.presence import ProcessCell, WorkerInfo, read_workers
from redrive.stores import open_store
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage import draining


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App(url_of(request.param, request, tmp_path))
    yield app
    app.store.close()


def test_a_worker_is_listed_with_what_it_runs_until_it_ends(app: App) -> None:
    began, over = asyncio.Event(), asyncio.Event()

    @app.task(name="push", queue="crm")
    async def push() -> None:
        began.set()
        await over.wait()

    async def main() -> None:
        id = (await push.aenqueue()).id
        async with app.worker(queues={"crm": 3}, name="one") as worker:
            await began.wait()
            worker._presence.keeper.soon()
            await until(lambda: [info.held for info in app.workers()] == [1])
            (info,) = await asyncio.to_thread(app.workers)
            assert (info.name, info.gone, info.held) == (worker.name, False, 1)
            assert [(q.name, q.concurrency, q.held) for q in info.queues] == [("crm", 3, 1)]
            assert [(m.id, m.task, m.isolated, m.alone) for m in info.messages] == [(id, "push", False, False)]
            worker.drain()
            await until(lambda: [info.state for info in app.workers()] == ["draining"])
            over.set()

    asyncio.run(main())
    assert app.workers() == ()


def test_a_scheduler_is_listed_with_its_schedules(app: App) -> None:
    @app.periodic(every="1h")
    @app.task(name="report")
    def report() -> None: ...

    async def main() -> None:
        async with app.scheduler() as scheduler:
            await until(app.workers)
            (info,) = app.workers()
            assert (info.name, info.kind, info.schedules) == (scheduler.name, "scheduler", ("report",))

    asyncio.run(main())
    assert app.workers() == ()


def test_who_carries_a_redrive_run_says_so() -> None:
    app = App("memory://")

    @app.task(name="push", queue="crm", retry=Retry(max_attempts=1))
    def push() -> None:
        raise ConnectionError("down")

    app.enqueue_many([push.draft() for _ in range(100)])
    app.run_worker(burst=True)
    run = app.dlq.select().plan(rate="1/m", canary=0).start(reason="up again")

    async def main() -> None:
        async with app.worker() as worker:
            await until(lambda: worker._presence.keeper.record().runs == (run.id,))

    asyncio.run(main())
    seen: list[tuple[str, tuple[str, ...]]] = []

    async def waiting() -> None:
        wait = asyncio.create_task(asyncio.to_thread(run.wait, 2))
        await until(lambda: seen.extend((info.kind, info.runs) for info in app.workers()) or seen)
        run.cancel(reason="seen")
        await wait

    asyncio.run(waiting())
    assert seen[0] == ("carrier", (run.id,))
    assert app.workers() == ()


def record(store: MemoryStore, name: str, started_ms: int) -> WorkerInfo:
    return WorkerInfo(name=name, started_ms=started_ms, seen_ms=store.now_ms(), held=2)


def test_one_that_tells_nothing_for_15_s_is_gone_with_what_it_held_and_comes_back() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    entry = ProcessCell(store)
    entry.write(record(store, "a", 1))
    clock.advance("14.999s")
    assert [info.gone for info in read_workers(store)] == [False]
    clock.advance("1ms")
    assert [(info.gone, info.held) for info in read_workers(store)] == [(True, 2)]
    clock.advance("1h")
    assert read_workers(store) == ()  # it was stopped for an hour, and others take it out
    ProcessCell(store).write(record(store, "b", 2))
    entry.write(record(store, "a", 1))
    assert [(info.name, info.gone) for info in read_workers(store)] == [("a", False), ("b", False)]
    (cell,) = store.cells.read([entry.shard])
    store.cells.swap([Swap(entry.shard, version_of(cell), b"altered by hand")])
    entry.write(record(store, "a", 1))
    assert "a" in [info.name for info in read_workers(store)]
    entry.remove()
    assert "a" not in [info.name for info in read_workers(store)]


def test_one_whose_name_a_newer_process_has_is_gone_at_once() -> None:
    store = MemoryStore(ManualClock())
    for started_ms in (1, 2):
        ProcessCell(store).write(replace(record(store, "a", started_ms), pid=started_ms))
    assert [(info.started_ms, info.gone) for info in read_workers(store)] == [(2, False), (1, True)]


def test_a_store_that_fails_takes_a_worker_out_of_the_list_and_harms_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    @app.task(name="push")
    def push() -> None:
        ran.append(1)

    def fail(self: ProcessCell, info: WorkerInfo) -> None:
        raise StoreUnavailable("no cells today")

    monkeypatch.setattr(ProcessCell, "write", fail)
    push.enqueue()
    app.run_worker(burst=True)
    assert ran and app.workers() == ()


@pytest.mark.parametrize("on", [True, False])
def test_the_setting_telemetry_turns_it_off(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_TELEMETRY", str(on).lower())
    app = App(store=MemoryStore(ManualClock()))

    async def main() -> bool:
        async with app.worker(queues=["crm"]) as worker:
            pass
        return worker._presence.keeper.is_started

    assert asyncio.run(main()) is on


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_many_that_start_at_once_meet_few_others_and_renewals_meet_none(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, soak: bool
) -> None:
    processes = 200 if soak else 40
    url = url_of(engine, request, tmp_path)
    with contextlib.ExitStack() as ending:
        stores = [ending.enter_context(contextlib.closing(open_store(url))) for _ in range(processes // 20)]
        entries = [ProcessCell(stores[n % len(stores)]) for n in range(processes)]

        def at_once(act: Callable[[ProcessCell], None]) -> tuple[int, int]:
            """Each on a thread of its own; returns the retries of all, and of the one with most."""
            before = [entry.retries for entry in entries]
            together = threading.Barrier(processes)

            def go(entry: ProcessCell) -> None:
                together.wait()
                act(entry)

            with ThreadPoolExecutor(processes) as pool:
                list(pool.map(go, entries))
            more = [entry.retries - was for entry, was in zip(entries, before, strict=True)]
            return sum(more), max(more)

        def tell(entry: ProcessCell) -> None:
            entry.write(WorkerInfo(name=entry.token, started_ms=1, seen_ms=stores[0].now_ms()))

        begun = at_once(tell)
        listed = len(read_workers(stores[0]))
        renewed = at_once(tell)
        ended = at_once(ProcessCell.remove)
        print(
            f"\n{processes} processes at once on {engine}, retries of list swaps (in all, of one at most): "
            f"start {begun}, renewal {renewed}, end {ended}"
        )
        # A swap is lost only to one that was won, and each of a list wins once.
        sharing = Counter(entry.shard for entry in entries)
        most = sum(count * (count - 1) // 2 for count in sharing.values())
        assert (listed, renewed) == (processes, (0, 0))
        assert begun[0] <= most and ended[0] <= most
        assert read_workers(stores[0]) == ()


# -- draining one by request


def test_a_worker_that_is_asked_to_drain_ends_by_itself_and_the_log_says_who_asked(app: App) -> None:
    began, over = asyncio.Event(), asyncio.Event()

    @app.task(name="push", queue="crm")
    async def push() -> None:
        began.set()
        await over.wait()

    async def main() -> None:
        await push.aenqueue()
        worker = app.worker(queues=["crm"], name="one")
        worker.start()
        await began.wait()
        await until(lambda: [info.name for info in app.workers()] == [worker.name])
        await asyncio.to_thread(app.drain_worker, worker.name, reason="it leaks", actor="ann")
        (info,) = app.workers()
        assert info.drain_asked and not info.draining, "it has not read it yet"
        worker._presence.keeper.soon()
        await until(lambda: [info.state for info in app.workers()] == ["draining"])
        over.set()
        await asyncio.wait_for(worker.wait(), 30)
        (entry,) = app.audit
        assert (entry.action, entry.about, entry.claimed, entry.reason) == (
            "drain",
            f"worker/{worker.name}",
            "ann",
            "it leaks",
        )

    asyncio.run(main())
    assert app.workers() == () and app.store.counts().leased == 0


def test_a_request_that_comes_between_the_read_and_the_write_of_a_renewal_is_not_lost() -> None:
    store = MemoryStore(ManualClock())
    entry, told = ProcessCell(store), record(store, "a", 1)
    assert entry.write(told) is False
    read, requests = store.cells.read, [draining.drain_worker]

    def read_then_ask(keys: list[str]) -> list[Cell | None]:
        found = read(keys)
        while requests:
            requests.pop()(store, "a", reason="r")
        return found

    store.cells.read = read_then_ask  # type: ignore[method-assign, assignment]
    assert entry.write(told) is True
    (info,) = read_workers(store)
    assert info.drain_asked


def test_a_request_stays_in_the_record_until_the_worker_has_ended() -> None:
    store = MemoryStore(ManualClock())
    entry = ProcessCell(store)
    entry.write(record(store, "a", 1))
    draining.drain_worker(store, "a", reason="r")
    for _ in range(2):
        assert entry.write(record(store, "a", 1)) is True
        assert [info.drain_asked for info in read_workers(store)] == [True]
    entry.remove()
    assert read_workers(store) == ()


def test_only_a_living_worker_of_that_name_can_be_asked_to_drain() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    ProcessCell(store).write(record(store, "vm/killed", 1))
    clock.advance("15s")
    ProcessCell(store).write(record(store, "vm/a", 1))
    ProcessCell(store).write(replace(record(store, "scheduler/vm", 1), kind="scheduler"))
    with pytest.raises(Refused, match="vm/killed is gone"):
        draining.drain_worker(store, "vm/killed", reason="r")
    with pytest.raises(Refused, match="scheduler/vm is a scheduler, and only workers drain"):
        draining.drain_worker(store, "scheduler/vm", reason="r")
    with pytest.raises(ConfigError, match=r"there is no worker 'vm/b'; did you mean 'vm/a'\? alive: vm/a"):
        draining.drain_worker(store, "vm/b", reason="r")
    with pytest.raises(ConfigError, match="no reason is given"):
        draining.drain_worker(store, "vm/a", reason="")
    assert [*Audit(store)] == [] and not any(info.drain_asked for info in read_workers(store))
