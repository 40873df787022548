"""The worker that test_idempotency starts and kills: `python -m tests.support.crash.payments payer PLAN`, and a count
of what it has paid.

Its tasks pay in two ways: `outside`, where the effect is a line in the journal and the key is all that guards it, and
`inside`, a row in the store's own SQLite file that is committed with the key's completion.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
from tests.support.crash.ledger import Journal, handled, read, url_of
from tests.support.crash.programs import Plan, hook

import redrive
from redrive import Context, Idempotency
from redrive.message import Draft

POINTS = ("before", "effect", "complete", "commit", "returned")  # of a handler, in the order it passes them


def file_of(place: Path) -> Path:
    return Path(url_of(place).removeprefix("sqlite:///"))


def make_app(place: Path, journal: Journal, kill_point: str = "") -> redrive.App:
    app = redrive.App(url_of(place))
    once = Idempotency(key=lambda order, *rest: f"order-{order}")
    retry = redrive.Retry(max_attempts=9, backoff=redrive.Backoff.fixed("10ms"))

    def reach(point: str, c: Context) -> None:
        """Die here, if this is the point, and nobody did before."""
        if point == kill_point and not any(r.what == "killing" for r in read(handled(place))):
            journal.write("killing", c.message_id, note=point)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def begin(c: Context) -> None:
        journal.write("start", c.message_id, attempt=c.attempt, crashes=c.crashes, fence=c.fence)
        reach("before", c)

    @app.task(name="after", queue="resting")
    def after(order: int) -> None: ...

    @app.task(name="outside", ctx=True, retry=retry, keep_result="1h", idempotency=once)
    def outside(c: Context, order: int) -> str:
        begin(c)
        c.enqueue(after, order)
        journal.write("effect", c.message_id, note=str(order))
        reach("effect", c)
        reach("returned", c)
        return f"paid {order}"

    @app.task(name="inside", ctx=True, retry=retry, keep_result="1h", idempotency=once)
    def inside(c: Context, order: int) -> str:
        begin(c)
        c.enqueue(after, order)
        connection = sqlite3.connect(file_of(place), timeout=30)
        try:
            connection.execute("insert into payment values (?)", (order,))
            reach("effect", c)
            c.complete(f"paid {order}", tx=connection)
            reach("complete", c)
            connection.commit()
            reach("commit", c)
        finally:
            connection.close()
        reach("returned", c)
        return f"paid {order}"

    return app


def fill(place: Path, task: str, orders: int, each: int = 2) -> None:
    """Enqueue each order `each` times, one after the other."""
    journal = Journal(handled(place))
    app = make_app(place, journal)
    if task == "inside":
        with sqlite3.connect(file_of(place)) as connection:
            connection.execute("create table payment (order_id integer)")
    drafts: list[Draft] = [app.tasks[task].draft(order) for _ in range(each) for order in range(orders)]
    app.enqueue_many(drafts)
    app.store.close()
    journal.close()


def payments(place: Path, task: str) -> Counter[int]:
    """How often each order was paid."""
    if task == "inside":
        with sqlite3.connect(file_of(place)) as connection:
            return Counter(order for (order,) in connection.execute("select order_id from payment"))
    return Counter(int(r.note) for r in read(handled(place)) if r.what == "effect")


def work(plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(handled(place))
    point = plan.kill_point if plan.kill_point in POINTS else ""
    app = make_app(place, journal, point)
    store = app.store
    if not point:
        hook(store, journal, plan)
    app.run_worker(
        {"default": plan.concurrency}, prefetch=plan.prefetch, lease=plan.lease, grace=plan.grace, drain=plan.drain
    )
    store.close()


if __name__ == "__main__":
    assert sys.argv[1] == "payer"
    work(msgspec.json.decode(sys.argv[2], type=Plan))
