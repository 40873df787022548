"""The history of a store against what happened, while workers are killed."""

from __future__ import annotations

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
from tests.support.crash.children import ROOT
from tests.support.crash.ledger import url_of
from tests.support.history_worker import ATTEMPTS, kind_of, make_app

from redrive.history import Tally


class Settled(NamedTuple):
    """A line of the journal."""

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
            running[victim].kill()
            killed[running[victim].pid] = time.time()
            running[victim].wait()
            running[victim] = subprocess.Popen(command, cwd=ROOT)
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(60)
    lines = [Settled(int(p), float(t), o, float(r)) for p, t, o, r in map(str.split, journal.read_text().splitlines())]
    total = app.history(since="1h").total
    lost = Counter(s.outcome for s in lines if s.pid in killed and s.at_s >= killed[s.pid] - every_s - 0.2)
    told = {outcome: total.outcomes.get(outcome, 0) for outcome in exact}
    print(f"seed {seed}: {len(killed)} kills; exact {exact}, history {told}, lost at most {dict(lost)}")
    assert total.enqueued == messages
    assert app.store.counts("crm").dead == exact["dead"]
    for outcome, count in exact.items():
        # A settlement whose worker was killed before it could write it to the journal is in neither.
        unwritten = count - sum(s.outcome == outcome for s in lines)
        assert count - lost[outcome] - unwritten <= told[outcome] <= count, outcome
    _hold_percentiles(total, [s.run_ms for s in lines if s.run_ms])
    app.store.close()


def _is_worked_off(app: object) -> bool:
    counts = app.store.counts("crm")  # type: ignore[attr-defined]
    return not (counts.ready or counts.scheduled or counts.leased)


def _hold_percentiles(total: Tally, runs_ms: Sequence[float]) -> None:
    ordered = sorted(runs_ms)
    for share in (0.5, 0.9, 0.95, 0.99):
        exact = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        near = [ordered[min(len(ordered) - 1, max(0, int((share + d) * len(ordered))))] for d in (-0.01, 0.005)]
        found = total.run.percentile(share) or 0
        print(f"p{share * 100:g}: {found:.1f} ms, exact {exact:.1f}")
        assert near[0] * 0.9 <= found <= near[1] * 1.1  # within a tenth; some runs are not in the history
