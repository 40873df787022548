"""The app of the conviction tests: `redrive worker tests.support.crash.poison:app`.

`python -m tests.support.crash.poison parent|child` runs a supervisor that notices a hang sooner, or a worker without
one. The folder is in POISON_PLACE.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from pathlib import Path

from tests.support.crash.ledger import Journal, handled, url_of

import redrive
from redrive.worker.process import run
from redrive.worker.supervisor import supervise

PLACE = Path(os.environ.get("POISON_PLACE", "."))
LEASE_S = 4.0
HUNG_AFTER_S = 3.0  # so long that none is taken for hung where the machine is busy
CONCURRENCY = int(os.environ.get("POISON_CONCURRENCY", "4"))

app = redrive.App(url_of(PLACE))
_journal: list[Journal] = []


def note(what: str) -> None:
    if not _journal:
        _journal.append(Journal(handled(PLACE)))
    c = redrive.context()
    _journal[0].write(what, c.message_id, attempt=c.attempt, crashes=c.crashes, fence=c.fence)


@app.task(name="good")
def good(n: int) -> None:
    note("start")
    time.sleep(0.05)
    note("end")


@app.task(name="good_too")
async def good_too(n: int) -> None:
    note("start")
    await asyncio.sleep(0.05)
    note("end")


@app.task(name="waits")
def waits(n: int) -> None:
    note("start")
    while not (PLACE / "go").exists():
        time.sleep(0.01)
    time.sleep(0.3)  # past the poison's death
    note("end")


@app.task(name="awaits")
async def awaits(n: int) -> None:
    note("start")
    while not (PLACE / "go").exists():  # noqa: ASYNC110 # the test makes it
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    note("end")


def die(way: str) -> None:
    note("start")
    time.sleep(0.02)  # so that others have begun
    kill(way)


def kill(way: str) -> None:
    match way:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits" | "exits well" | "exits as if misused":
            os._exit({"exits": 3, "exits well": 0, "exits as if misused": 2}[way])
        case "segfault":
            import ctypes

            ctypes.string_at(0)
        case "memory":
            eaten = []
            while True:  # until somebody kills it
                eaten.append(b"x" * 8_000_000)
                time.sleep(0.005)
        case "hangs":
            re.match(r"(a+)+$", "a" * 60 + "b")  # years, and nobody else gets the interpreter's lock
        case "tree":
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


SOON = redrive.Retry(backoff=redrive.Backoff.fixed("200ms"))


@app.task(name="poison", retry=SOON)
def poison(way: str) -> None:
    die(way)


@app.task(name="poison_on_the_loop", timeout="1s", retry=SOON)
async def poison_on_the_loop(way: str) -> None:
    die(way)


@app.task(name="poison_waits", retry=SOON)
def poison_waits(way: str) -> None:
    note("start")
    while not (PLACE / "go").exists():
        time.sleep(0.01)
    kill(way)


def child() -> None:
    run(app.worker({"default": CONCURRENCY}, lease=LEASE_S, grace=1, drain=True))
    app.store.close()


def parent() -> int:
    state_dir = app.store.state_dir
    app.store.close()
    return supervise(
        [sys.executable, "-m", "tests.support.crash.poison", "child"],
        processes=1,
        state_dir=state_dir,
        lease_s=HUNG_AFTER_S,
        grace_s=1,
        hung_after_s=HUNG_AFTER_S,
    )


if __name__ == "__main__":
    sys.exit({"parent": parent, "child": child}[sys.argv[1]]())
