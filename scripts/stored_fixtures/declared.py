"""The app that fills the stores. What it declares is declared again by the test, in the words of its own version."""

from __future__ import annotations

import os
import signal
import time

from redrive import Aimd, App, AutoRedrive, Backoff, Breaker, Budget, Context, Idempotency, Keys, Retry, RetryAfter

FOR_LONG = Retry(max_attempts=8, backoff=Backoff.fixed("30s"))
KEYS = Keys({"first": bytes(range(32))})


def make_app(url: str) -> App:
    app = App(url)
    app.dependency("mail", breaker=Breaker(min_calls=4, open_for="60s"))
    app.dependency("maps", breaker=Breaker())
    app.dependency("api", rate="2/s", concurrency=Aimd())
    app.dependency("sms", budget=Budget.fixed(2, per="1d"), breaker=None)
    app.queue("steps", group_order="strict", on_dead="block")
    app.queue("turns", group_width=2)
    app.queue("auto", auto_redrive=AutoRedrive(base="10m"))

    @app.task(name="work", queue="work", retry=FOR_LONG, keep_result="365d")
    def work(n: int) -> int:
        return n

    @app.task(name="step", queue="steps", retry=FOR_LONG)
    def step(n: int) -> None: ...

    @app.task(name="mail", queue="mail", dependency="mail", retry=FOR_LONG)
    def mail(n: int) -> None:
        raise ConnectionError("connection refused")

    @app.task(name="look-up", queue="maps", dependency="maps")
    def look_up(n: int) -> None: ...

    @app.task(name="call", queue="api", dependency="api", retry=FOR_LONG)
    def call(n: int) -> None:
        if n == 3:
            raise RetryAfter(3600)

    @app.task(name="sms", queue="sms", dependency="sms", retry=Retry(max_attempts=8, backoff=Backoff.fixed("10ms")))
    def sms(n: int) -> None:
        raise ConnectionError("connection refused")

    @app.task(
        name="charge",
        queue="charges",
        keep_result="365d",
        retry=FOR_LONG,
        idempotency=Idempotency(key=lambda order, cents: f"charge-{order}", keep="365d"),
    )
    def charge(order: int, cents: int) -> dict[str, int]:
        if order == 2:
            _die()
        return {"receipt": 1000 + order}

    @app.task(name="kills", queue="kills", ctx=True, retry=FOR_LONG)
    def kills(ctx: Context, n: int) -> None:
        if ctx.message.crashes == 0:
            _die()

    @app.task(name="load", queue="charges", ctx=True, retry=FOR_LONG)
    def load(ctx: Context, n: int) -> None:
        ctx.checkpoint({"rows": 7})
        time.sleep(60)

    @app.task(name="again", queue="redriven", retry=Retry(max_attempts=1))
    def again(n: int) -> None: ...

    @app.task(name="fails", queue="auto", retry=Retry(max_attempts=1))
    def fails(n: int) -> None:
        raise ValueError(f"no {n}")

    app.periodic(every="2s", name="pulse", queue="ticks", args=(0,))(work)
    app.periodic("0 3 * * *", tz="Europe/Berlin", name="nightly", queue="ticks", args=(0,))(work)
    app.periodic(every="2s", name="quiet", queue="ticks", args=(0,))(work)
    return app


def make_closed_app(url: str) -> App:
    """One that encrypts what it enqueues."""
    app = App(url, encrypt=KEYS)

    @app.task(name="closed", queue="closed", retry=FOR_LONG)
    def closed(n: int) -> None: ...

    return app


def _die() -> None:
    """Once the other one keeps its checkpoint, and the worker has told what it holds."""
    time.sleep(2.5)
    os.kill(os.getpid(), signal.SIGKILL)
