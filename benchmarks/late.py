"""How late messages run while an open transaction elsewhere holds a snapshot, and much was deleted since it began.

Each case puts a message where four busy workers have looked already: below the place in the index from which they read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from redrive import App, Backoff, Context, Reject, Retry
from redrive.flow.breaker_rule import Breaker
from redrive.message import ClaimRequest, Delivery, Draft, Filter, Lane

from .harness import Broken, Child, Options, Place, Reading, fresh
from .snapshot import held, on_postgres
from .tasks import Records, read_records

WORKERS, CONCURRENCY = 4, 20
CHUNK, DEPTH = 500, 2_000
BESIDE_PER_S = 500
CASES_FROM, CASE = 1_000_000_000, 1_000_000  # indexes of the cases, from where on and how far apart
CLAIMS_MAX = 10_000
WITHIN_S = 60.0  # a case is given up after that
WANTED = "≤ 2"


def make_app(url: str, add: Callable[[int], None] = lambda index: None) -> App:
    """`note` leaves a record, `brief` at its end after a second, `cured` once it was redriven; `down` always fails."""
    app = App(url)
    app.queue("default", concurrency=CONCURRENCY, group_width=1)
    app.dependency("down", breaker=Breaker(min_calls=5, open_for="600s", max_open="600s"), budget=None)

    @app.task(name="note")
    async def note(i: int) -> None:
        add(i)

    @app.task(name="brief")
    async def brief(i: int) -> None:
        await asyncio.sleep(1)
        add(i)

    @app.task(name="cured", ctx=True)
    async def cured(ctx: Context, i: int) -> None:
        if not ctx.message.redrives:
            raise Reject("not yet")
        add(i)

    @app.task(name="down", dependency="down", retry=Retry(backoff=Backoff.fixed("1s")))
    async def down(i: int) -> None:
        raise ConnectionError("it is down")

    return app


def late_worker(url: str, records: str) -> None:
    """A worker of that app until SIGTERM."""
    make_app(url, Records(Path(records)).add).run_worker()


def late(options: Options) -> list[Reading]:
    """What comes late below what four workers have looked through, while a snapshot is held: until it runs."""
    found: dict[str, list[float]] = {}
    with on_postgres(options) as engine:
        for _ in range(options.rounds):
            for name, late_s in _round(options, fresh(options, "late", engine)).items():
                found.setdefault(name, []).append(late_s)
    return [Reading(name, "s", values, WANTED) for name, values in found.items()]


def _round(options: Options, place: Place) -> dict[str, float]:
    app = make_app(place.url)
    with held(place), _workers(place) as records:
        _stream(app, options.stream, records)
        with _beside(app):
            cases = _Cases(app, place, records, options.late_s)
            return {name: case(CASES_FROM + n * CASE) for n, (name, case) in enumerate(cases.all().items())}


@contextlib.contextmanager
def _workers(place: Place) -> Iterator[Callable[[], dict[int, float]]]:
    """Worker processes, and what they have recorded."""
    with contextlib.ExitStack() as stack:
        children = []
        for number in range(WORKERS):
            folder = place.folder / f"worker-{number}"
            folder.mkdir()
            children.append(
                stack.enter_context(Child(folder, "late_worker", place.url, folder / "late_worker.records"))
            )
        for child in children:
            child.await_records(0)
        yield lambda: {index: at_s for child in children for index, at_s in read_records(child.records)}
        for child in children:
            child.stop()


def _stream(app: App, count: int, records: Callable[[], dict[int, float]]) -> None:
    """Let that many messages pass through."""
    note = app.tasks["note"]
    for at in range(0, count, CHUNK):
        app.enqueue_many([note.draft(i) for i in range(at, min(count, at + CHUNK))])
        while at % DEPTH == 0 and at - len(records()) > DEPTH:
            time.sleep(0.05)
    await_until(lambda: len(records()) >= count, f"{count} messages to run")


@contextlib.contextmanager
def _beside(app: App) -> Iterator[None]:
    """Some traffic, so that every worker goes on claiming."""
    over, note = threading.Event(), app.tasks["note"]

    def put() -> None:
        index = -1
        while not over.wait(0.1):
            app.enqueue_many([note.draft(index - n) for n in range(BESIDE_PER_S // 10)])
            index -= BESIDE_PER_S // 10

    thread = threading.Thread(target=put)
    thread.start()
    yield
    over.set()
    thread.join()


def await_until(over: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not over():
        if time.monotonic() > end_s:
            raise Broken(f"waited {WITHIN_S:g} s for {what}")
        time.sleep(0.05)


class _Cases:
    """Each puts a message, and says how long after it could run it did."""

    def __init__(self, app: App, place: Place, records: Callable[[], dict[int, float]], late_s: float) -> None:
        self._app, self._store, self._records, self._late_s = app, app.store, records, late_s
        self._url = place.url.partition("?schema=")[0]
        self.note, self._down = app.tasks["note"], app.tasks["down"]

    def all(self) -> dict[str, Callable[[int], float]]:
        return {
            f"committed {self._late_s:g} s late": self.committed_late,
            "due in the past": self.due_in_the_past,
            "a lease that ran out": self.lapsed,
            "given back by a worker that ended": self.released,
            "redriven": self.redriven,
            "the next of a group": self.next_of_group,
            "a higher priority": self.urgent,
            "beside a task that is skipped": self.beside_skipped,
        }

    def committed_late(self, index: int) -> float:
        import psycopg

        with psycopg.connect(self._url) as c:
            self.note.using(tx=c).enqueue(index)
            time.sleep(self._late_s)
            c.commit()
            return self._late(index, time.time())

    def due_in_the_past(self, index: int) -> float:
        at_s = time.time()
        self._store.put([Draft(task="note", body=b'{"i":%d}' % index, due_ms=1)])
        return self._late(index, at_s)

    def lapsed(self, index: int) -> float:
        claimed = self._claimed(index, lease_ms=3000)
        return self._late(json.loads(claimed.message.body)["i"], claimed.until_ms / 1000)

    def released(self, index: int) -> float:
        claimed = self._claimed(index, lease_ms=600_000)
        time.sleep(self._late_s)
        at_s = time.time()
        self._store.reclaim("bench", [])
        return self._late(json.loads(claimed.message.body)["i"], at_s)

    def _claimed(self, index: int, lease_ms: int) -> Delivery:
        """A message that this process was faster to claim than the workers."""
        ask = ClaimRequest("default", 1, lease_ms, worker="bench")
        for n in range(CLAIMS_MAX):
            self._store.put([Draft(task="note", body=b'{"i":%d}' % (index + n))])
            for delivery in self._store.exchange([], [ask]).deliveries:
                return delivery
        raise Broken("the workers claimed everything")

    def redriven(self, index: int) -> float:
        ref = self._app.tasks["cured"].enqueue(index)
        await_until(lambda: ref.state == "dead", "a death")
        time.sleep(1)
        at_s = time.time()
        self._app.dlq.retry(ids=[ref.id], reason="measured", actor="bench")
        return self._late(index, at_s)

    def next_of_group(self, index: int) -> float:
        self._app.tasks["brief"].using(group="g").enqueue(index)
        self.note.using(group="g").enqueue(index + 1)
        return self._late(index + 1, self._ran(index))

    def urgent(self, index: int) -> float:
        self._app.enqueue_many([self.note.draft(-CASES_FROM - n) for n in range(5_000)])
        at_s = time.time()
        self.note.using(priority=0).enqueue(index)
        return self._late(index, at_s)

    def beside_skipped(self, index: int) -> float:
        """Its breaker is open, and some of its messages wait in front."""
        self._app.enqueue_many([self._down.draft(n) for n in range(30)])
        time.sleep(3)
        waiting = self._store.peek(Lane.READY, where=Filter(task="down")).messages
        if not any((m.due_ms or 0) < self._store.now_ms() for m in waiting):
            raise Broken("no message waits for its breaker")
        return self.committed_late(index)

    def _late(self, index: int, since_s: float) -> float:
        return max(0.0, self._ran(index) - since_s)

    def _ran(self, index: int) -> float:
        """When it ran."""
        await_until(lambda: index in self._records(), f"message {index} to run")
        return self._records()[index]
