"""Workers and a producer at work on a server's store, while something is done to the server or to the way there."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.crash.children import Child, balanced, fill, records, run, until
from tests.support.crash.ledger import Ledger, opened, produced, read
from tests.support.crash.programs import Plan

from redrive.errors import StoreError

RUN_MS = 100
LOOK_S = 1.0  # seconds between two looks for work that is left
LEASE = "6s"  # what a lost reply had claimed comes again after that


class Load:
    """Two workers with four places each, and a producer that goes on when it is refused. As a context manager it
    leaves no process behind.

    `busy_s` is how long the work lasts, at least. `url` is the store by way of a proxy.
    """

    def __init__(self, place: Path, *, busy_s: float, url: str = "", workers: int = 2, lease: str = LEASE) -> None:
        self.place = place
        self.waiting = int(busy_s * workers * 4 * 1000 / RUN_MS)
        self.enqueued = int(busy_s * 15)
        fill(place, self.waiting, RUN_MS)
        self._work = Plan(place=str(place), url=url, concurrency=4, prefetch=4, lease=lease, drain=False, told=True)
        self._produce = Plan(
            place=str(place), url=url, count=self.waiting + self.enqueued, pace_ms=200, patient=True, unsure=True
        )
        self._workers = workers
        self.more, self._looked_s = 0, 0.0  # messages that were put because all was done
        self._stack = ExitStack()

    def __enter__(self) -> Load:
        self.workers = [self._stack.enter_context(Child("worker", self._work)) for _ in range(self._workers)]
        self.producer = self._stack.enter_context(Child("producer", self._produce))
        self.goes_on(0.0)
        until("something is enqueued", lambda: self.acknowledged() > self.waiting + self.more, child=self.producer)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def goes_on(self, since_s: float, *, producer: bool = False) -> float:
        """Wait until every worker has settled something with the store after that moment, and (`producer`) something
        was enqueued; how long after it the last worker did."""
        last_s = 0.0
        for worker in self.workers:
            until("a worker goes on", lambda worker=worker: self._goes(worker, since_s), child=worker)
            last_s = max(last_s, (self._first(worker, since_s) or 0.0) - since_s)
        if producer and self.producer.process.poll() is None:
            until("the producer goes on", lambda: self._enqueued_since(since_s) or self.producer.process.poll() == 0)
        return last_s

    def _goes(self, worker: Child, since_s: float) -> bool:
        """Whether the worker has settled something since then. On a loaded machine the work may be over before the
        fault is, and a worker without work settles nothing: then more is put."""
        if self._first(worker, since_s) is not None:
            return True
        if time.monotonic() >= self._looked_s + LOOK_S:
            with contextlib.suppress(StoreError):  # the server may still be away
                self._put_more_if_idle()
            self._looked_s = time.monotonic()
        return False

    def _put_more_if_idle(self) -> None:
        with contextlib.closing(opened(self.place)) as store:
            idle = not store.counts().ready
        if idle:
            self.more += len(fill(self.place, 4 * self._workers * 4, RUN_MS))

    def _first(self, worker: Child, since_s: float) -> float | None:
        pid = worker.process.pid
        settled = records(self.place, "fate", "done")  # journalled once the store has confirmed it
        return next((r.at_s for r in settled if r.pid == pid and r.at_s > since_s), None)

    def _enqueued_since(self, since_s: float) -> bool:
        return any(r.what == "ack" and r.at_s > since_s for r in read(produced(self.place)))

    def acknowledged(self) -> int:
        return sum(r.what == "ack" for r in read(produced(self.place)))

    def refusals(self) -> list[str]:
        """The errors that the producer got."""
        return [r.note for r in read(produced(self.place)) if r.what == "refused"]

    def finish(self) -> Ledger:
        """The books, once the producer has ended, the workers were stopped in order and another one did the rest."""
        self.producer.ends_well()
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        for worker in self.workers:
            worker.ends_well()
        assert run("worker", Plan(place=str(self.place), concurrency=8, prefetch=8)) == 0
        ledger = balanced(self.place)
        assert not ledger.killed
        return ledger


def pause(rng: random.Random, least_s: float, most_s: float) -> None:
    time.sleep(rng.uniform(least_s, most_s))
