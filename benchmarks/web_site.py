"""The site that `web` measures, as a process of its own: an app with fifty tasks, and a store that counts its calls."""

from __future__ import annotations

import mmap
import random
import struct
import threading
import time
from pathlib import Path

from tests.support.counted import CountedStore

from redrive import SLO, App
from redrive.history.recorder import Recorder, SeriesName
from redrive.history.tally import TallyCounts, add
from redrive.history.writer import HistoryWriter
from redrive.message import Draft
from redrive.store import Store
from redrive.stores import open_store

from .dead import QUEUES, TASKS
from .harness import PUT_AT_ONCE

CALLS = struct.Struct("<q")
DEPENDENCIES, SCHEDULES = 5, 3
DAY_MS, FIVE_MS, READY_OF_TEN = 24 * 3_600_000, 300_000, 3


def site(url: str, calls: str, port: str) -> None:
    """Serve the pages until SIGTERM. `calls`: a file with the number of calls of the store so far."""
    from redrive.web.serve import PagesServer, listening

    app = web_app(CountedStore(open_store(url), Told(Path(calls))), url)
    with listening("127.0.0.1", 0) as socket:
        PagesServer(app.dashboard(), lambda at: Path(port).write_text(at)).run([socket])


def web_app(store: Store, url: str) -> App:
    """Fifty tasks over twenty queues, some with a dependency, an objective or a schedule."""
    app = App(store=store)
    app.url = url
    for n in range(DEPENDENCIES):
        app.dependency(f"d{n}", rate="900000/s")
    for n in range(TASKS):
        slo = SLO("99.9% within 30s") if n % 25 == 0 else None
        named = f"d{n}" if n < DEPENDENCIES else None
        app.task(name=f"t{n}", queue=f"q{n % QUEUES}", dependency=named, slo=slo)(_nothing)
    for n in range(SCHEDULES):
        app.periodic(every="1h", name=f"s{n}")(_tick)
    return app


def _nothing(i: int) -> None:
    return None


def _tick() -> None:
    return None


class Told:
    """Counts in a file that another process reads."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(CALLS.pack(0))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), CALLS.size)
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self._shared[:] = CALLS.pack(CALLS.unpack(self._shared)[0] + 1)


def calls_of(path: Path) -> int:
    """How many there were so far."""
    return int(CALLS.unpack(path.read_bytes())[0])


def fill_waiting(store: Store, count: int) -> None:
    """So many waiting messages of the queues and tasks: three of ten are due, the others come due within a day."""
    draw, now_ms = random.Random(3), store.now_ms()
    for first in range(0, count, PUT_AT_ONCE):
        some = range(first, min(count, first + PUT_AT_ONCE))
        store.put([_waits(n, None if n % 10 < READY_OF_TEN else now_ms + draw.randrange(DAY_MS)) for n in some])


def _waits(n: int, due_ms: int | None) -> Draft:
    body = b'{"args":[%d],"tenant":"acme"}' % n
    return Draft(task=f"t{n * 7919 % TASKS}", queue=f"q{n % QUEUES}", body=body, due_ms=due_ms)


def fill_history(store: Store) -> None:
    """A day in which each queue and task did something every five minutes."""
    now_ms, taken = store.now_ms(), dict[SeriesName, dict[int, TallyCounts]]()
    app = App(store=store)
    for n in range(TASKS):
        app.task(name=f"t{n}")(_nothing)
    for name in {(f"q{n % QUEUES}", f"t{n * 7919 % TASKS}") for n in range(QUEUES * TASKS)}:
        recorder = Recorder(app.tasks, {})
        for at_ms in range(now_ms - DAY_MS, now_ms, FIVE_MS):
            recorder.turn(at_ms)
            _did(recorder, name)
        for minute, counts in recorder.take()[name].items():
            add(taken.setdefault(name, {}).setdefault(minute, {}), counts)
    writer, end_s = HistoryWriter(store), time.monotonic() + 60
    writer.write(taken)
    while writer.pending and time.monotonic() < end_s:
        writer.write({})


def _did(recorder: Recorder, name: SeriesName) -> None:
    series = recorder.of(*name)
    series.done[1] += 9
    series.done[2] += 1
    series.run += [12.0, 15.0, 80.0]
    series.wait += [3.0, 4.0, 900.0]
    series.first += [20.0, 30.0]
    series.after.append(20_000.0)
    series.count("e", 10)
    series.count("o0retry", 1)
