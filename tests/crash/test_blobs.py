"""kill -9 between a blob and its message: a crash leaves blobs of nobody, never a message without its blob."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import redrive
from redrive import App
from redrive.blobs import ClaimCheck, FileBlobs, read_reference, whole_body
from redrive.message import BLOB, Lane, Message

pytestmark = [pytest.mark.slow, pytest.mark.turns(3)]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
SIZE = 250_000


# -- the programs: python -m tests.crash.test_blobs producer|worker PLACE POINT NTH


def make_app(place: Path) -> App:
    app = App(f"sqlite:///{place}/work.db", blobs=f"file://{place}/blobs")

    @app.task(name="take")
    def take(n: int, text: str) -> None:
        note(place / "handled", n if text == text_of(n) else -1)
        time.sleep(0.002)

    @app.task(name="first")
    async def first(n: int) -> None:
        redrive.context().enqueue(take, n, text_of(n))

    @app.task(name="doomed", on_dead="take")
    async def doomed(n: int, text: str) -> None:
        raise redrive.Reject("no")

    return app


def text_of(n: int) -> str:
    return f"{n:09d}" * (SIZE // 9)


def note(path: Path, n: int) -> None:
    """One line, whole or not at all, that outlives this process."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{n}\n".encode())
    os.close(file)


def noted(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def run(role: str, place: Path, point: str, nth: int) -> None:
    app = make_app(place)
    checked = claims(app)
    calls = itertools.count(1)

    def failpoint(reached: str) -> None:
        if reached == point and next(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(PATIENCE_S)

    checked.failpoint = failpoint
    if role == "worker":
        app.run_worker(burst=True, concurrency=2)
        return
    for n in range(len(noted(place / "tried")), 40):
        note(place / "tried", n)
        app.tasks["take"].enqueue(n, text_of(n))
        note(place / "acknowledged", n)


def claims(app: App) -> ClaimCheck:
    assert isinstance(app.store, ClaimCheck)
    return app.store


# -- the tests


def child(role: str, place: Path, point: str = "", nth: int = 0) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "tests.crash.test_blobs", role, str(place), point, str(nth)]
    return subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL)


def killed(role: str, place: Path, point: str, nth: int) -> None:
    """Run a child that kills itself at the nth time it comes to that point."""
    assert child(role, place, point, nth).wait(PATIENCE_S) == -signal.SIGKILL


def done(role: str, place: Path) -> None:
    assert child(role, place).wait(PATIENCE_S) == 0


def stored(app: App) -> list[Message]:
    return [message for lane in Lane for message in app.store.peek(lane, limit=1000).messages]


def blobs_of(app: App) -> set[str]:
    blobs = claims(app).blobs
    assert isinstance(blobs, FileBlobs)
    return {path.name for path in blobs.folder.iterdir()}


def referred(app: App) -> set[str]:
    return {read_reference(message.body).blob for message in stored(app) if message.content == BLOB}


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.005)


def collects_exactly(place: Path, orphans: int) -> None:
    """Every stored message has its body, and collecting removes so many blobs and none that a message refers to."""
    app = make_app(place)
    try:
        live = referred(app)
        assert live <= blobs_of(app), "a message has no blob"
        for message in stored(app):
            if message.task == "take":
                assert whole_body(app.store, message)
        assert len(blobs_of(app) - live) == orphans
        assert app.collect_blobs("1h") == 0, "a put may be under way"
        assert app.collect_blobs(0) == orphans
        assert blobs_of(app) == live
    finally:
        app.store.close()


@pytest.mark.parametrize("nth", [1, 5])
def test_producer_killed_between_blob_and_put_leaves_an_orphan_that_is_collected(tmp_path: Path, nth: int) -> None:
    killed("producer", tmp_path, "deposited", nth)
    assert noted(tmp_path / "acknowledged") == [*range(nth - 1)]
    collects_exactly(tmp_path, 1)
    done("worker", tmp_path)
    assert sorted(noted(tmp_path / "handled")) == [*range(nth - 1)]
    collects_exactly(tmp_path, 0)


@pytest.mark.parametrize("nth", [1, 2])
def test_worker_killed_between_commit_and_removal_leaves_orphans_that_are_collected(tmp_path: Path, nth: int) -> None:
    app = make_app(tmp_path)
    app.enqueue_many([app.tasks["take"].draft(n, text_of(n)) for n in range(20)])
    waiting = app.tasks["take"].using(delay="1d").enqueue(99, text_of(99))
    app.store.close()
    killed("worker", tmp_path, "settled", nth)
    app = make_app(tmp_path)
    left, blobs = stored(app), blobs_of(app)
    app.store.close()
    assert waiting.id in {message.id for message in left}
    assert len(blobs) > len(left), "the failpoint is where nothing is left behind"
    collects_exactly(tmp_path, len(blobs) - len(left))
    done("worker", tmp_path)
    assert set(noted(tmp_path / "handled")) == {*range(20)}
    collects_exactly(tmp_path, 0)


def test_kills_at_random_lose_no_body_and_leave_only_orphans(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    app = make_app(tmp_path)
    for n in range(100, 110):
        app.tasks["first"].enqueue(n)
        app.tasks["doomed"].enqueue(n + 100, text_of(n + 100))
    app.store.close()
    for _ in range(6):
        producer, worker = child("producer", tmp_path), child("worker", tmp_path)
        time.sleep(rng.uniform(0.3, 0.7))
        for process in (worker, producer):
            process.kill()
            process.wait()
    done("producer", tmp_path)
    done("worker", tmp_path)
    app = make_app(tmp_path)
    left, orphans = stored(app), blobs_of(app) - referred(app)
    app.store.close()
    handled = noted(tmp_path / "handled")
    assert -1 not in handled, "a body was not what was sent"
    assert {*noted(tmp_path / "acknowledged"), *range(100, 110), *range(200, 210)} <= set(handled)
    assert {(m.task, m.reason) for m in left} <= {("doomed", "rejected")}, "a message lost its blob"
    assert len(left) == 10
    collects_exactly(tmp_path, len(orphans))


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
