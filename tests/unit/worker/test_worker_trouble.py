"""A worker whose store fails, whose leases are lost, or that is told to end: nothing is lost or counted wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.workers import PATIENCE_S, SOON, Crowd, Heard, Watched, stored, until

import redrive
from redrive import App, Backoff, Context, Retry
from redrive.errors import Cancelled, LeaseLost, StoreUnavailable
from redrive.events import Notice
from redrive.message import ClaimRequest, Lane
from redrive.worker import Service
from redrive.worker.crash.ledger import hold


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.close()


class Holding:
    """Tasks that run until `go` is set: a coroutine, a thread that can be told, and one that will not listen."""

    def __init__(self, app: App, **options: Any) -> None:
        self.go = threading.Event()
        self.ran = Crowd()
        self.ended: list[str] = []  # with which exception, or "done"

        @app.task(name="coroutine", **options)
        async def coroutine() -> None:
            with self._running():
                await until(self.go.is_set)

        @app.task(name="thread", **options)
        def thread() -> None:
            with self._running():
                while not self.go.is_set():
                    redrive.context().check()
                    time.sleep(0.002)

        @app.task(name="deaf", **options)
        def deaf() -> None:
            with self._running():
                assert self.go.wait(30)

        @app.task(name="stubborn", **options)
        async def stubborn() -> None:
            with self._running():
                while not self.go.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.002)

        self.tasks = {task.name: task for task in (coroutine, thread, deaf, stubborn)}

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        with self.ran.inside():
            try:
                yield
            except BaseException as error:
                self.ended.append(type(error).__name__)
                raise
            self.ended.append("done")


KINDS = ["coroutine", "thread", "deaf", "stubborn"]

# -- the end: drain and release


def test_a_drain_lets_what_runs_finish_and_releases_the_rest_uncounted(app: App) -> None:
    holding, heard = Holding(app), Heard(app)

    async def main() -> list[str]:
        refs = await app.aenqueue_many([holding.tasks[kind].draft() for kind in ("coroutine", "thread") * 3])
        async with app.worker({"default": 2}, prefetch=2) as worker:
            await until(lambda: holding.ran.now == 2 and app.counts().leased == 4)
            worker.drain()
            await until(lambda: app.counts().ready == 4)  # at once, while two still run
            holding.go.set()
        return [ref.id for ref in refs]

    ids = asyncio.run(main())
    messages = app.store.find(ids)
    left = [m for m in messages if m is not None]
    assert len(left) == 4 and {(m.lane, m.attempt, m.crashes) for m in left} == {(Lane.READY, 0, 0)}
    assert holding.ended == ["done", "done"] and Counter(heard.outcomes) == {"done": 2, "released": 2}
    assert {f.attempt for f in heard.fates if f.outcome == "released"} == {0}
    assert "draining" in heard.notices
    app.run_worker(drain=True)
    assert holding.ran.total == 6 and app.counts().ready == 0


def test_a_drain_starts_no_claimed_message_while_an_exchange_lasts(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[int] = []
    ended: list[int] = []
    last, slow, reached, go_on = -1, threading.Event(), threading.Event(), threading.Event()
    exchange = app.store.exchange

    @app.task()
    async def take(n: int) -> None:
        began.append(n)
        await until(lambda: last >= n)
        ended.append(n)

    def when_told(*args: Any, **options: Any) -> Any:
        if slow.is_set():
            reached.set()
            assert go_on.wait(30)
        return exchange(*args, **options)

    async def main() -> None:
        nonlocal last
        monkeypatch.setattr(app.store, "exchange", when_told)
        await app.aenqueue_many([take.draft(n) for n in range(4)])
        async with app.worker({"default": 2}, prefetch=2) as worker:
            await until(lambda: len(began) == 2 and app.counts().leased == 4)
            slow.set()
            last = 0
            await until(reached.is_set)  # with what became of 0
            await until(lambda: len(began) == 3)
            worker.drain()
            last = 3
            await until(lambda: len(ended) == 3)
            go_on.set()

    asyncio.run(main())
    assert len(began) == 3 and app.counts().ready == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_outlasts_the_grace_is_released_uncounted(app: App, kind: str) -> None:
    holding, heard = Holding(app), Heard(app)

    async def main() -> str:
        async with app.worker(grace="50ms"):
            ref = await holding.tasks[kind].aenqueue()
            await until(lambda: holding.ran.now == 1)
        message = stored(app, ref.id)
        assert (message.lane, message.attempt, message.crashes, message.faults) == (Lane.READY, 0, 0, ())
        assert message.state_at(app.store.now_ms()) == "ready"
        holding.go.set()
        await until(lambda: holding.ran.now == 0)
        return ref.id

    id = asyncio.run(main())
    assert heard.outcomes == ["released"]
    told = {"coroutine": "CancelledError", "thread": "Cancelled", "deaf": "done", "stubborn": "done"}[kind]
    assert holding.ended == [told]
    assert stored(app, id).attempt == 0  # a late end changed nothing
    app.run_worker(burst=True)
    assert app.job(id) is None and heard.outcomes == ["released", "done"]


def test_release_now_does_not_wait_for_the_grace(app: App) -> None:
    holding, heard = Holding(app), Heard(app)

    async def main() -> None:
        async with app.worker(grace="10m") as worker:
            await holding.tasks["coroutine"].aenqueue()
            await until(lambda: holding.ran.now == 1)
            worker.release_now()
            await asyncio.wait_for(worker.wait(), 30)

    asyncio.run(main())
    assert heard.outcomes == ["released"] and holding.ended == ["CancelledError"]


def test_a_fault_of_its_own_during_the_grace_counts(app: App) -> None:
    holding = Holding(app, retry=SOON)

    @app.task(retry=SOON)
    async def fails() -> None:
        with holding.ran.inside():
            await until(holding.go.is_set)
            raise ConnectionError("down")

    async def main() -> str:
        async with app.worker() as worker:
            ref = await fails.aenqueue()
            await until(lambda: holding.ran.now == 1)
            worker.drain()
            await until(lambda: worker.draining)
            holding.go.set()
        return ref.id

    message = stored(app, asyncio.run(main()))
    assert (message.attempt, [f.kind.value for f in message.faults]) == (1, ["transient"])


def test_an_error_in_the_embedding_block_drains_the_worker_and_goes_on(app: App) -> None:
    begun, done = list[int](), list[int]()

    @app.task()
    async def task() -> None:
        begun.append(1)
        await asyncio.sleep(0.01)
        done.append(1)

    async def main() -> None:
        async with app.worker():
            await task.aenqueue()
            await until(lambda: begun)  # one that is only claimed goes back
            raise ZeroDivisionError("the block's own")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert done == [1]


def test_a_worker_may_be_told_twice_and_waited_for_after_its_end(app: App) -> None:
    async def main() -> None:
        async with app.worker() as worker:
            worker.drain()
            worker.drain()
            await worker.wait()
            worker.drain()
            worker.release_now()

    asyncio.run(main())


def signals_itself(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_drains_run_worker_and_it_returns(app: App, number: signal.Signals) -> None:
    heard, done = Heard(app), []

    @app.task()
    async def task(n: int) -> None:
        if n == 0:
            signals_itself(number)
        await until(lambda: heard.outcomes.count("released") == 2)  # both are given back while two run
        done.append(n)

    app.enqueue_many([task.draft(n) for n in range(6)])
    app.run_worker({"default": 2}, prefetch=2)
    assert sorted(done) == [0, 1] and app.counts().ready == 4
    assert Counter(heard.outcomes) == {"done": 2, "released": 2}


@pytest.mark.parametrize("kind", ["coroutine", "thread", "deaf", "stubborn"])
def test_a_second_signal_releases_at_once_whatever_the_handler_does(app: App, kind: str) -> None:
    holding, heard = Holding(app), Heard(app)
    signals = threading.Thread(target=_signal_twice, args=(holding, heard))
    signals.start()
    ref = holding.tasks[kind].enqueue()
    app.run_worker(grace="10m")
    signals.join()
    assert heard.outcomes == ["released"] and ref.state == "ready" and stored(app, ref.id).attempt == 0
    assert holding.ended == {"coroutine": ["CancelledError"], "thread": ["Cancelled"]}.get(kind, [])
    holding.go.set()


def _signal_twice(holding: Holding, heard: Heard) -> None:
    while not holding.ran.now:
        time.sleep(0.002)
    signals_itself(signal.SIGTERM)
    while "draining" not in heard.notices:  # two pending ones of a kind may become one
        time.sleep(0.002)
    signals_itself(signal.SIGTERM)


# -- a store that fails for a while


@pytest.mark.parametrize(
    "down",
    [{"exchange"}, {"exchange", "extend", "wait", "counts"}, {"wait"}, {"counts"}],
    ids=lambda d: "+".join(sorted(d)),
)
def test_a_worker_goes_on_when_its_store_comes_back(store: Watched, down: set[str]) -> None:
    app = App(store=store)
    heard, seen = Heard(app), Counter[int]()

    @app.task()
    async def task(n: int) -> None:
        seen[n] += 1
        if n == 3:
            store.down |= down

    async def main() -> None:
        async with app.worker({"default": 2}, burst="counts" in down):  # only a burst counts, and only others idle
            await until(lambda: store.refused >= 3)
            store.down.clear()
            await until(lambda: len(heard.fates) == 30 and told()[-1] == "store_back")

    def told() -> list[str]:
        return [name for name in heard.notices if name.startswith("store_")]

    app.enqueue_many([task.draft(n) for n in range(30)])
    asyncio.run(main())
    assert seen == dict.fromkeys(range(30), 1) and heard.outcomes == ["done"] * 30
    assert told() == ["store_unavailable", "store_back"] * (len(told()) // 2)
    assert len(told()) == 2 or "exchange" not in down  # said once, however often it is tried


def test_a_settlement_that_failed_goes_with_the_next_exchange(store: Watched) -> None:
    app = App(store=store)
    heard, runs = Heard(app), []

    @app.task()
    async def task() -> None:
        runs.append(1)
        store.down.add("exchange")

    async def main() -> None:
        async with app.worker():
            ref = await task.aenqueue()
            await until(lambda: store.refused >= 2)
            assert ref.state == "leased" and heard.outcomes == []
            store.down.clear()
            await until(lambda: heard.outcomes == ["done"])

    asyncio.run(main())
    assert runs == [1] and app.counts().leased == 0


def test_another_process_that_locks_the_file_only_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.file.BUSY_TIMEOUT_S", 0.05)
    store = Watched(tmp_path)
    app = App(store=store)
    heard, seen = Heard(app), Counter[int]()

    @app.task()
    def task(n: int) -> None:
        seen[n] += 1
        if n == 5:
            other.execute("begin immediate")

    async def main() -> None:
        async with app.worker({"default": 1}, burst=True) as worker:
            await until(lambda: "store_unavailable" in heard.notices)
            other.execute("rollback")
            await worker.wait()

    app.enqueue_many([task.draft(n) for n in range(20)])
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)) as other:
        asyncio.run(main())
    assert seen == dict.fromkeys(range(20), 1) and heard.outcomes == ["done"] * 20
    store.close()


def test_a_worker_can_end_while_its_store_is_out(store: Watched) -> None:
    app = App(store=store)
    holding = Holding(app)

    async def main() -> str:
        worker = app.worker(grace="50ms")
        worker.start()
        ref = await holding.tasks["coroutine"].aenqueue()
        await until(lambda: holding.ran.now == 1)
        store.down.add("exchange")
        worker.drain()
        with pytest.raises(StoreUnavailable):
            await worker.wait()
        store.down.clear()
        return ref.id

    id = asyncio.run(main())
    assert stored(app, id).lane is Lane.LEASED
    holding.go.set()
    app.run_worker(burst=True)  # it has the identity of the one that ended, and so takes back what that held
    assert app.job(id) is None


def test_an_error_that_is_no_store_error_ends_the_worker_and_is_raised(store: Watched) -> None:
    app = App(store=store)

    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug in the store")

    store.exchange = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError):
        app.run_worker(["default"])


def test_a_worker_that_cannot_close_one_of_its_parts_closes_the_others_and_ends(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, closed = Heard(app), list[str]()

    class Part(Service):
        def __init__(self, name: str, error: str) -> None:
            self.name, self.error = name, error

        def look(self, *, now: bool = False) -> None:
            if self.error:
                raise ZeroDivisionError(self.error)

        def close(self) -> None:
            closed.append(self.name)
            if self.error:
                raise RuntimeError(f"{self.name} cannot be closed")

    parts = [Part("first", ""), Part("second", "a bug in a service"), Part("third", "")]
    monkeypatch.setattr(app, "_services", lambda *_: [lambda *_, part=part: part for part in parts])

    async def main() -> None:
        worker = app.worker()
        worker.start()
        await asyncio.wait_for(worker.wait(), PATIENCE_S)

    with pytest.raises(ZeroDivisionError, match="a bug in a service"):
        asyncio.run(main())
    assert closed == ["third", "second", "first"]
    [text] = [event.text for event in heard.events if isinstance(event, Notice) and event.name == "stopped"]
    assert "a bug in a service" in text and "second cannot be closed" in text


# -- too few threads


def limit_threads(monkeypatch: pytest.MonkeyPatch, most: Callable[[], int]) -> list[str]:
    """Let no more than `most` threads start for handlers; return the names of those that could not."""
    refused, start = list[str](), threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        number = thread.name.removeprefix("redrive-")
        if number.isdigit() and int(number) > most():
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return refused


def test_where_no_more_threads_can_start_the_handlers_share_those_there_are(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, ran = limit_threads(monkeypatch, lambda: 2), list[int]()

    @app.task(name="job")
    def job(n: int) -> None:
        time.sleep(0.01)
        ran.append(n)

    async def main() -> None:
        await app.aenqueue_many([job.draft(n) for n in range(20)])
        async with app.worker({"default": 6}, grace=0):
            await until(lambda: len(ran) == 20 and not app.counts().leased)

    asyncio.run(main())
    assert sorted(ran) == [*range(20)] and refused


def test_where_no_thread_can_start_messages_go_back_uncounted_and_run_later(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, ran, heard = [0], list[int](), Heard(app)
    refused = limit_threads(monkeypatch, lambda: most[0])

    @app.task(name="job")
    def job(n: int) -> None:
        ran.append(n)

    @app.task(name="jobs", gather=5)
    def jobs(items: list[int]) -> None:
        ran.extend(items)

    async def main() -> None:
        await app.aenqueue_many([job.draft(n) for n in range(9)] + [jobs.draft(n) for n in range(9, 12)])
        async with app.worker({"default": 2}, grace=0):
            await until(lambda: refused and not app.counts().leased)
            most[0] = 1
            await until(lambda: len(ran) == 12 and not app.counts().leased)

    asyncio.run(main())
    assert sorted(ran) == [*range(12)]
    assert {(fate.outcome, fate.attempt) for fate in heard.fates} == {("held", 0), ("done", 1)}


# -- leases


def test_leases_of_what_runs_and_of_what_waits_are_renewed(store: Watched) -> None:
    app = App(store=store)
    holding = Holding(app)

    async def main() -> None:
        async with app.worker({"default": 1}, lease="300ms", prefetch=1):
            refs = await app.aenqueue_many([holding.tasks["coroutine"].draft() for _ in range(2)])
            await until(lambda: len(store.extended) >= 4 and len(store.extended[-1][2]) == 2)
            assert [ref.state for ref in refs] == ["leased", "leased"]
            holding.go.set()
            await until(lambda: holding.ran.total == 2)

    asyncio.run(main())
    assert holding.ran.most == 1 and app.counts().leased == 0


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_handler_whose_lease_cannot_be_renewed_ends_before_the_lease_does(store: Watched, kind: str) -> None:
    app = App(store=store)
    heard, left_ms = Heard(app), []

    @app.task(name="coroutine")
    async def coroutine() -> None:
        if left_ms:
            return
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            left_ms.append((stored(app, redrive.context().message_id).due_ms or 0) - store.now_ms())
            raise

    @app.task(name="thread")
    def thread() -> None:
        ctx = redrive.context()
        while not (left_ms or ctx.cancelled):
            time.sleep(0.002)
        if left_ms:
            return
        left_ms.append((stored(app, ctx.message_id).due_ms or 0) - store.now_ms())
        with pytest.raises(LeaseLost):
            ctx.check()
        ctx.check()

    async def main() -> None:
        async with app.worker(lease="3s"):  # told half a second before its end: a busy machine needs it
            store.down.add("extend")
            await app.tasks[kind].aenqueue()
            await until(lambda: len(heard.fates) == 2)

    asyncio.run(main())
    assert left_ms[0] > 0 and heard.outcomes == ["released", "done"]
    assert [(fate.attempt, fate.crashes) for fate in heard.fates] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_worker_that_lost_its_lease_ends_the_handler_and_settles_nothing(app: App, kind: str) -> None:
    holding, heard = Holding(app), Heard(app)

    async def main() -> None:
        async with app.worker({"default": 1}, prefetch=0, lease="600ms") as worker:  # full: it claims nothing itself
            ref = await holding.tasks[kind].aenqueue()
            await until(lambda: holding.ran.now == 1)
            app.store.reclaim(worker.name, None)  # as if its lease had run out
            [other] = app.store.exchange([], [ClaimRequest("default", 1, 60_000, worker="other")]).deliveries
            assert (other.message.id, other.message.crashes) == (ref.id, 1)
            await until(lambda: holding.ended)
            await until(lambda: heard.fates)
        message = stored(app, ref.id)
        assert (message.lane, message.worker, message.fence) == (Lane.LEASED, "other", other.receipt.fence)

    asyncio.run(main())
    assert holding.ended == [{"coroutine": "CancelledError", "thread": "LeaseLost"}[kind]]
    assert heard.outcomes == ["lost"]


def test_a_handler_that_ends_just_after_its_lease_was_lost_is_stale(app: App) -> None:
    holding, heard = Holding(app), Heard(app)

    async def main() -> None:
        async with app.worker({"default": 1}, prefetch=0, lease="10m") as worker:  # so long that no heartbeat tells it
            ref = await holding.tasks["coroutine"].aenqueue()
            await until(lambda: holding.ran.now == 1)
            app.store.reclaim(worker.name, None)
            app.store.exchange([], [ClaimRequest("default", 1, 60_000, worker="other")])
            holding.go.set()
            await until(lambda: heard.fates)
        assert stored(app, ref.id).worker == "other"

    asyncio.run(main())
    assert holding.ended == ["done"] and heard.outcomes == ["stale"]


@pytest.mark.parametrize("kind", ["stubborn", "deaf"])
def test_no_lease_is_renewed_past_the_timeout_and_the_grace(store: Watched, kind: str) -> None:
    app = App(store=store)
    holding = Holding(app, timeout="300ms", retry=Retry(max_attempts=1, backoff=Backoff.fixed(0)))
    heard = Heard(app)

    async def main() -> tuple[float, str]:
        async with app.worker(lease="300ms", grace="200ms"):
            ref = await holding.tasks[kind].aenqueue()
            await until(lambda: holding.ran.now == 1)
            began_s = time.monotonic()
            await until(lambda: stored(app, ref.id).crashes)  # its lease ran out, and this very worker claimed it
            await until(lambda: holding.ran.now == 2)
            holding.go.set()
            await until(lambda: holding.ran.now == 0)
            await until(lambda: len(heard.fates) == 2)
        return began_s, ref.id

    began_s, id = asyncio.run(main())
    first = store.extended[0][2][0]
    ends = [at_s + lease_ms / 1000 for at_s, lease_ms, receipts in store.extended if first in receipts]
    assert ends and max(ends) - began_s < 0.3 + 0.2 + 0.25  # a quarter second for the way from clock to clock
    assert sorted(heard.outcomes) in (["done", "stale"], ["done", "lost"]) and app.job(id) is None


def test_a_run_waits_no_longer_than_its_lease_for_a_place(store: Watched) -> None:
    """A lease that ran out while its message waited: another worker may run it, so this one does not start it."""
    app = App(store=store)
    holding, heard = Holding(app), Heard(app)

    async def main() -> None:
        async with app.worker({"default": 1}, lease="400ms", prefetch=1):
            store.down.add("extend")
            await app.aenqueue_many([holding.tasks["stubborn"].draft() for _ in range(2)])
            await until(lambda: holding.ran.now == 1 and app.counts().leased == 2)
            await asyncio.sleep(0.5)
            store.down.clear()
            holding.go.set()
            await until(lambda: app.counts().leased + app.counts().ready == 0)

    asyncio.run(main())
    assert holding.ran.total == 2 and holding.ran.most == 1
    assert heard.outcomes.count("done") == 2


# -- what is told


def test_the_worker_says_when_it_starts_drains_and_stops(app: App) -> None:
    heard = Heard(app)

    async def main() -> None:
        async with app.worker():
            pass

    asyncio.run(main())
    assert heard.notices == ["started", "draining", "stopped"]


def test_a_worker_tells_what_it_took_back_from_a_dead_one(store: Watched, tmp_path: Path) -> None:
    app = App(store=store)
    heard, seen = Heard(app), []

    @app.task(ctx=True)
    async def task(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.crashes))

    assert store.state_dir is not None
    dead = hold(store.state_dir, "w")
    task.enqueue()
    store.exchange([], [ClaimRequest("default", 1, 600_000, worker=dead.worker)])
    dead.close()  # as its kernel does for one that was killed
    app.run_worker(burst=True, name="w")
    assert seen == [(1, 1)] and "took_back" in heard.notices  # nothing is known of what it had started: a crash
    [text] = [e.text for e in heard.events if getattr(e, "name", "") == "took_back"]
    assert "1 started and 0 unstarted" in text and dead.worker in text


def test_checks_tell_the_reasons_apart() -> None:
    ctx = Context(stored_message(), time.monotonic() + 60)
    ctx.check()
    ctx.stop("drain")
    with pytest.raises(Cancelled, match="drain"):
        ctx.check()
    ctx.stop("lease")
    with pytest.raises(LeaseLost):
        ctx.check()
    over = Context(stored_message(), time.monotonic())
    assert over.cancelled and over.remaining == 0.0
    with pytest.raises(TimeoutError):
        over.check()


def stored_message() -> redrive.message.Message:
    return redrive.message.Message("id", "task", "queue", b"", "id")
