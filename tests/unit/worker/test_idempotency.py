"""Idempotency in a worker: one effect per key, whatever comes twice, fails, dies or comes late."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.idempotency_rules import (  # noqa: F401
    ONCE,
    claim_elsewhere,
    ordered,
    test_a_completed_duplicate_is_done_with_the_stored_result_and_is_not_run,
    test_a_failed_run_frees_the_key_and_runs_again_at_once,
    test_a_live_conflict_defers_and_its_message_waits_unspent,
    test_a_message_takes_over_from_its_own_earlier_run_at_once,
    test_a_zombie_is_refused_and_the_new_owners_claim_survives,
    test_of_two_in_one_batch_one_runs_and_the_other_is_put_off_not_acked,
    test_the_same_key_with_other_arguments_is_dead_and_permanent,
    test_who_waits_takes_over_once_the_others_time_is_over,
)
from tests.support.idempotent_tasks import kept
from tests.support.workers import SOON, Heard, stored, until

from redrive import App, Context, Idempotency, Reject
from redrive.errors import StoreUnavailable
from redrive.flow.idempotency import KeyRecord, cell_of, payload_of
from redrive.message import Lane


def test_a_dead_message_frees_its_key(app: App) -> None:
    @app.task(name="charge", idempotency=ONCE)
    async def charge(order: int) -> None:
        raise Reject("never")

    charge.enqueue(7)
    app.run_worker(burst=True)
    assert kept(app, "charge", "order-7") is None


def test_a_worker_does_not_run_what_was_completed_before_it_could_be_acked(app: App) -> None:
    """Its own record, by an earlier fence: a crash between the commit of the key and the ack."""
    from redrive.flow.idempotency import completed, completing

    ran = []

    @app.task(name="charge", idempotency=ONCE, keep_result="1h")
    async def charge(order: int) -> str:
        ran.append(order)
        return "again"

    ref = charge.enqueue(7)
    now_ms = app.store.now_ms()
    record = KeyRecord(ref.id, 1, now_ms, payload_of(charge.codec.canonical((7,), {})))
    done = completed(record, b'"first"', None, now_ms)
    app.store.cells.swap([completing(cell_of("charge", "order-7"), 0, done, 60_000)])
    app.run_worker(burst=True)
    assert ran == [] and ref.wait("1s") == "first"


def test_follow_ups_and_degraded_results_are_made_once_and_told_each_time(app: App) -> None:
    heard = Heard(app)

    @app.task(name="mail", queue="later")
    def mail(order: int) -> None: ...

    @app.task(name="charge", ctx=True, idempotency=ONCE, keep_result="1h")
    async def charge(ctx: Context, order: int) -> int | None:
        ctx.enqueue(mail, order)
        return ctx.partial(5, "no receipt")

    refs = []
    for _ in range(2):
        refs.append(charge.enqueue(7))
        app.run_worker(["default"], burst=True)
    assert app.counts("later").ready == 1 and [ref.wait("1s") for ref in refs] == [5, 5]
    assert [fate.degraded for fate in heard.fates] == ["no receipt", "no receipt"]


def test_what_is_returned_and_cannot_be_stored_is_done_without_a_result(app: App) -> None:
    heard = Heard(app)

    @app.task(name="charge", idempotency=ONCE)
    def charge(order: int) -> Any:
        return object()

    charge.enqueue(7)
    app.run_worker(burst=True)
    record = kept(app, "charge", "order-7")
    assert record is not None and record.done and record.result is None and "result_dropped" in heard.notices


def test_a_key_that_fails_is_a_failure_of_the_run(app: App) -> None:
    ran = []

    def failing(order: int) -> str:
        raise LookupError("no such order")

    @app.task(name="charge", retry=SOON, idempotency=Idempotency(failing))
    def charge(order: int) -> None:
        ran.append(order)

    ref = charge.enqueue(7)
    app.run_worker(drain=True)
    message = stored(app, ref.id)
    assert ran == [] and message.lane is Lane.DEAD and message.attempt == 3
    assert message.faults[-1].error.endswith("LookupError")


def test_nothing_runs_without_its_key_where_cells_cannot_be_reached(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    @app.task(name="charge", idempotency=ONCE)
    async def charge(order: int) -> None:
        ran.append(order)

    ref = charge.enqueue(7)
    cells = app.store.cells
    for name in ("read", "swap"):
        real = getattr(cells, name)

        def down(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("cells are out")

        monkeypatch.setattr(cells, name, down)
        app.run_worker(burst=True)
        assert ran == [] and ref.state == "scheduled", name
        monkeypatch.setattr(cells, name, real)
        time.sleep(max(0, (stored(app, ref.id).due_ms or 0) - app.store.now_ms()) / 1000)
    app.run_worker(burst=True)
    assert ran == [7]


def test_a_message_of_an_older_version_is_not_compared_with_a_newer_one(app: App) -> None:
    ran = []

    @app.task(name="charge", idempotency=ONCE)
    async def charge(order: int) -> None:
        ran.append(order)

    charge.enqueue(7)
    app.run_worker(burst=True)
    del app.tasks["charge"]

    @app.task(name="charge", version=2, idempotency=ONCE)
    async def charge_in(order: int, currency: str) -> None:
        ran.append(order)

    ref = charge_in.enqueue(7, "eur")
    app.run_worker(burst=True)
    assert ran == [7] and ref.state == "done"


def test_what_waits_for_a_place_keeps_its_key(app: App) -> None:
    """Claimed ahead and not started: its claim is held on, as its lease is."""
    ran = []
    hold = asyncio.Event()

    @app.task(name="charge", idempotency=ONCE, timeout="400ms")
    async def charge(order: int) -> None:
        ran.append(order)
        if order == 1:
            await hold.wait()

    @app.task(name="slow")
    async def slow() -> None:
        await hold.wait()

    async def main() -> None:
        await slow.aenqueue()
        async with app.worker(["default"], concurrency=1, prefetch=1, lease="300ms", grace=0.01):
            await until(lambda: app.counts().leased == 1)
            await charge.aenqueue(7)
            await until(lambda: kept(app, "charge", "order-7"))
            first = kept(app, "charge", "order-7")
            await asyncio.sleep(1.0)
            later = kept(app, "charge", "order-7")
            assert first is not None and later is not None and later.until_ms > first.until_ms
            hold.set()
            await until(lambda: ran == [7])

    asyncio.run(main())
    record = kept(app, "charge", "order-7")
    assert record is not None and record.done
