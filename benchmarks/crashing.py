"""The app of the benchmark `suspects`, for `redrive worker benchmarks.crashing:app`, or embedded: `python -m
benchmarks.crashing CONCURRENCY`. Its folder is in BENCH_PLACE.

While the folder has a file `hold`, handlers only begin: so a kill finds all of them under way.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import redrive

PLACE = "BENCH_PLACE"
WAYS = ("SIGKILL", "exit", "segfault", "memory")
BIG_BYTES = 400_000_000  # what the poison's process has when it is killed for its memory
KILLS_AFTER_S = 0.1
_LINE = struct.Struct("<q4Hid")  # index, what, attempt, crashes, unused, pid, wall time
STARTED, ENDED = range(2)


class Line(NamedTuple):
    """A run began, or ended."""

    index: int
    what: int
    attempt: int
    crashes: int
    pid: int
    at_s: float


def read(path: Path) -> Iterator[Line]:
    """What was written so far."""
    data = path.read_bytes() if path.exists() else b""
    for index, what, attempt, crashes, _, pid, at_s in _LINE.iter_unpack(data[: len(data) // _LINE.size * _LINE.size]):
        yield Line(index, what, attempt, crashes, pid, at_s)


def place() -> Path:
    return Path(os.environ.get(PLACE, "."))


def journal(folder: Path) -> Path:
    return folder / "runs"


app = redrive.App((place() / "url").read_text() if (place() / "url").exists() else "memory://")


@functools.cache
def _file() -> int:
    return os.open(journal(place()), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(index: int, what: int) -> None:
    c = redrive.context()
    os.write(_file(), _LINE.pack(index, what, c.attempt, c.crashes, 0, os.getpid(), time.time()))


def takes_s(seconds: float) -> float:
    """How long a run waits."""
    return 3600.0 if (place() / "hold").exists() else seconds


@app.task(name="wait_async", timeout="1h")
async def wait_async(i: int, seconds: float) -> None:
    note(i, STARTED)
    await asyncio.sleep(takes_s(seconds))
    note(i, ENDED)


@app.task(name="wait_sync", timeout="1h")
def wait_sync(i: int, seconds: float) -> None:
    note(i, STARTED)
    time.sleep(takes_s(seconds))
    note(i, ENDED)


@app.task(name="poison", retry=redrive.Retry(backoff=redrive.Backoff.fixed("100ms")))
async def poison(i: int, way: str) -> None:
    note(i, STARTED)
    await asyncio.sleep(takes_s(KILLS_AFTER_S))
    match way:
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "memory":
            eaten = []
            while True:  # until it is killed for it
                eaten.append(b"x" * 20_000_000)
                await asyncio.sleep(0.01)


if __name__ == "__main__":
    app.run_worker({"default": int(sys.argv[1])}, lease=30, grace=1)
