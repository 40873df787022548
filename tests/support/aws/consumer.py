"""The consumer that the crash tests of SQS start and kill: `python -m tests.support.aws.consumer
ORDERS`, a JSON of Orders.

Its handlers write down their start and end in a journal that survives kill -9 (tests/support/crash/ledger.py).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.support.crash.ledger import Journal, handled

import redrive
from redrive import Idempotency

FAILS_EVERY = 5  # of so many orders one fails in its first attempt


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """`kill_at`: SIGKILL itself at that call of the store's failpoint, of `kill_point` only, if that is given."""

    place: str
    url: str
    once: bool = False  # tasks have idempotency keys
    concurrency: int = 8
    prefetch: int = 40
    lease: str = "3s"
    kill_at: int = 0
    kill_point: str = ""


def make_app(orders: Orders, journal: Journal) -> redrive.App:
    app = redrive.App(orders.url)
    retry = redrive.Retry(max_attempts=20, backoff=redrive.Backoff.fixed("1s"))
    key = Idempotency(key=lambda n: f"order-{n}") if orders.once else None

    @app.task(name="pay", retry=retry, idempotency=key)
    def pay(n: int) -> None:
        c = redrive.context()
        journal.write("start", c.message_id, attempt=c.attempt, crashes=c.crashes, note=str(n))
        if n % FAILS_EVERY == 0 and c.attempt == 1 and not c.crashes:
            journal.write("end", c.message_id, attempt=c.attempt, crashes=c.crashes, note="failed")
            raise ConnectionError("down")
        journal.write("effect", c.message_id, note=str(n))
        journal.write("end", c.message_id, attempt=c.attempt, crashes=c.crashes, note="ok")

    return app


def kill_hook(journal: Journal, orders: Orders) -> Callable[[str], None]:
    calls = itertools.count(1)

    def failpoint(point: str) -> None:
        if orders.kill_point in ("", point) and next(calls) == orders.kill_at:
            journal.write("killing", note=point)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # no step further, should the signal take its time

    return failpoint


def work(orders: Orders) -> None:
    journal = Journal(handled(Path(orders.place)))
    journal.write("up")
    app = make_app(orders, journal)
    store = app.store
    if orders.kill_at:
        store.failpoint = kill_hook(journal, orders)  # type: ignore[attr-defined]
    app.run_worker({"default": orders.concurrency}, prefetch=orders.prefetch, lease=orders.lease)
    store.close()
    journal.write("exit")


if __name__ == "__main__":
    work(msgspec.json.decode(sys.argv[1], type=Orders))
