"""Run one delivery from start to end: a worker sends the queue's messages while a thread still enqueues the rest."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..app import App
from ..config import is_shared
from ..errors import Refused, StoreError
from ..events import Observer
from ..files import make_folder, open_file
from ..policy import Retry
from ..store import Store
from ..worker import Worker
from .ingest import FileRecord, Ledger, LineIngest
from .lines import Stamp
from .pace import Pacer
from .progress import OutcomeTally
from .sending import Poster, UrlTarget, delivery_app, new_client

TICK_S = 0.1
LOOK_EVERY_S = 2.0  # seconds between corrections of the counts from the store


class DeliveryOptions(Struct, frozen=True, kw_only=True):
    """Options of a delivery. `rate` bounds requests per second, retries included; None: no bound."""

    retry: Retry
    concurrency: int = 10
    rate: float | None = None
    lease_s: float = 30.0


class FileDelivery:
    """Sends all lines that the ledger's record does not count yet; calls `tick` a few times a second.

    A second run of the same delivery at the same time on one machine is refused. The worker is named after the queue,
    so the next run takes back at once the messages that a killed one had leased.
    """

    store: Store
    target: UrlTarget
    options: DeliveryOptions
    tally: OutcomeTally
    stopping: int
    poster: Poster

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        start: FileRecord,
        target: UrlTarget,
        options: DeliveryOptions,
        tick: Callable[[FileDelivery], Any] = bool,
        observers: Sequence[Observer] = (),
        new_poster: type[Poster] = Poster,
    ) -> None:
        self._new_poster = new_poster
        self.store, self.target, self.options, self.tally = store, target, options, OutcomeTally()
        self._ledger, self._start, self._tick = ledger, start, tick
        self._observers: tuple[Observer, ...] = (self.tally, *observers)
        self.stopping = 0  # number of times `stop` was called

    @property
    def record(self) -> FileRecord:
        return self._ledger.record or self._start

    def run(self, path: Path, stamp: Stamp, limit: int) -> bool:
        """Run until all lines have ended; False if it was interrupted. Raises StoreError, Refused, FileChanged."""
        with _alone(self.store.state_dir, self.record.queue):
            return _run(self._run(path, stamp, limit))

    def stop(self) -> None:
        """Send no more requests and wait for those in progress; a second call cancels them."""
        self.stopping += 1
        self._pacer.stop()
        self._ingest.stop()
        self._worker.drain()

    def session(self) -> dict[str, int]:
        """Return the counts of this run: its requests, its retries, and the messages that a retry delivered."""
        return {"requests": self.poster.requests, "retries": self.tally.retries, "saved": self.tally.delivered_later}

    async def _run(self, path: Path, stamp: Stamp, limit: int) -> bool:
        self._pacer = Pacer(self.options.rate)
        async with new_client(self.target, self.options.concurrency) as client:
            self.poster = self._new_poster(client, self.target, self._pacer)
            app = self._new_app()
            self._worker = self._new_worker(app)
            self._open_record()
            self._ingest = LineIngest(app, self._ledger, path, stamp, limit, self._count_put)
            with _signals(self.stop):
                self._worker.start()
                over = asyncio.create_task(self._worker.wait())
                try:
                    await self._until_over(over)
                finally:
                    if not self.stopping:
                        self._worker.drain()
                    await over
                    self._tick(self)
        return not self.stopping

    def _new_app(self) -> App:
        wait_s = self._pacer.wait_max_s(2 * self.options.concurrency)
        timeout_s = self.target.timeout_s + wait_s
        app: App = delivery_app(self.store, self.record.queue, self.poster, self.options.retry, timeout_s)
        for observer in self._observers:
            app.subscribe(observer)
        return app

    def _new_worker(self, app: App) -> Worker:
        queue, size = self.record.queue, self.options.concurrency
        # A request may take as long as its timeout when the worker stops: a response spares the endpoint a duplicate.
        return app.worker({queue: size}, lease=self.options.lease_s, grace=self.target.timeout_s + 1, name=queue)

    def _open_record(self) -> None:
        """Read the record, or create it, and mark it as running."""
        self._ledger.read()
        if self._ledger.record is None:
            self._ledger.write(self._start)
        waiting, resting = self._waiting()
        self.tally.correct(waiting)
        self._ledger.write(reopen(self.record, waiting + resting))

    def _count_put(self, put: int) -> None:
        self.tally.put += put

    async def _until_over(self, worker: asyncio.Task[None]) -> None:
        ingest = asyncio.create_task(asyncio.to_thread(self._ingest.run))
        looked_s = 0.0
        try:
            while not worker.done():
                await asyncio.wait({worker}, timeout=TICK_S)
                self._tick(self)
                if ingest.done():
                    ingest.result()
                    late = time.monotonic() - looked_s > LOOK_EVERY_S
                    if (self.tally.waiting <= 0 or late) and await asyncio.to_thread(self._is_empty):
                        return
                    looked_s = time.monotonic() if late else looked_s
        finally:
            self._ingest.stop()
            await asyncio.wait({ingest})

    def _is_empty(self) -> bool:
        try:
            waiting = self._waiting()[0]
        except StoreError:
            return False  # the store is unreachable: the worker waits too
        self.tally.correct(waiting)
        return waiting == 0

    def _waiting(self) -> tuple[int, int]:
        """Return the numbers of messages of this delivery that have not ended, and of those dead or quarantined."""
        c = self.store.counts(self.record.queue)
        return c.waiting + c.leased, c.dead + c.quarantine


def reopen(record: FileRecord, held: int) -> FileRecord:
    """Return the record for a new run. `held` messages are stored; more in `resting` were removed by hand."""
    gone = 0 if record.resting is None else max(0, record.resting - held)
    return replace(record, resting=None, removed=record.removed + gone)


@contextlib.contextmanager
def _alone(folder: Path | None, queue: str) -> Iterator[None]:
    """Hold the delivery's lock, which the kernel releases when the process ends. Raises Refused if it is held."""
    if folder is None:  # without a folder only the record's version prevents that a line is enqueued twice
        yield
        return
    try:
        make_folder(folder, shared=is_shared())
        lock = open_file(folder / f"{queue}.lock", os.O_RDWR | os.O_CREAT, shared=is_shared())
    except OSError as error:
        raise Refused(f"cannot lock this delivery: {error}") from error
    with os.fdopen(lock, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("this delivery runs already; wait for it, or stop it and run the command again") from None
        yield


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _run(main: Any) -> bool:
    try:
        import uvloop
    except ImportError:
        return bool(asyncio.run(main))
    return bool(uvloop.run(main))
