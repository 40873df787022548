"""kill -9 of workers that share a rate with weights: no window has more than its permits, and nothing is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.crash.children import ENGINES
from tests.support.urls import url_of

from redrive import App, Rate

SEEDS = 20
PATIENCE_S = 120.0
LIMIT, COST_MAX = 1000, 20  # permits of a window, and of the largest call: the default burst
LONG_S, SHORT_S = 10, 2
USED = 0.9  # of the limit, asserted in soaks
RUNS_S = 0.03  # the longest call

WORKER = """
import sys
from tests.crash.test_weights import shop
shop(sys.argv[1], sys.argv[2], int(sys.argv[3])).run_worker(concurrency=4, lease="2s", burst=True, drain=True)
"""


def shop(url: str, journal: str, window_s: int) -> App:
    """An app with calls that cost what their first argument says. Those with `less` turn out to cost half of it."""
    app = App(url)
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    app.dependency("llm", rate=Rate(f"{LIMIT}/{window_s}s", cost=lambda cost, n, less: cost, unit="tokens"))

    @app.task(name="ask", dependency="llm")
    def ask(cost: float, n: int, less: bool) -> None:
        import redrive

        spent = cost / 2 if less else cost
        os.write(file, f"{time.time()} {os.getpid()} {spent} {n}\n".encode())
        time.sleep(n % 4 * RUNS_S / 3)
        if less:
            redrive.context().spend(spent, "tokens")

    return app


def started(journal: Path) -> list[tuple[float, int, float, int]]:
    """Time (s), process, cost and number of each call, in the order of their times."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sorted((float(at_s), int(pid), float(cost), int(n)) for at_s, pid, cost, n in map(str.split, lines))


def fullest(starts: Sequence[tuple[float, float]], window_s: float) -> float:
    """Return the most that was spent in any window of this length."""
    most = spent = 0.0
    first = 0
    for at_s, cost in starts:
        spent += cost
        while starts[first][0] <= at_s - window_s:
            spent -= starts[first][1]
            first += 1
        most = max(most, spent)
    return most


class Fleet:
    """Worker processes on one store; each that is killed is followed by a new one."""

    def __init__(self, url: str, place: Path, window_s: int, workers: int) -> None:
        self.journal, self.killed = place / "calls", set[int]()
        self._command = [sys.executable, "-c", WORKER, url, str(self.journal), str(window_s)]
        self._stderr = place / "stderr"
        self.running = [self._start() for _ in range(workers)]

    def _start(self) -> subprocess.Popen[bytes]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with self._stderr.open("ab") as stderr:
            return subprocess.Popen(self._command, env=env, stderr=stderr)

    def kill(self, at: int) -> None:
        process = self.running[at]
        process.kill()
        process.wait()
        self.killed.add(process.pid)
        self.running[at] = self._start()

    def wait_for_calls(self, least: int) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while len(started(self.journal)) < least:
            assert time.monotonic() < end_s, f"fewer than {least} calls; {self._stderr.read_text()[-2000:]}"
            time.sleep(0.02)

    def wait(self) -> None:
        for process in self.running:
            assert process.wait(PATIENCE_S) == 0, self._stderr.read_text()[-2000:]

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


def play(url: str, place: Path, rng: random.Random, *, window_s: int, windows: float, workers: int, kills: int) -> str:
    """Let workers make calls for so many windows, and kill some of them; return the figures."""
    app = shop(url, os.devnull, window_s)
    costs: list[float] = []
    while sum(costs) < windows * LIMIT:
        costs.append(rng.uniform(0, COST_MAX))
    app.enqueue_many([app.tasks["ask"].draft(cost, n, rng.random() < 0.3) for n, cost in enumerate(costs)])
    fleet = Fleet(url, place, window_s, workers)
    try:
        for kill in range(kills):
            fleet.wait_for_calls(len(costs) * (kill + 1) // (kills + 2))
            time.sleep(rng.uniform(0, 0.2))
            fleet.kill(rng.randrange(workers))
        fleet.wait()
    finally:
        fleet.end()
    calls = started(fleet.journal)
    again = Counter(n for *_, n in calls)
    assert sorted(again) == [*range(len(costs))], "a message was not run"
    repeated = [n for _, pid, _, n in calls if again[n] > 1 and pid in fleet.killed]
    assert sum(count - 1 for count in again.values()) <= len(repeated), "a message ran again that no kill cut off"
    assert app.counts().dead == 0
    app.store.close()
    spent = [(at_s, cost) for at_s, _, cost, _ in calls]
    most, took_s = fullest(spent, window_s), spent[-1][0] - spent[0][0]
    used = sum(cost for _, cost in spent) / took_s / (LIMIT / window_s)
    text = f"{workers} workers, {len(fleet.killed)} kills, {len(calls)} calls in {took_s:.1f} s: the fullest "
    text += f"{window_s} s have {most:.0f} of {LIMIT} permits, {used:.3f} of the limit used, {len(calls) - len(again)} "
    print(text + "calls repeated")
    assert most <= LIMIT
    return f"{used:.3f}"


def seeds() -> pytest.MarkDecorator:
    """One seed on each engine in every run, the others in soaks."""
    return pytest.mark.parametrize(
        "number", [pytest.param(n, marks=pytest.mark.soak if n else pytest.mark.slow) for n in range(SEEDS)]
    )


@pytest.mark.fault("kill -9 of workers that share a rate with weights")
@seeds()
@pytest.mark.parametrize("engine", ENGINES)
def test_kills_of_workers_lose_nothing_and_spend_no_more_than_a_window(
    engine: str, number: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    print(f"seed {number}")
    url = url_of(engine, request, tmp_path)
    play(url, tmp_path, random.Random(number), window_s=SHORT_S, windows=2.5, workers=3, kills=2)


@pytest.mark.fault("kill -9 of workers that share a rate with weights in windows of ten seconds")
@pytest.mark.soak
@pytest.mark.parametrize(("workers", "kills"), [(4, 0), (4, 3), (8, 5)])
@pytest.mark.parametrize("engine", ENGINES)
def test_windows_of_ten_seconds_have_their_permits_and_are_used(
    engine: str, workers: int, kills: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(engine, request, tmp_path)
    rng = random.Random(f"{engine}.{workers}.{kills}")
    used = play(url, tmp_path, rng, window_s=LONG_S, windows=4, workers=workers, kills=kills)
    request.node.user_properties.append(("used", used))
    assert float(used) >= USED
