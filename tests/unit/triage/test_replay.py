"""Replay: what is done and kept runs again by a plan and its run, and what must not happen twice does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redrive import App, Idempotency
from redrive.message import Lane
from redrive.stores.memory.store import MemoryStore

RAN: list[int] = []


@pytest.fixture
def app() -> Iterator[App]:
    """Of a task that runs each time, and of one that takes each order once; both are kept when they are done."""
    RAN.clear()
    app = App(store=MemoryStore())

    @app.task(name="push", keep_result="1d")
    def push(order: int) -> str:
        RAN.append(order)
        return f"{order}, {RAN.count(order)}"

    @app.task(name="charge", keep_result="1d", idempotency=Idempotency(key=lambda order: f"order-{order}", keep="1d"))
    def charge(order: int) -> str:
        RAN.append(order)
        return f"{order}, {RAN.count(order)}"

    yield app
    app.store.close()


def test_kept_done_messages_run_again_by_a_plan(app: App) -> None:
    refs = [app.tasks["push"].enqueue(order) for order in (1, 2)]
    app.tasks["charge"].enqueue(3)
    app.run_worker(burst=True)
    plan = app.dlq.select("lane:done task:push age:<6h").plan(rate="100/s", canary=1)
    assert (plan.total, plan.by_task) == (2, {"push": 2})
    run = plan.start(reason="their webhook lost them")
    app.run_worker(drain=True)
    assert run.wait(30) == "done" and run.counts["done"] == 2
    assert RAN == [1, 2, 3, 1, 2] and [ref.wait("1s") for ref in refs] == ["1, 2", "2, 2"]
    for ref in refs:
        message = app.job(ref.id)
        assert message is not None and (message.lane, message.redrives, message.attempt) == (Lane.DONE, 1, 1)


def test_replay_respects_idempotency_what_is_done_is_answered_with_the_stored_result(app: App) -> None:
    ref = app.tasks["charge"].enqueue(3)
    app.run_worker(burst=True)
    run = app.dlq.select("lane:done").plan().start(reason="to be sure")
    app.run_worker(drain=True)
    assert run.wait(30) == "done" and run.counts["done"] == 1
    assert RAN == [3] and ref.wait("1s") == "3, 1"
    message = app.job(ref.id)
    assert message is not None and (message.lane, message.redrives) == (Lane.DONE, 1)


def test_undo_returns_what_was_not_replayed_to_where_it_was_done(app: App) -> None:
    refs = [app.tasks["push"].enqueue(order) for order in (1, 2)]
    app.run_worker(burst=True)
    before = app.store.find([ref.id for ref in refs])
    run = app.dlq.select("lane:done").plan(delay="1h").start(reason="by mistake")
    with pytest.raises(TimeoutError):
        run.wait(0.3)
    assert app.counts().scheduled == 2 and app.counts().done == 0
    assert run.undo(reason="by mistake") == 2
    assert RAN == [1, 2] and app.counts().done == 2
    for was, now in zip(before, app.store.find([ref.id for ref in refs]), strict=True):
        assert was is not None and now is not None
        assert (now.lane, now.redrives, now.attempt, now.rested_ms) == (Lane.DONE, 0, was.attempt, was.rested_ms)


def test_cancelled_messages_are_in_no_replay(app: App) -> None:
    ref = app.tasks["push"].enqueue(1)
    app.cancel(ref.id)
    assert app.dlq.select("lane:done").plan().total == 0
