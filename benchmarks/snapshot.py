"""What an open transaction costs: while one elsewhere holds a snapshot, PostgreSQL removes nothing that was deleted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from .engines import ENGINES, Engine, server_cpu_s
from .harness import Options, Place, Reading, fresh, interleaved, need_all_once, put, ratio, worker
from .tasks import make_app

DEPTH = 5_000  # messages waiting at most: there is always work, and all of it came due lately
CHUNK = 1_000


class Run(NamedTuple):
    per_s: float
    last_per_s: float  # of the last tenth
    cpu_us: float


def snapshot(options: Options) -> list[Reading]:
    """Steady traffic of no-op messages while another session holds a snapshot open, beside the same without."""
    with on_postgres(options) as engine:
        runs = interleaved(
            options.rounds,
            {
                "without": lambda: _run(options.stream, fresh(options, "without", engine), _free),
                "held": lambda: _run(options.stream, fresh(options, "held", engine), held),
            },
        )
    per_s, last, cpu = ({name: [run[at] for run in group] for name, group in runs.items()} for at in range(3))
    return [
        Reading("without", "messages/s", per_s["without"]),
        Reading("a snapshot held", "messages/s", per_s["held"]),
        ratio("held / without", per_s["held"], per_s["without"], "≥ 0.7"),
        Reading("without, the last tenth", "messages/s", last["without"]),
        Reading("a snapshot held, the last tenth", "messages/s", last["held"]),
        ratio("held / without, the last tenth", last["held"], last["without"]),
        Reading("without, CPU of worker and server", "µs/message", cpu["without"]),
        Reading("a snapshot held, CPU of worker and server", "µs/message", cpu["held"]),
        ratio("held / without, CPU", cpu["held"], cpu["without"]),
    ]


def _run(count: int, place: Place, holding: Callable[[Place], AbstractContextManager[None]]) -> Run:
    app = make_app(place.url)
    app.store.configure("default", paused=False)
    with worker(place) as child:
        child.rest()
        cpu_s = child.cpu_s() + server_cpu_s(place.engine)
        with holding(place):
            for at in range(0, count, CHUNK):
                put(app, "noop", range(at, min(count, at + CHUNK)))
                child.await_records(max(0, at + CHUNK - DEPTH))
            child.await_records(count)
        cpu_s = child.cpu_s() + server_cpu_s(place.engine) - cpu_s
        child.stop()
        records = child.read()
    app.store.close()
    need_all_once(records, count)
    times = sorted(at_s for _, at_s in records)
    tail = times[-max(2, count // 10) :]
    return Run(count / (times[-1] - times[0]), len(tail) / (tail[-1] - tail[0]), cpu_s / count * 1e6)


@contextlib.contextmanager
def on_postgres(options: Options) -> Iterator[Engine]:
    """The engine of these benchmarks, whatever the others run on."""
    if options.engine.name == "postgres":
        yield options.engine
    else:
        # As root the server runs as another user, who may not be able to enter the folder.
        with ENGINES["postgres"](None if os.getuid() == 0 else options.folder) as engine:
            yield engine


@contextlib.contextmanager
def _free(place: Place) -> Iterator[None]:
    yield


@contextlib.contextmanager
def held(place: Place) -> Iterator[None]:
    """A session that has read something, and stays in its transaction."""
    import psycopg

    with psycopg.connect(place.url.partition("?schema=")[0]) as c:
        c.execute("set transaction isolation level repeatable read")
        c.execute("select count(*) from pg_class").fetchone()
        yield
