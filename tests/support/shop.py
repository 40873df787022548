"""A dependency on loopback that fails as it is told and counts what reaches it, and workers that call it: threads of
this process on a memory store, else processes of their own (`shop.py PLAN`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from redrive import Aimd, App, Backoff, Breaker, Budget, Context, Retry
from redrive.events import Event, Notice
from redrive.message import Counts
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.worker.process import run

PATIENCE_S = 120.0


class Call(NamedTuple):
    """One call as it came in. `calls_now`: how many were under way then, this one included."""

    at_s: float
    key: str
    attempt: int
    fence: int
    worker: int
    task: str
    calls_now: int
    status: int


class Reply(NamedTuple):
    status: int = 204
    retry_after: str = ""
    delay_s: float = 0.0


UP, DOWN = Reply(), Reply(503)


class Shop:
    """Answers as `answer(shop)` says, by an event loop of its own. Use it as a context."""

    def __init__(self, answer: Callable[[Shop], Reply] = lambda shop: UP) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self.now = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Shop:
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # transports close a turn later

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            line = await reader.readline()
            if not line:
                return
            key, attempt, fence, worker, task = msgspec.json.decode(line)
            self.now += 1
            try:
                at_s = time.monotonic()
                reply = self.answer(self)
                self.calls.append(Call(at_s, key, attempt, fence, worker, task, self.now, reply.status))
                await asyncio.sleep(reply.delay_s)
                writer.write(msgspec.json.encode([reply.status, reply.retry_after]) + b"\n")
                await writer.drain()
            finally:
                self.now -= 1

    def of(self, task: str) -> list[Call]:
        return [call for call in self.calls if call.task == task]

    def between(self, from_s: float, to_s: float = float("inf")) -> list[Call]:
        return [call for call in self.calls if from_s <= call.at_s < to_s]

    @property
    def served(self) -> Counter[str]:
        """How often each key was answered well."""
        return Counter(call.key for call in self.calls if call.status < 300)


def most_within(calls: Sequence[Call], span_s: float) -> int:
    """The most calls that came within any such span."""
    times, most, first = sorted(call.at_s for call in calls), 0, 0
    for last, at_s in enumerate(times):
        while at_s - times[first] >= span_s:
            first += 1
        most = max(most, last - first + 1)
    return most


class Refused(Exception):
    """Looks as an HTTP client's error does."""

    def __init__(self, status: int, retry_after: str) -> None:
        super().__init__(f"HTTP {status}")
        headers = {"retry-after": retry_after} if retry_after else {}
        self.response = SimpleNamespace(status_code=status, headers=headers)


async def call_shop(port: int, key: str, task: str, ctx: Context) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(msgspec.json.encode([key, ctx.attempt, ctx.fence, os.getpid(), task]) + b"\n")
        status, retry_after = msgspec.json.decode(await reader.readline() or b'[503, ""]')
    if status >= 400:
        raise Refused(status, retry_after)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How the shop is called. `budget`, `breaker` and `aimd` are the arguments of those rules; None: off."""

    url: str = ""
    port: int = 0
    journal: str = ""
    concurrency: int = 20
    lease: float = 10.0
    budget: dict[str, Any] | None = None
    breaker: dict[str, Any] | None = None
    aimd: dict[str, Any] | None = None
    rate: str | None = None
    width: int = 1
    base: float = 0.1
    cap: float = 2.0


def make_app(plan: Plan, store: Store | None = None) -> App:
    """Tasks `call`, which depends on the shop, and `other`, which calls it too but does not say so."""
    app = App(plan.url) if store is None else App(store=store)
    app.dependency(
        "shop",
        budget=None if plan.budget is None else Budget(**plan.budget),
        breaker=None if plan.breaker is None else Breaker(**plan.breaker),
        concurrency=None if plan.aimd is None else Aimd(**plan.aimd),
        rate=plan.rate,
    )
    app.queue("default", concurrency=plan.concurrency, group_width=plan.width)
    retry = Retry(10_000, max_elapsed=None, backoff=Backoff(plan.base, 2, plan.cap))

    @app.task(name="call", dependency="shop", ctx=True, retry=retry)
    async def call(ctx: Context, key: str) -> None:
        await call_shop(plan.port, key, "call", ctx)

    @app.task(name="other", ctx=True)
    async def other(ctx: Context, key: str) -> None:
        await call_shop(plan.port, key, "other", ctx)

    return app


class Scene:
    """A shop, a store, and workers on it."""

    def __init__(self, shop: Shop, folder: Path, url: str, **plan: Any) -> None:
        self.shop, self.folder = shop, folder
        self.journal = folder / "journal"
        self.journal.touch()
        self.plan = Plan(url=url, port=shop.port, journal=str(self.journal), **plan)
        self.store = MemoryStore() if url == "memory://" else None
        self.app = make_app(self.plan, self.store)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[Crew] = []
        self._number = 0

    def put(self, count: int, task: str = "call", **using: Any) -> None:
        keys = [f"{task}-{self._number + n}" for n in range(count)]
        self._number += count
        to = self.app.tasks[task].using(**using)
        self.app.enqueue_many([to.draft(key) for key in keys])

    def start(self, count: int = 1) -> None:
        """So many more workers."""
        if self.store is not None:
            self._threads.append(Crew(self.app, self.journal, count))
            return
        argv = [sys.executable, __file__, msgspec.json.encode(self.plan).decode()]
        with (self.folder / "stderr").open("ab") as stderr:
            more = [subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=stderr) for _ in range(count)]
        self.processes += more

    def kill(self) -> None:
        """kill -9 of every worker process there is."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes = []

    def notices(self, name: str) -> list[str]:
        lines = [line.partition(" ") for line in self.journal.read_text().splitlines()]
        return [text for said, _, text in lines if said == name]

    def counts(self) -> Counts:
        return self.app.counts()

    def left(self) -> int:
        counts = self.counts()
        return counts.waiting + counts.leased

    def until(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        end_s = time.monotonic() + patience_s
        while not condition():
            for process in self.processes:
                assert process.poll() is None, (self.folder / "stderr").read_text()
            assert time.monotonic() < end_s, f"it did not come: {self.counts()}, {len(self.shop.calls)} calls"
            time.sleep(0.02)

    def close(self) -> None:
        for crew in self._threads:
            crew.close()
        self.kill()
        self.app.store.close()


@contextlib.contextmanager
def scene(folder: Path, url: str, answer: Callable[[Shop], Reply] = lambda shop: UP, **plan: Any) -> Iterator[Scene]:
    with Shop(answer) as shop:
        it = Scene(shop, folder, url, **plan)
        try:
            yield it
        finally:
            it.close()


class Crew:
    """Workers of one app on an event loop in a thread."""

    def __init__(self, app: App, journal: Path, count: int) -> None:
        self._app, self._journal, self._count = app, journal, count
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._work()), daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE_S)

    async def _work(self) -> None:
        note(self._app, self._journal)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(self._count):
                await stack.enter_async_context(self._app.worker(grace=0.1))
            self._up.set()
            await self._end.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)
        self._loop.close()


def note(app: App, journal: Path) -> None:
    """Write each notice as a line."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def told(events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Notice):
                os.write(file, f"{event.name} {event.about} {event.text}\n".encode())

    app.subscribe(told)


def end_with_parent() -> None:
    """A test that is killed cannot end its workers."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    app = make_app(plan)
    note(app, Path(plan.journal))
    run(app.worker(lease=plan.lease, grace=1))
