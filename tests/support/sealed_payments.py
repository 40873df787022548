"""Tasks with idempotency keys in an app that encrypts; children import this module."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from tests.support.workers import SOON

from redrive import App, Context, Idempotency, Keys, Poison

app = App("memory://", encrypt=Keys({"k1": bytes(range(32))}))
ONCE: dict[str, Any] = {"ctx": True, "retry": SOON, "keep_result": "1h", "timeout": "10s", "poison": Poison(1)}


def at(url: str) -> App:
    app._store, app.url = None, url
    app.events.observers.clear()
    return app


@app.task(name="isolated", isolation="process", idempotency=Idempotency(key=lambda card: "isolated"), **ONCE)
def isolated(ctx: Context, card: str) -> list[object]:
    return [ctx.idempotency_key, os.getpid(), card]


@app.task(name="beside", idempotency=Idempotency(key=lambda card: "beside"), **ONCE)
async def beside(ctx: Context, card: str) -> list[object]:
    return [ctx.idempotency_key, os.getpid(), card]


@app.task(name="completes", isolation="process", idempotency=Idempotency(key=lambda card, file: "completes"), **ONCE)
def completes(ctx: Context, card: str, file: str) -> str:
    """Completes its key in a transaction on the store's own file."""
    c = sqlite3.connect(file)
    ctx.complete(card, tx=c)
    c.commit()
    c.close()
    return card
