"""Checkpoints: what a run kept of its way, for the next attempt and for whoever looks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.workers import SOON, Heard, stored, until

import redrive
from redrive import App, Context
from redrive.errors import EncodeError, LeaseLost, TooLarge
from redrive.message import ClaimRequest
from redrive.store import Traits
from redrive.stores.memory.store import MemoryStore


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_the_next_attempt_goes_on_from_the_checkpoint(app: App, kind: str) -> None:
    seen: list[Any] = []
    if kind == "async":

        @app.task(ctx=True, retry=SOON, name="pages")
        async def pages(ctx: Context) -> None:
            seen.append(ctx.progress)
            await ctx.acheckpoint({"page": ctx.attempt, "of": [3, None]})
            seen.append(ctx.progress)
            if ctx.attempt < 3:
                raise ConnectionError("again")
    else:

        @app.task(ctx=True, retry=SOON, name="pages")
        def pages_sync(ctx: Context) -> None:
            seen.append(ctx.progress)
            ctx.checkpoint({"page": ctx.attempt, "of": [3, None]})
            seen.append(ctx.progress)
            if ctx.attempt < 3:
                raise ConnectionError("again")

    app.tasks["pages"].enqueue()
    app.run_worker(drain=True)
    first, second, third = ({"page": n, "of": [3, None]} for n in (1, 2, 3))
    assert seen == [None, first, first, second, second, third]


def test_a_checkpoint_is_durable_before_the_call_returns_and_seen_from_outside(app: App) -> None:
    looked: list[Any] = []

    @app.task(ctx=True)
    def pages(ctx: Context) -> None:
        for page in range(3):
            ctx.checkpoint(page)
            looked.append((ref.progress, stored(app, ref.id).progress))

    ref = pages.enqueue()
    assert ref.progress is None
    app.run_worker(burst=True)
    assert looked == [(0, b"0"), (1, b"1"), (2, b"2")] and ref.progress is None


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_lost_lease_refuses_the_checkpoint(app: App, kind: str) -> None:
    heard, refused = Heard(app), []

    def lose(ctx: Context) -> None:
        app.store.extend([ctx._receipt] if ctx._receipt else [], lease_ms=0)
        [delivery] = app.store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
        assert delivery.message.id == ctx.message_id

    @app.task(ctx=True, name="async")
    async def loses(ctx: Context) -> None:
        lose(ctx)
        with pytest.raises(LeaseLost, match="no longer leased"):
            await ctx.acheckpoint("mine")
        refused.append((ctx.progress, ctx.cancelled))

    @app.task(ctx=True, name="sync")
    def loses_sync(ctx: Context) -> None:
        lose(ctx)
        with pytest.raises(LeaseLost, match="no longer leased"):
            ctx.checkpoint("mine")
        refused.append((ctx.progress, ctx.cancelled))

    async def work() -> None:
        async with app.worker():
            await until(lambda: heard.fates)

    ref = app.tasks[kind].enqueue()
    asyncio.run(work())
    assert refused == [(None, True)] and heard.outcomes == ["stale"] and ref.progress is None


def test_in_a_coroutine_the_blocking_call_names_the_other() -> None:
    app = App("memory://")

    @app.task(ctx=True)
    async def pages(ctx: Context) -> None:
        with pytest.raises(RuntimeError, match=r"use `await ctx.acheckpoint"):
            ctx.checkpoint(1)
        await asyncio.to_thread(ctx.checkpoint, 2)
        assert ctx.progress == 2

    asyncio.run(pages())


def test_the_event_loop_goes_on_while_a_checkpoint_is_written() -> None:
    class Slow(MemoryStore):
        written = threading.Event()

        def checkpoint(self, receipt: Any, state: bytes) -> bool:
            assert self.written.wait(10)
            return super().checkpoint(receipt, state)

    store = Slow()
    app = App(store=store)
    heard = Heard(app)

    @app.task(ctx=True)
    async def pages(ctx: Context) -> None:
        asyncio.get_running_loop().call_later(0.01, store.written.set)
        await ctx.acheckpoint(1)

    pages.enqueue()
    app.run_worker(burst=True)
    assert heard.outcomes == ["done"]


def test_what_cannot_be_kept_is_refused() -> None:
    class Narrow(MemoryStore):
        traits = Traits(name="narrow", durable=False, shared=False, body_bytes_max=20)

    app = App(store=Narrow())
    heard = Heard(app)

    @app.task(ctx=True)
    def pages(ctx: Context) -> None:
        with pytest.raises(EncodeError, match="cannot be written as JSON"):
            ctx.checkpoint(object())
        with pytest.raises(TooLarge, match="has 21 bytes; this store takes 20"):
            ctx.checkpoint("x" * 19)
        ctx.checkpoint("x" * 18)

    pages.enqueue()
    app.run_worker(burst=True)
    assert heard.outcomes == ["done"]


def test_a_checkpoint_that_is_no_json_comes_as_bytes(app: App) -> None:
    seen: list[Any] = []

    @app.task()
    async def pages() -> None:
        seen.append(redrive.context().progress)

    ref = pages.enqueue()
    [delivery] = app.store.exchange([], [ClaimRequest("default", 1, 0)]).deliveries
    assert app.store.checkpoint(delivery.receipt, b"\xff") and ref.progress == b"\xff"
    app.run_worker(drain=True)
    assert seen == [b"\xff"]


def test_a_direct_call_keeps_its_checkpoint_to_itself(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.task(ctx=True)
    def pages(ctx: Context) -> Any:
        ctx.checkpoint({"page": 1})
        return ctx.progress

    assert pages() == {"page": 1} and not [*tmp_path.iterdir()]
