"""What all benchmarks share: measured processes, interleaved rounds, readings, and the table they end in."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from redrive import App

from .engines import Engine, server_cpu_s
from .processes import cpu_s, rss_mib
from .tasks import RECORD, drafts, make_app, read_records

T = TypeVar("T")
ROOT = Path(__file__).parent.parent
CONCURRENCY = 500
PUT_AT_ONCE = 1000
WARM = 5
REST_S, REST_CPU_S = 0.05, 0.001  # a process that used less than that in that time has nothing to do
STUCK_S = 30.0  # without a new record a run is given up


class Options(Struct, frozen=True):
    """Sizes, as the command line gives them; `folder` is for records and files, and must be on a real disk."""

    folder: Path
    engine: Engine
    rounds: int
    messages: int
    delayed: int
    within_s: float
    steady: int
    per_s: float
    backlog: int
    memory: int
    idle_s: float
    starts: int
    waiting: int = 10_000
    dead: int = 100_000
    stream: int = 100_000
    late_s: float = 5.0
    before: Path | None = None  # another checkout
    suspects: str = "500x15ms,100x2s"
    crowd: int = 500
    browsers: int = 50
    freezes: int = 10
    seconds: float = 12.0
    workers: int = 6
    old: int = 9
    new: int = 1


class Reading(Struct, frozen=True):
    """One measured quantity: a value per round. `wanted` bounds its median, or is None for what is only told."""

    name: str
    unit: str
    values: list[float]
    wanted: str | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        if self.wanted is None:
            return None
        sign, bound = self.wanted.split()
        return self.median >= float(bound) if sign == "≥" else self.median <= float(bound)


class Broken(Exception):
    """A run lost, repeated or forgot something: its speed is worth nothing."""


def ratio(name: str, tops: Sequence[float], bottoms: Sequence[float], wanted: str | None = None) -> Reading:
    """The quotient within each round, so that what slows the machine down for a while slows both."""
    return Reading(name, "×", [top / bottom for top, bottom in zip(tops, bottoms, strict=True)], wanted)


def interleaved(rounds: int, runs: dict[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Each run once per round, forwards and backwards in turn."""
    results: dict[str, list[T]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs) if number % 2 == 0 else reversed(runs):
            results[name].append(runs[name]())
    return results


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


_numbers = count()


class Place(Struct, frozen=True):
    """What one run has for its own: a folder for its records and logs, and an empty store."""

    folder: Path
    url: str
    engine: Engine


def fresh(options: Options, kind: str, engine: Engine | None = None) -> Place:
    """`engine`: another one than the options name."""
    folder = options.folder / f"{kind}-{next(_numbers)}"
    folder.mkdir()
    engine = engine or options.engine
    return Place(folder, engine.url(folder), engine)


def fill(url: str, task: str, count: int) -> None:
    """Enqueue messages 0 to `count` - 1 of `task`, in a queue that is paused until `resume`."""
    app = make_app(url)
    app.store.configure("default", paused=True)
    put(app, task, range(count))
    app.store.close()


def put(app: App, task: str, indexes: range) -> None:
    for at in range(0, len(indexes), PUT_AT_ONCE):
        app.enqueue_many(drafts(app, task, indexes[at : at + PUT_AT_ONCE]))


class Child:
    """A measured process, and the records it writes. Killed, by its own pid, when the block ends."""

    def __init__(self, folder: Path, role: str, *arguments: object, root: Path = ROOT) -> None:
        """`root`: the checkout whose code it runs."""
        self._root = root
        self.records = folder / f"{role}.records"
        self._log = folder / f"{role}.log"
        self._argv = [sys.executable, "-m", "benchmarks.child", role, *map(str, arguments)]

    def __enter__(self) -> Child:
        with self._log.open("ab") as log:
            paths = [str(self._root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
            self.process = subprocess.Popen(
                self._argv, cwd=self._root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and the end of what it starts."""
        self.process.send_signal(signal.SIGTERM)
        self.finish()

    def finish(self) -> None:
        if self.process.wait(timeout=120) != 0:
            raise Broken(f"ended with {self.process.returncode}; {self.last_words()}")

    def written(self, path: Path) -> str:
        """What it writes into a file that is not there yet, such as the address of what it serves. Raises Broken."""
        end_s = time.monotonic() + 60
        while not (path.exists() and (text := path.read_text())):
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise Broken(f"{path.name} was not written; {self.last_words()}")
            time.sleep(0.02)
        return text

    def count(self) -> int:
        """How many records there are; -1 while there is no file for them."""
        return self.records.stat().st_size // RECORD.size if self.records.exists() else -1

    def await_records(self, count: int) -> None:
        """Return once there are `count` records; 0: once it has opened the file."""
        await_records([self], count)

    def rest(self) -> None:
        """Return once it has started and has nothing to do."""
        self.await_records(0)
        used_s = -1.0
        while (now_s := self.cpu_s()) - used_s > REST_CPU_S:
            used_s = now_s
            time.sleep(REST_S)

    def read(self) -> list[tuple[int, float]]:
        return read_records(self.records)

    def cpu_s(self) -> float:
        """Processor time it has used, all threads, and that of the processes it started."""
        return cpu_s(self.process.pid, children=True)

    def rss_mib(self) -> float:
        """Memory it holds now."""
        return rss_mib(self.process.pid)

    def last_words(self) -> str:
        return f"{self._argv[3]}: {self._log.read_text(errors='replace')[-2000:]}"


def await_records(children: Sequence[Child], count: int) -> None:
    """Return once these have `count` records together, and each has opened its file."""
    seen, since_s = -2, time.monotonic()
    while True:
        counts = [child.count() for child in children]
        now = -1 if -1 in counts else sum(counts)
        if now >= count:
            return
        if now != seen:
            seen, since_s = now, time.monotonic()
        ended = [child for child in children if child.process.poll() is not None]
        if ended or time.monotonic() - since_s > STUCK_S:
            raise Broken(f"stopped at {now} of {count} records; {(ended or children)[0].last_words()}")
        time.sleep(0.005)


def worker(place: Place, *, evidence: Path | None = None, concurrency: int = CONCURRENCY) -> Child:
    folder = place.folder
    return Child(folder, "worker", place.url, concurrency, folder / "worker.records", evidence or "")


def warm_up(child: Child, url: str) -> None:
    """Let a worker run a few messages, with negative indexes, and come to rest."""
    app = make_app(url)
    app.enqueue_many(drafts(app, "noop", range(-WARM, 0)))
    child.await_records(WARM)
    app.store.close()
    child.rest()


class Cost(Struct, frozen=True):
    """Processor time: the worker's, and that of the store's server."""

    worker_s: float
    server_s: float


def cost_of_all(child: Child, place: Place, records: int) -> Cost:
    """What a worker at rest and its store take for what `fill` put, the last settle included."""
    child.rest()
    from_s, server_from_s = child.cpu_s(), server_cpu_s(place.engine)
    resume(place)
    child.await_records(records)
    child.rest()
    return Cost(child.cpu_s() - from_s, server_cpu_s(place.engine) - server_from_s)


def resume(place: Place) -> None:
    """Let workers at what `fill` put."""
    app = make_app(place.url)
    app.store.configure("default", paused=False)
    app.store.close()


def rate(records: Sequence[tuple[int, float]], messages: int) -> float:
    """Messages per second from the first record to the last."""
    times = [at_s for _, at_s in records]
    return (messages - 1) / max(1e-9, max(times) - min(times))


def need_all_once(records: Sequence[tuple[int, float]], messages: int) -> None:
    """Nobody was killed, so every message must have ended, and ended once."""
    ended = [index for index, _ in records if index >= 0]
    if sorted(ended) != list(range(messages)):
        raise Broken(f"{messages} messages, {len(set(ended))} of them ended, {len(ended) - len(set(ended))} twice")


def table(readings: Sequence[tuple[str, Reading]]) -> str:
    """All readings as a Markdown table."""
    rows: list[tuple[str, ...]] = [("benchmark", "reading", "median", "spread", "unit", "wanted", "met")]
    for name, r in readings:
        met = "" if r.met is None else "yes" if r.met else "NO"
        spread = f"{_number(min(r.values))} – {_number(max(r.values))}"
        rows.append((name, r.name, _number(r.median), spread, r.unit, r.wanted or "", met))
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows)


def as_json(name: str, r: Reading) -> dict[str, Any]:
    return {"benchmark": name, **asdict(r), "median": r.median, "met": r.met}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
