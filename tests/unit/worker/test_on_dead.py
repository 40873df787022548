"""`on_dead=`: with a message's death, and only then, its compensation is enqueued."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.support.picky import Picky
from tests.support.workers import SOON, Heard, stored

import redrive
from redrive import App, Context, Draft, Quarantine, Reject, RetryAfter, Snooze
from redrive.errors import ConfigError
from redrive.message import ClaimRequest, Lane, Message
from redrive.stores.memory.store import MemoryStore


def waiting(app: App, queue: str = "undo") -> list[Message]:
    return [m for m in app.store.peek(Lane.READY).messages if m.queue == queue]


@pytest.mark.parametrize(
    ("error", "reason", "lane"),
    [
        (ConnectionError("down"), "exhausted", Lane.DEAD),
        (Reject("bad order"), "rejected", Lane.DEAD),
        (Quarantine("poison"), "rejected", Lane.QUARANTINE),
    ],
)
def test_the_compensation_gets_the_dead_ones_arguments_and_is_told_why(
    app: App, error: Exception, reason: str, lane: Lane
) -> None:
    @app.task(queue="undo", name="refund")
    def refund(amount: int, *, to: str) -> None: ...

    @app.task(queue="pay", retry=SOON, on_dead=refund)
    async def pay(amount: int, *, to: str) -> None:
        raise error

    ref = pay.using(correlation_id="order-1", headers={"tenant": "t"}, group="g", priority=0).enqueue(5, to="x")
    app.run_worker(["pay"], drain=True)
    dead, [undo] = stored(app, ref.id), waiting(app)
    assert (dead.lane, dead.reason) == (lane, reason)
    assert (undo.task, undo.body, undo.version, undo.content) == ("refund", dead.body, dead.version, dead.content)
    assert (undo.causation_id, undo.correlation_id, undo.group, undo.key) == (ref.id, "order-1", None, None)
    headers = dict(undo.headers)
    assert str(error) in headers.pop("redrive-dead-error")
    assert headers == {"tenant": "t", "redrive-dead-id": ref.id, "redrive-dead-reason": reason}


def test_a_compensation_runs_with_the_same_arguments(app: App) -> None:
    undone: list[tuple[int, str]] = []

    @app.task(on_dead="refund")  # named before it is registered
    def pay(amount: int, to: str = "nobody") -> None:
        raise Reject("no")

    @app.task(ctx=True, name="refund")
    def refund(ctx: Context, amount: int, to: str = "nobody") -> None:
        undone.append((amount, ctx.message.headers["redrive-dead-reason"]))

    pay.enqueue(5)
    app.run_worker(drain=True)
    assert undone == [(5, "rejected")]


def test_what_comes_back_is_not_compensated(app: App) -> None:
    ways = [Snooze("10ms"), RetryAfter("10ms"), ConnectionError("once"), None]

    @app.task(queue="undo")
    def undo() -> None: ...

    @app.task(queue="pay", retry=SOON, on_dead=undo)
    async def pay() -> None:
        error = ways.pop(0)
        if error is not None:
            raise error

    pay.enqueue()
    app.run_worker(["pay"], drain=True)
    assert ways == [] and waiting(app) == []


def test_what_dies_unrun_is_compensated_with_its_bytes_as_they_are(app: App) -> None:
    @app.task(queue="undo", name="undo")
    def undo(n: int) -> None: ...

    @app.task(queue="pay", name="pay", on_dead=undo)
    def pay(n: int) -> None: ...

    pay.using(deadline=datetime(2020, 1, 1, tzinfo=UTC)).enqueue(1)
    app.store.put([Draft(task="pay", queue="pay", body=b"\xff\0 not JSON", content="raw", version=1)])
    app.store.put([Draft(task="pay", queue="pay", body=b'{"n":2}')])
    app.run_worker(["pay"], burst=True)
    found = {m.headers["redrive-dead-reason"]: (m.body, m.content) for m in waiting(app)}
    assert found["deadline"] == (b'{"n":1}', "json") and found["unreadable"] == (b"\xff\0 not JSON", "raw")


def test_too_many_crashes_are_compensated() -> None:
    app = App(store=MemoryStore())

    @app.task(queue="undo", name="undo")
    def undo() -> None: ...

    @app.task(queue="pay", on_dead=undo)
    def pay() -> None: ...

    ref = pay.enqueue()
    for _ in range(10):
        app.store.exchange([], [ClaimRequest("pay", 1, 0)])
    app.run_worker(["pay"], burst=True)
    assert stored(app, ref.id).lane is Lane.QUARANTINE
    assert [m.headers["redrive-dead-reason"] for m in waiting(app)] == ["crashed"]


def test_a_cancelled_message_is_not_compensated(app: App) -> None:
    @app.task(queue="undo", name="undo")
    def undo() -> None: ...

    @app.task(queue="pay", on_dead=undo)
    def pay() -> None: ...

    ref = pay.enqueue()
    app.store.exchange([], [ClaimRequest("pay", 1, 0)])  # a worker that dies while it runs
    assert app.cancel(ref.id) == "requested"
    app.run_worker(["pay"], burst=True)
    assert stored(app, ref.id).reason == "cancelled" and waiting(app) == []


def test_a_message_that_is_cancelled_while_it_fails_is_not_compensated(app: App) -> None:
    @app.task(queue="undo", name="undo")
    def undo() -> None: ...

    @app.task(queue="pay", on_dead=undo, ctx=True)
    def pay(ctx: Context) -> None:
        assert app.cancel(ctx.message_id) == "requested"
        raise Reject("no")

    ref = pay.enqueue()
    app.run_worker(["pay"], burst=True)
    assert stored(app, ref.id).reason == "cancelled" and waiting(app) == []


def test_a_compensation_that_the_store_refuses_does_not_hold_up_the_death(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(store=Picky())
    heard = Heard(app)

    @app.task(queue="undo", name="undo")
    def undo() -> None: ...

    @app.task(queue="pay", on_dead=undo)
    def pay() -> None:
        raise Reject("no")

    ref = pay.enqueue()
    monkeypatch.setattr("redrive.worker.settlement.Draft", lambda **fields: Draft(**fields, key="bad"))
    app.run_worker(["pay"], burst=True)
    assert stored(app, ref.id).reason == "rejected" and heard.outcomes == ["dead"] and waiting(app) == []


# -- declaring


def test_the_parameters_must_have_the_same_names() -> None:
    app = App("memory://")

    @app.task(name="refund")
    def refund(sum: int) -> None: ...

    with pytest.raises(ConfigError, match=r"on_dead of pay\(amount: .int.\).* is refund\(sum: .int.\)"):

        @app.task(name="pay", on_dead=refund)
        def pay(amount: int) -> None: ...

    @app.task(name="pay", on_dead="refund")
    def pay_later(amount: int) -> None: ...

    with pytest.raises(ConfigError, match="must have the same names"):
        app.worker()


def test_an_on_dead_task_must_be_registered_here_when_a_worker_is_made() -> None:
    app = App("memory://")

    @app.task(name="pay", on_dead="refnd")
    def pay() -> None: ...

    @app.task(name="refund")
    def refund() -> None: ...

    with pytest.raises(ConfigError, match="no task 'refnd' is registered for on_dead=; did you mean 'refund'"):
        app.worker()
    with pytest.raises(ConfigError, match="another app"):
        App("memory://").task(on_dead=refund)(lambda: None)


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c")])
def test_a_circle_of_compensations_is_refused(names: tuple[str, ...]) -> None:
    app = App("memory://")
    for name, following in zip(names, (*names[1:], names[0]), strict=True):
        app.task(name=name, on_dead=following)(lambda: None)
    with pytest.raises(ConfigError, match="circle"):
        app.worker()


def test_a_compensation_can_be_compensated(app: App) -> None:
    ran: list[str] = []

    def fails() -> None:
        ran.append(redrive.context().message.task)
        raise Reject("no")

    for name, following in (("c", None), ("b", "c"), ("a", "b")):
        app.task(name=name, on_dead=following)(fails)
    app.tasks["a"].enqueue()
    app.run_worker(drain=True)
    assert ran == ["a", "b", "c"] and app.counts().dead == 3
