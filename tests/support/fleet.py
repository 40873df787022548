"""The program of the supervisor's tests: `fleet.py parent PLAN` supervises `fleet.py child PLAN`, which works an app.

Every start and end of a handler, and every child's coming, is a line in the journal, written by one write(2).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import redrive
from redrive import App, Retry
from redrive.events import Event, Notice
from redrive.worker.process import run
from redrive.worker.supervisor import PARENT_FD, supervise


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `broken` children end with `code` before they work, each leaving a file `broken-N`."""

    place: str
    processes: int = 2
    concurrency: int = 2
    prefetch: int = 2
    lease: float = 60.0
    grace: float = 30.0
    burst: bool = False
    hung_after: float = 10.0
    end_after: float = 5.0
    broken: int = 0
    code: int = 1


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    what: str  # up, start, end, or a notice's name
    pid: int
    worker: str = ""
    id: str = ""
    attempt: int = 0
    crashes: int = 0
    at_s: float = 0.0  # monotonic


class Journal:
    def __init__(self, place: Path) -> None:
        self._file = os.open(place / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, what: str, **more: object) -> None:
        line = Line(what=what, pid=os.getpid(), at_s=time.monotonic(), **more)  # type: ignore[arg-type]
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    @staticmethod
    def read(place: Path) -> list[Line]:
        path = place / "journal"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line, type=Line) for line in lines]


def make_app(place: Path, journal: Journal | None = None) -> App:
    """Tasks that go on until a file `go` lies beside the store, each in its way."""
    app, go = App(f"sqlite:///{place / 'work.db'}"), place / "go"

    @contextlib.contextmanager
    def noted() -> Iterator[None]:
        assert journal is not None and PARENT_FD not in os.environ  # what a handler starts has another parent
        c = redrive.context()
        journal.write("start", id=c.message_id, attempt=c.attempt, crashes=c.crashes)
        yield
        journal.write("end", id=c.message_id)

    @app.task(name="coroutine")
    async def coroutine() -> None:
        with noted():
            while not go.exists():  # noqa: ASYNC110  it waits for another process
                await asyncio.sleep(0.01)

    @app.task(name="thread")
    def thread() -> None:
        with noted():
            while not go.exists():
                redrive.context().check()
                time.sleep(0.01)

    @app.task(name="blocks", timeout="300ms", retry=Retry(max_attempts=1))
    async def blocks() -> None:
        """Holds the event loop up, past its timeout, in its first run."""
        with noted():
            while redrive.context().crashes == 0:
                pass

    @app.task(name="blocks_a_while", timeout="60s")
    async def blocks_a_while(seconds: float) -> None:
        """Holds the event loop up, within its timeout."""
        with noted():
            time.sleep(seconds)  # noqa: ASYNC251

    @app.task(name="leaves_a_thread")
    async def leaves_a_thread() -> None:
        """Ends when it is cancelled, but not so the thread it started, for which Python waits at exit."""
        with noted():
            await asyncio.to_thread(time.sleep, 120)

    return app


def child(plan: Plan) -> None:
    place = Path(plan.place)
    for number in range(plan.broken):
        with contextlib.suppress(FileExistsError):
            (place / f"broken-{number}").open("x").close()
            sys.exit(plan.code)
    journal = Journal(place)
    app = make_app(place, journal)
    worker = app.worker(
        {"default": plan.concurrency}, prefetch=plan.prefetch, lease=plan.lease, grace=plan.grace, burst=plan.burst
    )
    journal.write("up", worker=worker.name)
    freeze = place / "freeze"

    def stop_itself(point: str) -> None:
        """In the middle of a commit, once."""
        if point == "commit" and freeze.exists():
            with contextlib.suppress(FileNotFoundError):
                freeze.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)

    app.store.failpoint = stop_itself  # type: ignore[attr-defined]

    def told(events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Notice):
                journal.write(event.name, worker=event.worker)

    app.subscribe(told)
    run(worker)
    app.store.close()


def parent(plan: Plan) -> int:
    store = make_app(Path(plan.place)).store
    state_dir, lock_file = store.state_dir, store.lock_file
    store.close()
    return supervise(
        [sys.executable, __file__, "child", sys.argv[2]],
        processes=plan.processes,
        state_dir=state_dir,
        lease_s=plan.lease,
        grace_s=plan.grace,
        hung_after_s=plan.hung_after,
        end_after_s=plan.end_after,
        lock_file=lock_file,
    )


if __name__ == "__main__":
    plan = msgspec.json.decode(sys.argv[2], type=Plan)
    sys.exit(parent(plan) if sys.argv[1] == "parent" else child(plan))
