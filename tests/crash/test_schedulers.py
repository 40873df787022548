"""kill -9 of schedulers: at random moments, and between any two steps of a commit. Each tick is enqueued once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.crash.children import KILLED, PATIENCE_S, mostly_sqlite, sweep_stores
from tests.support.crash.ledger import everything, opened, url_of

from redrive.message import Message

PROGRAM = """
import os, signal
from redrive import App

app = App(os.environ["STORE"])
app.periodic("* * * * * *", name="cron", missed="all")(lambda: None)
app.periodic(every="100ms", name="quick", missed="all")(lambda: None)

if "KILL_AT" in os.environ:
    at, _, calls = os.environ["KILL_AT"].partition(":")
    left = [None] * int(calls)

    def failpoint(point):
        if point == at and (left.pop() or not left):
            os.kill(os.getpid(), signal.SIGKILL)

    app.store.failpoint = failpoint
"""
PAUSE_S = 1.2  # the longest between the start of a scheduler and its death
AIMED = 0.5  # this share of the kills is aimed at the moment of a tick
POINTS = ("put", "commit", "committed", "acknowledge")


@pytest.mark.turns(3)
@pytest.mark.fault("kill -9 of schedulers")
@pytest.mark.slow
@mostly_sqlite()
def test_two_schedulers_killed_at_random_enqueue_each_tick_once(seed: int, place: Path) -> None:
    _kill_at_random(place, seed, for_s=10)


@pytest.mark.fault("kill -9 of schedulers")
@pytest.mark.soak
def test_two_schedulers_killed_for_a_minute_enqueue_each_tick_once(seed: int, place: Path) -> None:
    assert _kill_at_random(place, seed, for_s=60) >= 30


@pytest.mark.turns(2)
@pytest.mark.fault("kill -9 of schedulers")
@sweep_stores("step", 2 * len(POINTS), shares=1, shares_of_servers=4)
def test_a_tick_and_its_cell_are_written_together_or_not_at_all(step: int, place: Path) -> None:
    point, calls = POINTS[step % len(POINTS)], 1 if step > len(POINTS) else 3  # the first commit makes the cells
    with _scheduler(place, KILL_AT=f"{point}:{calls}") as victim:
        assert victim.wait(PATIENCE_S) == KILLED
    with _scheduler(place) as heir:
        _await_ticks(place, "quick", 5)
        assert _ended(heir) == 0
    _check(place, "quick", 100)


def _kill_at_random(place: Path, seed: int, *, for_s: float) -> int:
    """Returns how many were killed."""
    print(f"seed {seed}: two schedulers for {for_s} s")
    rng = random.Random(seed)
    kills = 0
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(_scheduler(place)) for _ in range(2)]
        _await_ticks(place, "cron", 1)
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            time.sleep(_pause_s(rng))
            who = rng.randrange(2)
            running[who].kill()
            assert running[who].wait() == KILLED, "it had ended by itself"
            kills += 1
            running[who] = stack.enter_context(_scheduler(place))
        _await_ticks(place, "cron", int(for_s))
        assert [_ended(scheduler) for scheduler in running] == [0, 0]
    counts = {name: _check(place, name, every_ms) for name, every_ms in (("cron", 1000), ("quick", 100))}
    print(f"{kills} kills; ticks: {counts}")
    assert kills >= for_s / PAUSE_S / 2
    return kills


def _pause_s(rng: random.Random) -> float:
    """Any time; or the milliseconds around the next full second, when both enqueue."""
    if rng.random() < AIMED:
        return (-time.time()) % 1 + rng.uniform(0, 0.02)
    return rng.uniform(0, PAUSE_S)


@contextlib.contextmanager
def _scheduler(place: Path, **extra: str) -> Iterator[subprocess.Popen[bytes]]:
    """`redrive scheduler` in this place; killed at the end if it still runs."""
    program = place / "ticking.py"
    if not program.exists():  # else the other scheduler may find half of it
        program.write_text(PROGRAM)
    argv = [sys.executable, "-m", "redrive", "scheduler", "ticking:app", "--log", "off"]
    kept = {n: text for n, text in os.environ.items() if n == "REDRIVE_STATE_DIR" or not n.startswith("REDRIVE_")}
    kept["STORE"] = url_of(place)
    with (place / "stderr").open("ab") as stderr:
        process = subprocess.Popen(
            argv, cwd=place, env=kept | extra, stdin=subprocess.DEVNULL, stderr=stderr, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _ended(scheduler: subprocess.Popen[bytes]) -> int:
    """SIGTERM to one that is up; its exit code. One that is still starting has no handler yet and dies of it."""
    scheduler.send_signal(signal.SIGTERM)
    code = scheduler.wait(PATIENCE_S)
    return 0 if code == -signal.SIGTERM else code


def _await_ticks(place: Path, name: str, count: int) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while len(_ticks_ms(place, name)) < count:
        assert time.monotonic() < end_s, f"no {count} ticks came; stderr: {(place / 'stderr').read_text()[-4000:]}"
        time.sleep(0.05)


def _check(place: Path, name: str, every_ms: int) -> int:
    """Assert that the ticks follow each other without gap or repetition; returns how many there are."""
    ticks_ms = sorted(_ticks_ms(place, name))
    odd = [(a, b) for a, b in pairwise(ticks_ms) if b - a != every_ms]
    assert odd == [], f"missing or doubled between {odd[:5]}"
    return len(ticks_ms)


def _ticks_ms(place: Path, name: str) -> list[int]:
    return [
        round(datetime.fromisoformat(m.headers["redrive-tick"]).timestamp() * 1000)
        for m in _messages(place)
        if m.headers.get("redrive-schedule") == name
    ]


def _messages(place: Path) -> list[Message]:
    with contextlib.closing(opened(place)) as store:
        return [*everything(store)]
