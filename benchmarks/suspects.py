"""What suspicion costs: kill -9 of a worker with all of its handlers under way, also with poison among them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from redrive import App
from redrive.duration import seconds
from redrive.message import Lane, Message

from . import crashing
from .crashing import ENDED, STARTED, Line
from .harness import ROOT, STUCK_S, Broken, Options, Place, Reading, fresh
from .processes import descendants, rss_mib

MODES = ("embedded", "command")
SAMPLE_S = 0.05
POISONED_S = 0.3  # how long the poison's bystanders run: longer than until it kills
LIVES_MAX = 30  # of an embedded worker until the poison is convicted


class Shape(Struct, frozen=True):
    """So many messages at once, each of which takes so long."""

    count: int
    takes_s: float
    name: str


def shapes(options: Options) -> list[Shape]:
    """`500x15ms,100x2s` as shapes."""
    pairs = [(text, *text.split("x")) for text in options.suspects.split(",")]
    return [Shape(int(count), seconds(takes), text) for text, count, takes in pairs]


def suspects(options: Options) -> list[Reading]:
    """Kill -9 with all handlers under way: until all are done, beside the same load without suspicion."""
    readings = []
    for shape in shapes(options):
        for mode in MODES:
            for task in ("wait_async", "wait_sync"):
                readings += _readings(options, shape, mode, task)
    return readings


def _readings(options: Options, shape: Shape, mode: str, task: str) -> list[Reading]:
    name = f"{shape.name}, {mode}, {task.removeprefix('wait_')}"
    runs = [(_run(options, shape, mode, task, killed=False), _run(options, shape, mode, task, killed=True))
            for _ in range(options.rounds)]  # fmt: skip
    return [
        Reading(f"{name}: without suspicion", "s", [fresh.took_s for fresh, _ in runs]),
        Reading(f"{name}: after kill -9", "s", [again.took_s for _, again in runs], _wanted(shape)),
        Reading(f"{name}: after / without", "×", [again.took_s / fresh.took_s for fresh, again in runs], "≤ 2"),
        Reading(f"{name}: children at once", "processes", [float(again.seen.children) for _, again in runs]),
        Reading(f"{name}: peak memory", "MiB", [again.seen.peak_mib for _, again in runs]),
        Reading(f"{name}: peak memory without suspicion", "MiB", [fresh.seen.peak_mib for fresh, _ in runs]),
    ]


def _wanted(shape: Shape) -> str | None:
    return "≤ 3" if shape.takes_s < 0.1 else None


class Run(Struct, frozen=True):
    """From the start of the worker to the end of the last handler, and what was seen of its processes."""

    took_s: float
    seen: Seen


def _run(options: Options, shape: Shape, mode: str, task: str, *, killed: bool) -> Run:
    place = filled(options, shape.count, task, shape.takes_s)
    if killed:
        cut_off(place, mode, shape.count)
    from_s = time.time()
    with Fleet(place, mode, shape.count) as fleet, watched(fleet) as seen:
        fleet.await_runs(ENDED, shape.count)
        return Run(max(line.at_s for line in fleet.lines() if line.what == ENDED) - from_s, seen)


def poison(options: Options) -> list[Reading]:
    """One poison among many that were under way at a kill -9: the deaths until it is convicted, and the innocents."""
    readings = []
    for mode in MODES:
        for way in crashing.WAYS:
            readings += _poisoned(options, mode, way)
    return readings


def _poisoned(options: Options, mode: str, way: str) -> list[Reading]:
    count = options.crowd
    place = filled(options, count - 1, "wait_async", POISONED_S, way)
    cut_off(place, mode, count)
    from_s, lives = time.time(), 0
    with killer_of_big_ones(place):
        while not (convict := convicted(place)) and lives < LIVES_MAX:
            lives += 1
            with Fleet(place, mode, count) as fleet:
                fleet.await_conviction(mode)
        if convict is None:
            raise Broken(f"not convicted in {lives} lives")
        took_s = time.time() - from_s
        with Fleet(place, mode, count) as fleet:
            fleet.await_runs(ENDED, count - 1)
    innocent = [line for line in fleet.lines() if line.index >= 0 and line.what == STARTED]
    crashes = [fault.crash for fault in convict.faults if fault.crash is not None]
    if convict.crashes != len(crashes):
        raise Broken(f"{convict.crashes} crashes, and evidence of {len(crashes)}")
    name = f"{way} among {count}, {mode}"
    return [
        Reading(f"{name}: deaths of children", "processes", [float(sum(c.child for c in crashes))], "≤ 15"),
        Reading(f"{name}: deaths of the worker after the kill", "processes",
                [float(sum(not c.child for c in crashes) - 1)], "≤ 0" if mode == "command" else None),
        Reading(f"{name}: crashes alone", "crashes", [float(convict.crashes_alone)], "≤ 3"),
        Reading(f"{name}: until it is convicted", "s", [took_s]),
        Reading(f"{name}: innocents' attempts, at most", "attempts", [float(max(o.attempt for o in innocent))], "≤ 1"),
        Reading(f"{name}: innocents' crashes, at most", "crashes", [float(max(o.crashes for o in innocent))], "≤ 7"),
        Reading(f"{name}: innocents' crashes, mean", "crashes", [sum(_crashes(innocent)) / (count - 1)]),
    ]  # fmt: skip


def _crashes(lines: list[Line]) -> list[int]:
    """Of each message those it had when it last began."""
    return [*{line.index: line.crashes for line in lines}.values()]


# -- the store


def filled(options: Options, count: int, task: str, takes_s: float, way: str | None = None) -> Place:
    """A store with so many messages, and the poison in their middle."""
    place = fresh(options, "suspects")
    (place.folder / "url").write_text(place.url)
    with opened(place) as app:
        tasks = crashing.app.tasks
        drafts = [tasks[task].draft(i, takes_s) for i in range(count)]
        drafts[count // 2 : count // 2] = [] if way is None else [tasks["poison"].draft(-1, way)]
        app.enqueue_many(drafts)
    return place


@contextlib.contextmanager
def opened(place: Place) -> Iterator[App]:
    app = App(place.url)
    try:
        yield app
    finally:
        app.store.close()


def convicted(place: Place) -> Message | None:
    with opened(place) as app:
        found = app.store.peek(Lane.QUARANTINE, limit=10).messages
    if len(found) > 1:
        raise Broken(f"innocents are convicted: {[message.body for message in found]}")
    return found[0] if found else None


# -- processes


class Fleet:
    """A worker in a session of its own: embedded in a program, or by the command with its parent."""

    def __init__(self, place: Place, mode: str, concurrency: int) -> None:
        self.folder, self._place = place.folder, place
        if mode == "embedded":
            self._argv = [sys.executable, "-m", "benchmarks.crashing", str(concurrency)]
        else:
            named = ("benchmarks.crashing:app", "-q", f"default:{concurrency}", "--grace", "1s", "--log", "off")
            self._argv = [sys.executable, "-m", "redrive", "worker", *named]

    def __enter__(self) -> Fleet:
        environment = os.environ | {crashing.PLACE: str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """kill -9 of all its processes, whatever session they are in."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def lines(self) -> list[Line]:
        return [*crashing.read(crashing.journal(self.folder))]

    def await_runs(self, what: int, count: int) -> None:
        """Return once that has happened to so many messages."""
        seen, since_s = -1, time.monotonic()
        while len(ran := {line.index for line in self.lines() if line.what == what}) < count:
            if len(ran) != seen:
                seen, since_s = len(ran), time.monotonic()
            if self.process.poll() is not None or time.monotonic() - since_s > 2 * STUCK_S:
                raise Broken(f"stopped at {seen} of {count}; {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def await_conviction(self, mode: str) -> None:
        """Return once the poison is in quarantine, or (embedded) has killed its worker."""
        end_s = time.monotonic() + 2 * STUCK_S
        while not convicted(self._place) and self.process.poll() is None:
            if time.monotonic() > end_s:
                raise Broken(f"not convicted; {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        if mode == "command" and self.process.poll() is not None:
            raise Broken(f"the parent ended; {(self.folder / 'log').read_text()[-2000:]}")


def cut_off(place: Place, mode: str, count: int) -> None:
    """Kill -9 with all of them under way."""
    hold = place.folder / "hold"
    hold.touch()
    with Fleet(place, mode, count) as fleet:
        fleet.await_runs(STARTED, count)
        fleet.kill()
    hold.unlink()


class Seen:
    """Child processes at once, and resident memory of all processes together, at most."""

    def __init__(self) -> None:
        self.children, self.peak_mib = 0, 0.0


@contextlib.contextmanager
def watched(fleet: Fleet) -> Iterator[Seen]:
    """Look at its processes all the time."""
    seen, over = Seen(), threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            pids = [fleet.process.pid, *descendants(fleet.process.pid)]
            seen.children = max(seen.children, sum(_is_child(pid) for pid in pids))
            seen.peak_mib = max(seen.peak_mib, sum(_rss_mib(pid) for pid in pids))

    with _beside(watch, over):
        yield seen


@contextlib.contextmanager
def killer_of_big_ones(place: Place) -> Iterator[None]:
    """What the kernel does where memory ends, sooner."""
    over, mark = threading.Event(), f"{crashing.PLACE}={place.folder}".encode()

    def watch() -> None:
        while not over.wait(0.02):
            for path in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError, ValueError):
                    if (
                        _rss_mib(int(path.name)) * 2**20 > crashing.BIG_BYTES
                        and mark in (path / "environ").read_bytes()
                    ):
                        os.kill(int(path.name), signal.SIGKILL)

    with _beside(watch, over):
        yield


@contextlib.contextmanager
def _beside(watch: object, over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=watch)  # type: ignore[arg-type]
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _is_child(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return re.search(rb"redrive\.worker\.child", Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    return False


def _rss_mib(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        return rss_mib(pid)
    return 0.0
