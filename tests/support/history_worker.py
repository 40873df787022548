"""A worker whose fates go to a journal, for the test that holds a store's history against what happened.

Run as `python -m tests.support.history_worker URL JOURNAL EVERY_S`: EVERY_S is how often it writes what it counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence

from redrive import App, Backoff, Retry, context
from redrive.events import DeliveryEvent, Event
from redrive.history import flusher

FAILING, DYING, LONG = 20, 5, 4  # percent that fail once, percent that die at the third attempt; one in so many is long
ATTEMPTS = 3
WRITTEN = "written"  # in the journal, after the fates: what this process counted before that time is in the history


def kind_of(n: int) -> str:
    """What becomes of the n-th message."""
    return "dies" if n % 100 < DYING else "fails" if n % 100 < DYING + FAILING else "done"


def make_app(url: str) -> App:
    app = App(url)
    retry = Retry(max_attempts=ATTEMPTS, backoff=Backoff(base="100ms", cap="300ms"))

    @app.task(name="work", queue="crm", retry=retry)
    async def work(n: int) -> None:
        await asyncio.sleep((n * 7919 % 97 + 1) / (1000 if n % LONG else 400))
        kind = kind_of(n)
        if kind == "dies" or (kind == "fails" and context().attempt == 1):
            raise ConnectionError(kind)

    app.queue("crm", concurrency=50)
    app.dependency("work", budget=None, breaker=None)
    return app


def main(url: str, journal: str, every_s: str) -> None:
    logging.getLogger("redrive").setLevel(logging.CRITICAL + 1)
    flusher.EVERY_S = float(every_s)
    app = make_app(url)
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(events: Sequence[Event]) -> None:
        lines = [
            f"{os.getpid()} {time.time():.6f} {e.outcome} {e.run_ms or 0}"
            for e in events
            if isinstance(e, DeliveryEvent)
        ]
        if lines:
            os.write(file, ("\n".join(lines) + "\n").encode())

    flush = app.flusher.flush

    def flush_and_note() -> None:
        began_s = time.time()
        flush()
        os.write(file, f"{os.getpid()} {began_s:.6f} {WRITTEN} 0\n".encode())

    app.flusher.flush = flush_and_note  # type: ignore[method-assign]
    app.subscribe(write)
    app.run_worker(burst=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
