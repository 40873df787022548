"""The history of a store against what happened, while workers are killed."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support import deadly_worker
from tests.support.crash.children import ROOT
from tests.support.crash.ledger import url_of
from tests.support.history_worker import ATTEMPTS, WRITTEN, kind_of, make_app

from redrive.history import Tally

PATIENCE_S = 20.0  # how late the write of a process may be that waits for the processor


class Settled(NamedTuple):
    """A line of the journal: a settlement, or a write of the history that had begun then and went well."""

    pid: int
    at_s: float
    outcome: str
    run_ms: float


@pytest.mark.turns(3)
@pytest.mark.slow
@pytest.mark.fault("kill -9 of workers while they count")
def test_history_misses_at_most_the_last_write_of_each_killed_worker(place: Path, seed: int) -> None:
    _hold(place, seed, messages=1500, workers=2, pause_s=0.7, every_s=1.0, spread_s=3)


@pytest.mark.soak
@pytest.mark.fault("kill -9 of workers while they count")
def test_history_of_20000_messages_with_a_kill_each_2_s(place: Path, seed: int) -> None:
    _hold(place, seed, messages=20_000, workers=8, pause_s=2.0, every_s=10.0, spread_s=75)


def _hold(
    place: Path, seed: int, *, messages: int, workers: int, pause_s: float, every_s: float, spread_s: float
) -> None:
    rng, url, journal = random.Random(seed), url_of(place), place / "journal"
    app = make_app(url)
    task = app.tasks["work"]
    for at in range(0, messages, 500):
        numbers = range(at, min(messages, at + 500))
        app.enqueue_many([task.using(delay=n / messages * spread_s).draft(n) for n in numbers])
    app.flusher.flush()
    journal.touch()
    command = [sys.executable, "-m", "tests.support.history_worker", url, str(journal), str(every_s)]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(workers)]
    killed: dict[int, float] = {}
    kinds = Counter(map(kind_of, range(messages)))
    exact = {
        "done": kinds["done"] + kinds["fails"],
        "dead": kinds["dies"],
        "retry": kinds["fails"] + kinds["dies"] * (ATTEMPTS - 1),
    }
    try:
        while app.store.counts("crm").dead < exact["dead"] or not _is_worked_off(app):
            time.sleep(pause_s)
            victim = rng.randrange(workers)
            if not any(line.startswith(f"{running[victim].pid} ") for line in journal.read_text().splitlines()):
                continue  # on a busy machine it has only begun: if all die so early, none does anything
            running[victim].kill()
            killed[running[victim].pid] = time.time()
            running[victim].wait()
            running[victim] = subprocess.Popen(command, cwd=ROOT)
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(60)
    noted = [Settled(int(p), float(t), o, float(r)) for p, t, o, r in map(str.split, journal.read_text().splitlines())]
    lines = [line for line in noted if line.outcome != WRITTEN]
    written_s = {line.pid: line.at_s for line in noted if line.outcome == WRITTEN}  # the last of each
    surely_s = {pid: max(written_s.get(pid, 0), at_s - every_s - PATIENCE_S) for pid, at_s in killed.items()}
    total = app.history(since="1h").total
    lost = Counter(s.outcome for s in lines if s.pid in killed and s.at_s >= surely_s[s.pid])
    told = {outcome: total.outcomes.get(outcome, 0) for outcome in exact}
    print(f"seed {seed}: {len(killed)} kills; exact {exact}, history {told}, lost at most {dict(lost)}")
    assert total.enqueued == messages and written_s
    assert app.store.counts("crm").dead == exact["dead"]
    for outcome, count in exact.items():
        # A settlement whose worker was killed before it could write it to the journal is in neither.
        unwritten = count - sum(s.outcome == outcome for s in lines)
        assert count - lost[outcome] - unwritten <= told[outcome] <= count, outcome
    _hold_percentiles(total, [s.run_ms for s in lines if s.run_ms and s.at_s < surely_s.get(s.pid, math.inf)])
    app.store.close()


def _is_worked_off(app: object) -> bool:
    counts = app.store.counts("crm")  # type: ignore[attr-defined]
    return not (counts.ready or counts.scheduled or counts.leased)


def _hold_percentiles(total: Tally, runs_ms: Sequence[float]) -> None:
    """`runs_ms`: those that are in the history for sure; it has some of the others, wherever they stand."""
    ordered = sorted(runs_ms)
    sure, others = len(ordered), total.run.count - len(ordered)
    assert others >= 0 and sure
    for share in (0.5, 0.9, 0.95, 0.99):
        at = share * total.run.count
        first, last = int(at - others - 0.01 * sure), int(at + 0.005 * sure)
        low, high = ordered[first] if first >= 0 else 0.0, ordered[last] if last < sure else math.inf
        found = total.run.percentile(share) or 0
        print(f"p{share * 100:g}: {found:.1f} ms, exact {low:.1f} to {high:.1f}, {others} beside {sure}")
        assert low * 0.9 <= found <= high * 1.1  # within a tenth


@pytest.mark.slow
def test_history_has_the_crashes_that_the_store_counted_though_each_worker_dies_of_the_next(place: Path) -> None:
    url, count = url_of(place), 8
    app = deadly_worker.make_app(url, place)
    refs = app.enqueue_many([app.tasks["deadly"].draft(n) for n in range(count)])
    command = [sys.executable, "-m", "tests.support.deadly_worker", url, str(place)]
    codes = []
    while not codes or codes[-1]:
        codes.append(subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode)
        assert len(codes) <= 2 * count
    done = [message for message in app.store.find([ref.id for ref in refs]) if message is not None]
    exact, told = sum(message.crashes for message in done), dict(app.history(since="1h").total.crashes)
    print(f"{len(codes) - 1} deaths, {exact} crashes, history {told}")
    assert len(done) == count <= exact and codes[-1] == 0
    assert sum(told.values()) == exact, "each is written before the message is claimed that kills the next worker"
    app.store.close()
