"""Freeze worker processes at random (SIGSTOP, then SIGCONT) under load, and watch what the others get done.

Two supervisors, half of the workers each. A third of the messages needs nothing, a third goes through a shared breaker
and rate, a third is in groups: so a frozen process may hold any of the rows that workers share.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from msgspec import Struct

from redrive import App
from redrive.flow.breaker_rule import Breaker

from .harness import ROOT, Broken, Options, Place, Reading, fresh
from .processes import started_by
from .tasks import Records, read_records

PER_S = 300  # messages put
GROUPS = 50
LEASE_S = 10
WINDOW_S = 0.25
FROZEN_MAX = 2  # at the same time
START_S, END_S = 60.0, 120.0
_KILLED = re.compile(r"worker process (\d+) .*it is killed")


def make_app(url: str, folder: Path) -> App:
    app, records = App(url), list[Records]()
    app.queue("default", concurrency=20, group_width=1)
    app.dependency("shared", breaker=Breaker(), budget=None, rate="100000/s")

    def ran(index: int) -> None:
        if not records:  # one file for each process
            records.append(Records(folder / f"{os.getpid()}.records"))
        records[0].add(index)

    @app.task(name="plain")
    async def plain(i: int) -> None:
        ran(i)

    @app.task(name="flowing", dependency="shared")
    async def flowing(i: int) -> None:
        ran(i)

    return app


if "FREEZING" in os.environ:  # what `redrive worker` imports
    app = make_app(os.environ["REDRIVE_URL"], Path(os.environ["FREEZING"]))


class Freeze(Struct, frozen=True):
    pid: int
    from_s: float
    to_s: float

    def has(self, pid: int, at_s: float) -> bool:
        return pid == self.pid and self.from_s <= at_s < self.to_s


def freezing(options: Options) -> list[Reading]:
    """What other workers get done while some are frozen, which processes are killed, what is lost and repeated."""
    place = fresh(options, "freezing")
    with _workers(place, options.workers) as supervisors:
        with _load(place, options.workers) as put:
            freezes = _freeze(supervisors, options.freezes, options.seconds)
        runs = _await_all(place, put[0])
    return _judged(place, freezes, runs, put[0])


@contextlib.contextmanager
def _workers(place: Place, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    env = {
        **os.environ, "REDRIVE_URL": place.url, "FREEZING": str(place.folder),
        "REDRIVE_STATE_DIR": str(place.folder / "state"),
    }  # fmt: skip
    argv = [sys.executable, "-m", "redrive", "worker", "benchmarks.freezing:app", "--lease", f"{LEASE_S}s"]
    argv += ["--grace", "2s"]
    supervisors: list[subprocess.Popen[bytes]] = []
    make_app(place.url, place.folder).store.close()  # its schema
    for number in range(2):
        with (place.folder / f"supervisor-{number}").open("wb") as log:
            here = [*argv, "--log", "off", "--processes", str(max(1, count // 2))]
            supervisors.append(subprocess.Popen(here, cwd=ROOT, env=env, stderr=log, stdout=log))
    end_s = time.monotonic() + START_S
    while sum(len(started_by(one.pid)) for one in supervisors) < 2 * max(1, count // 2):
        if time.monotonic() > end_s:
            raise Broken("the workers did not start")
        time.sleep(0.1)
    try:
        yield supervisors
    finally:
        for one in supervisors:
            one.terminate()
        for one in supervisors:
            one.wait(END_S)


@contextlib.contextmanager
def _load(place: Place, workers: int) -> Iterator[list[int]]:
    """Puts messages until the block ends; how many, in a list of one."""
    app, over, put = make_app(place.url, place.folder), threading.Event(), [0]
    plain, flowing = app.tasks["plain"], app.tasks["flowing"]

    def run() -> None:
        began_s = time.monotonic()
        while not over.wait(0.02):
            wanted = int((time.monotonic() - began_s) * PER_S)
            drafts = []
            for i in range(put[0], wanted):
                task = flowing if i % 3 == 1 else plain
                drafts.append(task.using(group=f"g{i % GROUPS}").draft(i) if i % 3 == 2 else task.draft(i))
            with contextlib.suppress(Exception):  # the store may be locked by a frozen worker; put again
                if drafts:
                    app.enqueue_many(drafts)
                    put[0] = wanted

    thread = threading.Thread(target=run)
    thread.start()
    try:
        end_s = time.monotonic() + START_S
        while len(_runs(place)) < workers and time.monotonic() < end_s:
            time.sleep(0.1)
        yield put
    finally:
        over.set()
        thread.join()
        app.store.close()


def _freeze(supervisors: list[subprocess.Popen[bytes]], count: int, seconds: float) -> list[Freeze]:
    """Stop workers at random, up to FROZEN_MAX at a time, and let each go on after that many seconds."""
    found: list[Freeze] = []
    frozen: dict[int, float] = {}  # until when
    chance = random.Random(int(os.environ.get("SEED", "0")))
    while len(found) < count or frozen:
        now_s = time.time()
        for pid in [pid for pid, until_s in frozen.items() if until_s <= now_s]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            del frozen[pid]
        living = [pid for one in supervisors for pid in started_by(one.pid) if pid not in frozen]
        if len(found) < count and len(frozen) < FROZEN_MAX and living:
            pid = chance.choice(living)
            time.sleep(chance.uniform(0, 0.3))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                frozen[pid] = time.time() + seconds
                found.append(Freeze(pid, time.time(), frozen[pid]))
            if FROZEN_MAX > 1:  # so that they do not all begin and end together
                time.sleep(min(2.0, seconds / 2))
        time.sleep(0.05)
    return found


def _runs(place: Place) -> dict[int, list[tuple[int, float]]]:
    return {int(path.stem): read_records(path) for path in place.folder.glob("*.records")}


def _await_all(place: Place, count: int) -> dict[int, list[tuple[int, float]]]:
    end_s = time.monotonic() + END_S
    while True:
        runs = _runs(place)
        left = count - len({index for of_one in runs.values() for index, _ in of_one})
        if not left:
            return runs
        if time.monotonic() > end_s:
            raise Broken(f"{left} of {count} messages are lost")
        time.sleep(0.2)


def _judged(place: Place, freezes: list[Freeze], runs: dict[int, list[tuple[int, float]]], count: int) -> list[Reading]:
    frozen = {freeze.pid for freeze in freezes}
    by_index: dict[int, list[int]] = {}
    for pid, of_one in runs.items():
        for index, _ in of_one:
            by_index.setdefault(index, []).append(pid)
    again = {index: pids for index, pids in by_index.items() if len(pids) > 1}
    logs = "".join((place.folder / f"supervisor-{number}").read_text() for number in range(2))
    killed = {int(pid) for pid in _KILLED.findall(logs)}
    odd = [index for index, pids in again.items() if not (frozen | killed) & {*pids}]
    if odd:
        raise Broken(f"{len(odd)} messages ran twice, and no process that had them was frozen or killed: {odd[:10]}")
    windows = _windows(freezes, runs)
    low = [(below, len([*same]) * WINDOW_S) for below, same in groupby(n < PER_S * WINDOW_S / 2 for n in windows)]
    per_s = [int(sum(windows[at : at + 4])) for at in range(0, max(1, len(windows) - 3), 4)]
    print(f"freezing: others, each second: {' '.join(map(str, per_s))}", file=sys.stderr, flush=True)
    return [
        Reading("the others, per second of freezes", "1/s", [float(n) for n in per_s]),
        Reading(
            "longest time below half of the load", "ms", [max((s for b, s in low if b), default=0) * 1000], "≤ 2000"
        ),
        Reading("healthy processes killed", "processes", [float(len(killed - frozen))], "≤ 0"),
        Reading("frozen processes killed", "processes", [float(len(killed & frozen))]),
        Reading("messages", "messages", [float(count)]),
        Reading("lost", "messages", [0.0], "≤ 0"),
        Reading("ran again, after a freeze or the kill of their process", "messages", [float(len(again))]),
    ]


def _windows(freezes: list[Freeze], runs: dict[int, list[tuple[int, float]]]) -> list[int]:
    """How many messages ran in each quarter of a second of the freezes, in processes that were not frozen then."""
    from_s, to_s = min(f.from_s for f in freezes), max(f.to_s for f in freezes)
    found = Counter[int]()
    for pid, of_one in runs.items():
        for _, at_s in of_one:
            if from_s <= at_s < to_s and not any(freeze.has(pid, at_s) for freeze in freezes):
                found[int((at_s - from_s) / WINDOW_S)] += 1
    return [found[n] for n in range(max(1, int((to_s - from_s) / WINDOW_S)))]
