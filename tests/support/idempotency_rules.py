"""Rules of idempotency keys that hold on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.idempotent_tasks import kept
from tests.support.workers import SOON, Heard, stored, until

from redrive import App, Context, Idempotency, context
from redrive.flow.idempotency import KeyRecord, cell_of, payload_of, taking
from redrive.message import ClaimRequest, Lane


def ordered(order: int, *rest: Any, **more: Any) -> str:
    return f"order-{order}"


ONCE = Idempotency(key=ordered)


def claim_elsewhere(
    app: App, task: str, key: str, payload: bytes, owner: str = "another", for_ms: int = 60_000
) -> None:
    """As a worker that runs this key now."""
    now_ms = app.store.now_ms()
    record = KeyRecord(owner, 1, now_ms + for_ms, payload)
    assert app.store.cells.swap([taking(cell_of(task, key), 0, record, now_ms)]) == [True]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_completed_duplicate_is_done_with_the_stored_result_and_is_not_run(app: App, kind: str) -> None:
    heard, ran = Heard(app), []

    @app.task(name="async", idempotency=ONCE, keep_result="1h")
    async def charge(order: int) -> list[int]:
        ran.append(order)
        return [order, 100]

    @app.task(name="sync", idempotency=ONCE, keep_result="1h")
    def charge_sync(order: int) -> list[int]:
        ran.append(order)
        return [order, 100]

    first = app.tasks[kind].enqueue(7)
    app.run_worker(burst=True)
    second = app.tasks[kind].enqueue(7)
    app.run_worker(burst=True)
    assert ran == [7] and first.wait("1s") == second.wait("1s") == [7, 100]
    assert [(fate.outcome, fate.duplicate_of) for fate in heard.fates] == [("done", None), ("done", first.id)]
    assert heard.fates[1].run_ms is None
    record = kept(app, kind, "order-7")
    assert record is not None and record.done and record.owner == first.id


def test_of_two_in_one_batch_one_runs_and_the_other_is_put_off_not_acked(app: App) -> None:
    heard, ran = Heard(app), []

    @app.task(name="charge", idempotency=ONCE)
    async def charge(order: int) -> None:
        ran.append(order)

    app.enqueue_many([charge.draft(7), charge.draft(7), charge.draft(8)])
    app.run_worker(drain=True)
    assert sorted(ran) == [7, 8]
    assert [fate.outcome for fate in heard.fates].count("held") == 1
    held = next(fate for fate in heard.fates if fate.outcome == "held")
    assert held.deferral == "idempotency" and held.attempt == 0
    assert [fate.outcome for fate in heard.fates if fate.duplicate_of] == ["done"]


def test_a_live_conflict_defers_and_its_message_waits_unspent(app: App) -> None:
    ran = []

    @app.task(name="charge", idempotency=ONCE)
    async def charge(order: int) -> None:
        ran.append(order)

    ref = charge.enqueue(7)
    claim_elsewhere(app, "charge", "order-7", payload_of(charge.codec.canonical((7,), {})))
    app.run_worker(burst=True)
    message = stored(app, ref.id)
    assert ran == [] and ref.state == "scheduled" and message.attempt == 0
    assert message.deferral is not None and message.deferral.why == "idempotency"
    assert (message.due_ms or 0) - app.store.now_ms() <= 1_000


def test_who_waits_takes_over_once_the_others_time_is_over(app: App) -> None:
    ran = []

    @app.task(name="charge", idempotency=ONCE)
    async def charge(order: int) -> None:
        ran.append(order)

    charge.enqueue(7)
    payload = payload_of(charge.codec.canonical((7,), {}))
    claim_elsewhere(app, "charge", "order-7", payload, for_ms=50)
    app.run_worker(drain=True)
    assert ran == [7]


def test_the_same_key_with_other_arguments_is_dead_and_permanent(app: App) -> None:
    heard, ran = Heard(app), []

    @app.task(name="mourn")
    def mourn(order: int, cents: int) -> None:
        ran.append(("mourned", cents))

    @app.task(name="charge", idempotency=ONCE, on_dead=mourn)
    async def charge(order: int, cents: int) -> None:
        ran.append((order, cents))

    charge.enqueue(7, 100)
    app.run_worker(burst=True)
    ref = charge.enqueue(7, 999)
    app.run_worker(burst=True)
    message = stored(app, ref.id)
    assert ran == [(7, 100), ("mourned", 999)]
    assert (message.lane, message.reason) == (Lane.DEAD, "permanent")
    assert message.faults[-1].kind == "permanent" and "order-7" in message.faults[-1].text
    assert [fate.fault for fate in heard.fates if fate.outcome == "dead"] == ["permanent"]


def test_a_failed_run_frees_the_key_and_runs_again_at_once(app: App) -> None:
    attempts = []

    @app.task(name="charge", ctx=True, retry=SOON, idempotency=ONCE)
    async def charge(ctx: Context, order: int) -> None:
        attempts.append(ctx.message_id)
        assert ctx.idempotency_key == "order-7" == context().idempotency_key
        if len(attempts) == 1:
            raise ConnectionError("no answer")

    charge.enqueue(7)
    app.run_worker(["default"], burst=True)
    if len(attempts) == 1:
        assert kept(app, "charge", "order-7") is None, "free, for anybody"
    app.run_worker(drain=True)
    assert len(attempts) == 2


@pytest.mark.parametrize("late", ["completes", "fails"])
def test_a_zombie_is_refused_and_the_new_owners_claim_survives(app: App, late: str) -> None:
    """Its lease runs out while it runs; its message is claimed anew, by a worker that still runs when it ends."""
    heard, ran = Heard(app), []
    go, gone_on = asyncio.Event(), asyncio.Event()

    @app.task(name="charge", ctx=True, idempotency=ONCE)
    async def charge(ctx: Context, order: int) -> str:
        ran.append(ctx.fence)
        if len(ran) == 1:
            await asyncio.shield(until(lambda: len(ran) == 2))
            go.set()
            if late == "fails":
                raise ValueError("late")
            return "late"
        await gone_on.wait()
        return "in time"

    async def main() -> None:
        charge.using(keep_result="1h")
        await charge.using(keep_result="1h").aenqueue(7)
        async with app.worker(concurrency=1, prefetch=0, lease=30, name="zombie") as zombie:
            await until(lambda: ran)
            zombie._leases.beat = lambda now_s: None  # type: ignore[method-assign] # it hangs
            (run,) = zombie._in_flight.all()
            message = run.delivery.message
            # The lease runs out: as if released by whoever took the dead worker's identity.
            app.store.reclaim(zombie.name, None)
            async with app.worker(lease=30, name="second"):
                await until(lambda: len(ran) == 2)
                claimed = kept(app, "charge", "order-7")
                assert claimed is not None and claimed.fence == message.fence + 1
                await until(lambda: any(fate.outcome == "stale" for fate in heard.fates))
                assert kept(app, "charge", "order-7") == claimed, "the new owner's claim survives"
                gone_on.set()
                await until(lambda: any(fate.outcome == "done" for fate in heard.fates))

    asyncio.run(main())
    record = kept(app, "charge", "order-7")
    assert record is not None and record.result == b'"in time"'


def test_a_message_takes_over_from_its_own_earlier_run_at_once(app: App) -> None:
    """A worker dies: its message comes back with the next fence, and does not wait for the claim's end."""
    ran = []

    @app.task(name="charge", ctx=True, idempotency=ONCE)
    async def charge(ctx: Context, order: int) -> None:
        ran.append(ctx.crashes)

    ref = charge.enqueue(7)
    (delivery,) = app.store.exchange([], [ClaimRequest("default", 1, 60_000, worker="dead")]).deliveries
    payload = payload_of(charge.codec.canonical((7,), {}))
    claim_elsewhere(app, "charge", "order-7", payload, owner=ref.id)
    app.store.reclaim("dead", None)
    app.run_worker(burst=True)
    assert ran == [1] and delivery.message.fence == 1
