"""A worker whose handlers outlast a store that is away: `away.py URL JOURNAL SECONDS`. It works until SIGTERM.

A line in the journal, written by one write(2): that the worker is ready, and each start and end of a handler.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import redrive
from redrive import App
from redrive.events import Event, Notice


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


def _say_ready(events: Sequence[Event], journal: Path) -> None:
    if any(isinstance(event, Notice) and event.name == "started" for event in events):
        with journal.open("ab", buffering=0) as file:
            file.write(b"ready\n")


if __name__ == "__main__":
    url, journal, seconds = sys.argv[1:]
    app = make_app(url, journal, float(seconds))
    app.subscribe(lambda events: _say_ready(events, Path(journal)))
    app.run_worker(concurrency=20, prefetch=0, lease="2s")
