"""How long a user's test takes with the `rd` fixture's Kit, all of it: making it, enqueueing, draining, closing."""

from __future__ import annotations

import time

from redrive import App, Backoff, Retry
from redrive.testing import Kit

from .harness import Broken, Options, Reading

RETRIES = 8
MANY = 2_000
PATIENT = Retry(max_attempts=9, max_elapsed="1d", backoff=Backoff(base="100s", factor=2, cap="1d", jitter="none"))

app = App("memory://")


@app.task(retry=PATIENT)
async def push(record_id: int) -> None:
    """What is retried for seven hours."""


def testkit(options: Options) -> list[Reading]:
    """A test of a task with 8 retries over 7 virtual hours, and one that drains 2,000 messages."""
    retried = [retry_ms() for _ in range(options.starts)]
    return [
        Reading("test of 8 retries over 7 h, first in the process", "ms", retried[:1], "≤ 50"),
        Reading("test of 8 retries over 7 h", "ms", retried, "≤ 50"),
        Reading("messages drained, each at its own time", "1/s", [drained_per_s() for _ in range(options.rounds)]),
    ]


def retry_ms() -> float:
    from_s = time.perf_counter()
    with Kit(app) as rd:
        push.enqueue(42)
        rd.fail_next(push, times=RETRIES)
        summary = rd.drain()
    if (summary.done, summary.failed) != (1, RETRIES) or summary.elapsed_s < 7 * 3600:
        raise Broken(f"{RETRIES} retries were to come to an end after 7 h: {summary}")
    return (time.perf_counter() - from_s) * 1000


def drained_per_s() -> float:
    from_s = time.perf_counter()
    with Kit(app) as rd:
        app.enqueue_many(push.using(delay=n + 1).draft(n) for n in range(MANY))
        summary = rd.drain()
    if summary.done != MANY:
        raise Broken(f"{MANY} messages were to be done: {summary}")
    return MANY / (time.perf_counter() - from_s)
