"""A soak: days of use in minutes, by real processes that are killed, frozen and restarted, and a ledger of it all.

`python -m benchmarks.soak --store postgres --minutes 20 --seed 1`. Two producers, six workers under two supervisors
with schedules, an endpoint that fails in every way, kills, freezes of twelve seconds, restarts of the server, redrives.

Ends with 1 if a message is lost, came from nowhere, or ran twice without a reason; the table says what and how many.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from tests.support.crash.ledger import Record, read
from tests.support.endpoint import Answer, Endpoint, Request

from redrive import App

from .engines import ENGINES, Engine

LEASE_S, FREEZE_S, CHAOS_S = 5.0, 12.0, 7.0  # the last: between two blows
SUPERVISORS, PROCESSES, PRODUCERS = 2, 3, 2
DRAIN_S = 240.0
SLACK_S = 3.0  # how long after a blow what it did may still show
BLOWS = {  # and how often each comes
    "kill worker": 30, "freeze worker": 30, "kill producer": 8, "restart server": 7, "kill server": 7,
    "stop server": 4, "outage": 6, "redrive": 8,
}  # fmt: skip


class Blow(NamedTuple):
    """What was done to whom, from when until when (time.monotonic())."""

    what: str
    pid: int
    at_s: float
    until_s: float


class Soak:
    """The processes of one soak, and what was done to them."""

    def __init__(self, engine: Engine, folder: Path, seed: int) -> None:
        self.engine, self.folder, self.rng, self.seed = engine, folder, random.Random(seed), seed
        self.blows: list[Blow] = []
        self.endpoint = Endpoint(self._answer)
        self._answers = random.Random(seed + 1)
        self._outage_s = 0.0
        self._others: list[threading.Thread] = []
        os.environ |= {
            "REDRIVE_URL": engine.url(folder), "SOAK_FOLDER": str(folder), "SOAK_ENDPOINT": self.endpoint.url,
            "REDRIVE_STATE_DIR": str(folder / "state"), "REDRIVE_LOG": "json", "REDRIVE_TRUST": str(Path.cwd()),
        }  # fmt: skip
        self.app = App(engine.url(folder))
        self.app.store.connect()
        self.supervisors = [self._supervisor(n) for n in range(SUPERVISORS)]
        self.producers = [self._producer(n) for n in range(PRODUCERS)]

    # -- processes

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, start_new_session=True)

    def _supervisor(self, n: int) -> subprocess.Popen[bytes]:
        options = ["--processes", str(PROCESSES), "--lease", f"{LEASE_S:g}s", "--grace", "5s", "--scheduler"]
        return self._start(f"supervisor-{n}", "-m", "redrive", "worker", "benchmarks.soak_app:app", *options)

    def _producer(self, n: int) -> subprocess.Popen[bytes]:
        return self._start(f"producer-{n}", "-m", "benchmarks.soak_app", str(self.seed + n))

    def workers(self) -> list[int]:
        """The worker processes of the supervisors."""
        found = []
        for supervisor in self.supervisors:
            with suppress(OSError):
                path = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
                found += [int(pid) for pid in path.read_text().split()]
        return found

    def _answer(self, request: Request) -> Answer:
        if time.monotonic() < self._outage_s:
            return Answer(503)
        if crc32(request.key.encode()) % 50 == 0 and not (self.folder / "fixed").exists():
            return Answer(400)
        draw = self._answers.random()
        if draw < 0.04:
            return Answer(503)
        if draw < 0.06:
            return Answer(429, {"Retry-After": "1"})
        return Answer(204, delay_s=0.5 if draw < 0.08 else 0.01)

    # -- blows

    def strike(self) -> None:
        """One blow."""
        what = self.rng.choices(list(BLOWS), list(BLOWS.values()))[0]
        if what.endswith("server") and self.engine.server is None:
            what = "kill worker"
        began_s, pid, lasts_s = time.monotonic(), 0, 0.0
        if what == "kill worker":
            pid = self._signal(signal.SIGKILL)
        elif what == "freeze worker":
            pid, lasts_s = self._signal(signal.SIGSTOP), FREEZE_S
            self._later(FREEZE_S, lambda: self._signal(signal.SIGCONT, pid))
        elif what == "kill producer":
            n = self.rng.randrange(PRODUCERS)
            pid = self.producers[n].pid
            self.producers[n].kill()
            self.producers[n].wait()
            self.producers[n] = self._producer(n)
        elif what == "outage":
            self._outage_s, lasts_s = time.monotonic() + 15, 15.0
        elif what == "redrive":
            self._later(0, self._redrive)
        elif self.engine.server is not None:
            if what == "stop server":
                self.engine.server.pause()
                time.sleep(3)
                self.engine.server.resume()
            else:
                self.engine.server.kill() if what == "kill server" else self.engine.server.stop()
                time.sleep(1)
                self.engine.server.start()
            lasts_s = time.monotonic() - began_s
        self.blows.append(Blow(what, pid, began_s, began_s + lasts_s))

    def _signal(self, number: signal.Signals, pid: int = 0) -> int:
        some = [pid] if pid else self.workers()
        pid = self.rng.choice(some) if some else 0
        with suppress(ProcessLookupError):
            if pid:
                os.kill(pid, number)
        return pid

    def _later(self, in_s: float, do: Any) -> None:
        thread = threading.Timer(in_s, do)
        thread.daemon = True
        thread.start()
        self._others.append(thread)

    def _redrive(self) -> None:
        with suppress(Exception):  # the server may be away; another redrive comes
            (self.folder / "fixed").touch()
            self.app.dlq.select("lane:dead").plan(rate=50).start(reason="fixed", actor="soak")
            time.sleep(5)
        (self.folder / "fixed").unlink(missing_ok=True)

    # -- its course

    def run(self, minutes: float) -> None:
        end_s, said_s = time.monotonic() + minutes * 60, 0.0
        while time.monotonic() < end_s:
            time.sleep(CHAOS_S * self.rng.uniform(0.3, 1.7))
            self.strike()
            if time.monotonic() > said_s + 60:
                said_s = time.monotonic()
                print(f"{(end_s - said_s) / 60:.1f} min left, {len(self.blows)} blows", file=sys.stderr, flush=True)

    def drain(self) -> str:
        """Let everything end: first what waits, then what died, redriven; returns what is left."""
        for thread in self._others:
            thread.join()
        for producer in self.producers:
            producer.kill()
            producer.wait()
        (self.folder / "fixed").touch()
        for supervisor in self.supervisors:  # without schedules, so that the work ends
            supervisor.terminate()
        for supervisor in self.supervisors:
            supervisor.wait(60)
        words = ["-m", "redrive", "worker", "benchmarks.soak_app:app", "--lease", "5s", "--processes", "3", "--drain"]
        for _ in range(2):
            last = self._start("drain", *words)
            with suppress(subprocess.TimeoutExpired):
                last.wait(DRAIN_S)
            if last.poll() is None:
                last.kill()
                last.wait()
                break
            dead = self.app.dlq.select("lane:dead")
            if not self.app.counts().dead:
                break
            dead.plan(rate=200, canary=0).start(reason="the end", actor="soak")
        counts = self.app.counts()
        return f"ready {counts.ready}, scheduled {counts.scheduled}, leased {counts.leased}, dead {counts.dead}, " \
               f"quarantine {counts.quarantine}"  # fmt: skip

    def close(self) -> None:
        for process in (*self.supervisors, *self.producers):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.app.store.close()


class Life(NamedTuple):
    """The runs of one message between its enqueue or a redrive and its end."""

    starts: list[Record]
    ends: list[Record]


class Ledger:
    """What the journals say, held against the blows and the store."""

    def __init__(self, soak: Soak) -> None:
        self.blows, self.folder = soak.blows, soak.folder
        made = list(read(soak.folder / "producers"))
        self.tried = {r.note.split(":")[1]: r.note for r in made if r.what == "try"}
        self.acknowledged = {r.note.split(":")[1]: r.note for r in made if r.what == "ack"}
        self.handled = read(soak.folder / "journal")
        self.lives: dict[str, dict[str, Life]] = defaultdict(dict)
        for record in self.handled:
            if record.what in ("start", "end"):
                n, redrives, *_ = record.note.split(" ")
                life = self.lives[n].setdefault(redrives, Life([], []))
                (life.starts if record.what == "start" else life.ends).append(record)
        self.done = {r.note.split(" ")[0] for r in self.handled if r.what == "end" and r.note.endswith(" ok")}
        left = [m for lane in ("dead", "quarantine", "ready", "leased") for m in _all(soak.app, lane)]
        self.left = {json.loads(m.body).get("n", m.id): m for m in left}
        self.check = soak.app.store.check()
        total = soak.app.history(since="2h").total
        self.history = sum(total.crashes.values())
        self.log = "".join(path.read_text(errors="replace") for path in soak.folder.glob("supervisor-*.log"))

    def lost(self) -> list[str]:
        lost = [n for n in self.acknowledged if n not in self.done and n not in self.left]
        parents = [n for n, note in self.acknowledged.items() if note.startswith("parent:") and n in self.done]
        return lost + [f"{n}-child" for n in parents if f"{n}-child" not in self.done | self.left.keys()]

    def unexpected(self) -> list[str]:
        known = self.tried.keys() | {f"{n}-child" for n in self.tried}
        return [n for n in self.lives if n not in known and "T" not in n]  # a tick is named by its time

    def repeats(self) -> Iterator[tuple[str, str]]:
        """Each message that was done twice in one life, and why; an empty reason is a finding."""
        for n, lives in self.lives.items():
            for life in lives.values():
                ok = [end for end in life.ends if end.note.endswith(" ok")]
                for before, after in itertools.pairwise(ok):
                    yield n, self._reason(before, after)

    def _reason(self, before: Record, after: Record) -> str:
        """What kept the first run from being settled before the second one began."""
        for blow in self.blows:
            own = blow.pid in (before.pid, after.pid)
            ends_s = blow.until_s + LEASE_S + SLACK_S
            if (own or "server" in blow.what) and blow.at_s - LEASE_S - SLACK_S <= after.at_s <= ends_s + FREEZE_S:
                return blow.what
        return ""

    def disorder(self) -> list[str]:
        """Groups in strict order whose messages first succeeded in another order than they were enqueued."""
        found, first = [], {}
        for record in self.handled:
            if record.what == "start":
                first.setdefault(record.note.split(" ")[0], record.at_s)
        groups: dict[str, list[str]] = defaultdict(list)
        for n, note in self.acknowledged.items():
            kind, _, group = note.split(":", 2)
            if kind == "ordered" and n in first:
                groups[group].append(n)
        for group, members in groups.items():
            times = [first[n] for n in members]
            if times != sorted(times):
                found.append(group)
        return found

    def crashes(self) -> int:
        """How many the store counted, by what each life's last run was told."""
        return sum(max(r.crashes for r in life.starts) for lives in self.lives.values() for life in lives.values())

    def gaps(self) -> tuple[float, float]:
        """The longest time without a completion: in all, and while the server was up."""
        ends = sorted(r.at_s for r in self.handled if r.what == "end")
        away = [(b.at_s, b.until_s + SLACK_S) for b in self.blows if "server" in b.what]
        last = max((b.at_s for b in self.blows), default=0.0)
        pairs = [(a, b) for a, b in itertools.pairwise(ends) if b <= last]
        free = [b - a for a, b in pairs if not any(a <= until and b >= at for at, until in away)]
        return max((b - a for a, b in pairs), default=0.0), max(free, default=0.0)

    def killed_healthy(self) -> list[int]:
        """Worker processes that a supervisor killed though they were not frozen."""
        frozen = {b.pid for b in self.blows if b.what == "freeze worker"}
        words = [line.split() for line in self.log.splitlines() if "it is killed and replaced" in line]
        killed = [int(line[line.index("process") + 1]) for line in words]
        return [pid for pid in killed if pid not in frozen]


def _all(app: App, lane: str) -> Iterator[Any]:
    from redrive.message import Lane

    cursor = None
    while True:
        page = app.store.peek(Lane(lane), limit=500, cursor=cursor)
        yield from page.messages
        cursor = page.cursor
        if cursor is None:
            return


def report(ledger: Ledger, left: str, took_s: float) -> int:
    repeats = Counter(reason or "UNEXPLAINED" for _, reason in ledger.repeats())
    lost, unexpected, healthy = ledger.lost(), ledger.unexpected(), ledger.killed_healthy()
    gap, up_gap = ledger.gaps()
    rows: list[tuple[str, object]] = [
        ("enqueued (acknowledged)", f"{len(ledger.acknowledged):,} in {took_s / 60:.1f} min"),
        ("blows", ", ".join(f"{what} {n}" for what, n in Counter(b.what for b in ledger.blows).items())),
        ("lost", f"{len(lost)} {lost[:5] or ''}"),
        ("unexpected", f"{len(unexpected)} {unexpected[:5] or ''}"),
        ("done twice, by cause", dict(repeats) or 0),
        ("strict groups out of order", ledger.disorder() or 0),
        ("longest gap in completions", f"{gap:.1f} s; with the server up {up_gap:.1f} s"),
        ("healthy processes killed", healthy or 0),
        ("crashes: ledger, history", f"{ledger.crashes()}, {ledger.history}"),
        ("left", left),
        ("store check", ledger.check or "ok"),
    ]
    for name, value in rows:
        print(f"{name:28} {value}")
    return int(bool(lost or unexpected or repeats["UNEXPLAINED"] or healthy or ledger.check))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--store", choices=tuple(ENGINES), default="sqlite")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--keep", action="store_true", help="keep the journals and logs")
    given = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="redrive-soak-"))
    print(f"seed {given.seed}, {given.store}, journals in {folder}", file=sys.stderr, flush=True)
    with ENGINES[given.store](None) as engine:
        soak = Soak(engine, folder, given.seed)
        began_s = time.monotonic()
        try:
            with soak.endpoint:
                soak.run(given.minutes)
                took_s, left = time.monotonic() - began_s, soak.drain()
            code = report(Ledger(soak), left, took_s)
        finally:
            soak.close()
    if not given.keep and not code:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
