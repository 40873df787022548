"""The app that the measured processes share, and the records its handlers leave.

A handler appends one record per run with a single write(2), about a microsecond, so that the clock of a measurement is
the handler's own and not a look at the queue from outside.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redrive import App, Backoff, Context, Idempotency, Retry
from redrive.fault import Fault

RECORD = struct.Struct("<qd")
FAIL_EVERY = 5
BRIEF_S = 0.01  # how long `brief` runs


class Boom(Exception):
    """The planned failure of every fifth message."""


class Records:
    """A file of (index, wall time) pairs, written by one process and read by another; after a failed run -1 - index."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, index: int) -> None:
        os.write(self._file, RECORD.pack(index, time.time()))

    def close(self) -> None:
        os.close(self._file)


def read_records(path: Path) -> list[tuple[int, float]]:
    """Every whole record, in the order they were written."""
    data = path.read_bytes() if path.exists() else b""
    return list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))


def make_app(
    url: str, add: Callable[[int], None] = lambda index: None, retried: dict[int, tuple[Fault, ...]] | None = None
) -> App:
    """Tasks `noop`; `keyed`, with a key of its own for each message; `brief`, which waits a moment; `failing`, which
    raises once for every fifth message; `dying`, which raises until those are dead.

    `add` is called in each run. `retried` collects the faults that retries of `failing` were claimed with, as stored.
    """
    app = App(url)
    twice = Retry(max_attempts=2, backoff=Backoff.fixed(0))

    @app.task(name="noop")
    async def noop(i: int) -> None:
        add(i)

    @app.task(name="keyed", idempotency=Idempotency(key=key_of))
    async def keyed(i: int) -> None:
        add(i)

    @app.task(name="brief")
    async def brief(i: int) -> None:
        add(i)
        await asyncio.sleep(BRIEF_S)

    @app.task(name="failing", ctx=True, retry=twice)
    async def failing(ctx: Context, i: int) -> None:
        if i % FAIL_EVERY == 0:
            if ctx.attempt == 1:
                add(-1 - i)
                raise Boom(f"message {i} fails")
            if retried is not None:
                retried[i] = ctx.message.faults
        add(i)

    @app.task(name="dying", ctx=True, retry=twice)
    async def dying(ctx: Context, i: int) -> None:
        if i % FAIL_EVERY == 0:
            add(-1 - i if ctx.attempt == 1 else i)
            raise Boom(f"message {i} fails")
        add(i)

    return app


def key_of(i: int) -> str:
    return f"key-{i}"


def drafts(app: App, task: str, indexes: range) -> list[Any]:
    return [app.tasks[task].draft(i) for i in indexes]
