"""A worker whose handlers outlast a store that is away: `away.py URL JOURNAL SECONDS`. It drains, and ends.

Each start and end of a handler is a line in the journal, written by one write(2).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import redrive
from redrive import App


def make_app(url: str, journal: str = os.devnull, seconds: float = 0.0) -> App:
    app, file = App(url), os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(what: str) -> None:
        os.write(file, f"{what} {redrive.context().message_id}\n".encode())

    @app.task(name="thread")
    def thread() -> None:
        note("start")
        time.sleep(seconds)
        note("end")

    @app.task(name="coroutine")
    async def coroutine() -> None:
        note("start")
        await asyncio.sleep(seconds)
        note("end")

    return app


if __name__ == "__main__":
    url, journal, seconds = sys.argv[1:]
    make_app(url, journal, float(seconds)).run_worker(concurrency=20, prefetch=0, lease="2s", drain=True)
