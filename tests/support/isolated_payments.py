"""A task with an idempotency key that runs in child processes, which import this module."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path

from tests.support.workers import SOON

from redrive import App, Context, Idempotency

app = App("memory://")
ONCE = Idempotency(key=lambda order, *rest: f"order-{order}")


def at(url: str) -> App:
    app._store, app.url = None, url
    app.events._observers.clear()
    return app


def note(ctx: Context, order: int, file: str) -> None:
    with Path(f"{file}-ran-{order}").open("a") as runs:
        runs.write(f"{ctx.idempotency_key}\n")


@app.task(name="pay", ctx=True, isolation="process", idempotency=ONCE, retry=SOON, keep_result="1h")
def pay(ctx: Context, order: int, file: str, dies: str) -> str:
    """Pays in the store's own file, and dies at a point of its first run."""
    first = ctx.crashes == 0 and ctx.attempt == 1

    def reach(point: str) -> None:
        if first and dies == point:
            os.kill(os.getpid(), signal.SIGKILL)

    note(ctx, order, file)
    reach("before")
    c = sqlite3.connect(file)
    c.execute("insert into payment values (?)", (order,))
    ctx.complete("paid", tx=c)
    reach("complete")
    c.commit()
    c.close()
    reach("commit")
    if first and dies == "stays":
        Path(f"{file}-paid").touch()
        time.sleep(60)
    if first and dies == "fails":
        raise ConnectionError("after the commit")
    return "paid"


@app.task(name="plain", ctx=True, isolation="process", idempotency=ONCE, retry=SOON, keep_result="1h")
async def plain(ctx: Context, order: int, file: str) -> str:
    note(ctx, order, file)
    if ctx.attempt == 1 and order == 13:
        raise ConnectionError("no answer")
    return "paid"
