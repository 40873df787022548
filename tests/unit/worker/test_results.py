"""Results: kept on request, waited for, and never the reason why a done message is not done."""

from __future__ import annotations

import asyncio
import pickle
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.workers import Heard, stored

from redrive import App, Context, Quarantine, Reject, Retry
from redrive.enqueue import Ref
from redrive.errors import ConfigError, NotDone
from redrive.message import ClaimRequest, Lane, Message
from redrive.store import Traits
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock


@dataclass
class Sum:
    total: int
    at: datetime


AT = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_result_is_kept_and_read_by_its_annotation(app: App, kind: str) -> None:
    @app.task(keep_result="1h", name="async")
    async def add(a: int, b: int) -> Sum:
        return Sum(a + b, AT)

    @app.task(keep_result="1h", name="sync")
    def add_sync(a: int, b: int) -> Sum:
        return Sum(a + b, AT)

    ref = app.tasks[kind].enqueue(2, 3)
    app.run_worker(burst=True)
    message = stored(app, ref.id)
    assert (message.lane, message.result) == (Lane.DONE, b'{"total":5,"at":"2026-01-31T00:00:00Z"}')
    assert ref.wait() == Sum(5, AT) == asyncio.run(ref.await_("5s")) and ref.state == "done"
    unknown = Ref(ref.id, "another program's", "q", False, app)
    assert unknown.wait(0) == {"total": 5, "at": "2026-01-31T00:00:00Z"}


def test_one_message_may_ask_for_its_result_and_another_not(app: App) -> None:
    @app.task()
    def one() -> int:
        return 1

    @app.task(keep_result="1h")
    def two() -> int:
        return 2

    refs = [one.using(keep_result="10m").enqueue(), one.enqueue(), two.enqueue(), two.using(keep_result=0).enqueue()]
    app.run_worker(burst=True)
    with pytest.warns(UserWarning, match="what it returned was not kept"):  # of the second
        assert [ref.wait(0) for ref in refs] == [1, None, 2, None]
    assert [app.job(ref.id) is not None for ref in refs] == [True, False, True, False]


def test_a_result_goes_when_its_time_is_over() -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock_ms=clock.now_ms))

    @app.task(keep_result="1h")
    def one() -> int:
        return 1

    ref = one.enqueue()
    app.run_worker(burst=True)
    clock.advance("59m")
    app.store.exchange([], [])
    assert ref.wait(0) == 1
    clock.advance("2m")
    app.store.exchange([], [])
    assert ref.wait(0) is None and app.job(ref.id) is None


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": None}])
def test_any_json_value_is_a_result(app: App, value: Any) -> None:
    @app.task(keep_result="1h")
    async def gives() -> Any:
        return value

    ref = gives.enqueue()
    app.run_worker(burst=True)
    assert stored(app, ref.id).lane is Lane.DONE and ref.wait(0) == value


def test_a_result_that_cannot_be_written_is_dropped_and_told_of_and_the_message_is_done() -> None:
    class Narrow(MemoryStore):
        traits = Traits(name="narrow", durable=False, shared=False, body_bytes_max=20)

    app = App(store=Narrow())
    heard = Heard(app)

    @app.task(keep_result="1h", name="t")
    async def gives(what: str) -> Any:
        return {"object": object(), "nan": float("nan"), "large": "x" * 19, "fits": "x" * 18}[what]

    refs = {what: gives.enqueue(what) for what in ("object", "nan", "large", "fits")}
    app.run_worker(burst=True)
    assert [ref.wait(0) for ref in refs.values()] == [None, None, None, "x" * 18]
    assert heard.outcomes == ["done"] * 4 and {stored(app, ref.id).lane for ref in refs.values()} == {Lane.DONE}
    told = {notice.text for notice in heard.events if getattr(notice, "name", "") == "result_dropped"}
    assert len(told) == 3 and all(any(refs[what].id in text for text in told) for what in ("object", "nan", "large"))
    assert any("task 't': its result has 21 bytes; this store takes 20" in text for text in told)


def test_the_result_is_as_it_was_when_the_handler_returned(app: App) -> None:
    shared: list[int] = []

    @app.task(keep_result="1h")
    async def counts(n: int) -> list[int]:
        shared.append(n)
        asyncio.get_running_loop().call_soon(shared.clear)
        return shared

    ref = counts.enqueue(1)
    app.run_worker(burst=True)
    assert ref.wait(0) == [1]


def test_a_partial_result_is_kept_as_the_result(app: App) -> None:
    @app.task(keep_result="1h", ctx=True)
    def search(ctx: Context) -> list[int] | None:
        ctx.partial([1], "no prices")
        return None

    ref = search.enqueue()
    app.run_worker(burst=True)
    assert ref.wait(0) == [1] and stored(app, ref.id).reason == "degraded"


# -- waiting


def test_wait_returns_when_a_worker_elsewhere_is_done(app: App) -> None:
    release = threading.Event()

    @app.task(keep_result="1h")
    def slow() -> str:
        assert release.wait(10)
        return "now"

    ref = slow.enqueue()
    worker = threading.Thread(target=lambda: app.run_worker(burst=True))
    worker.start()
    with pytest.raises(TimeoutError, match=f"message {ref.id} .* within 0.05 s"):
        ref.wait("50ms")
    with pytest.raises(TimeoutError):
        asyncio.run(ref.await_("50ms"))
    release.set()
    assert ref.wait("10s") == "now"
    worker.join()


@pytest.mark.parametrize(
    "error, state, reason",
    [
        (Reject("bad"), "dead", "rejected"),
        (ConnectionError("down"), "dead", "exhausted"),
        (Quarantine("poison"), "quarantine", "rejected"),
    ],
)
def test_waiting_for_what_died_raises_and_says_why(app: App, error: Exception, state: str, reason: str) -> None:
    @app.task(name="t", retry=Retry(max_attempts=1))
    def fails() -> None:
        raise error

    ref = fails.enqueue()
    app.run_worker(burst=True)
    for wait in (ref.wait, lambda: asyncio.run(ref.await_())):
        with pytest.raises(NotDone, match=f"message {ref.id} of task 't' is {state} .{reason}.: .*{error}") as caught:
            wait()
        found = pickle.loads(pickle.dumps(caught.value))
        assert (found.id, found.state, found.reason, str(found)) == (ref.id, state, reason, str(caught.value))


def test_waiting_for_what_was_cancelled_raises(app: App) -> None:
    @app.task()
    def one() -> None: ...

    ref = one.using(delay="1h").enqueue()
    app.cancel(ref.id)
    with pytest.raises(NotDone, match=r"is cancelled$") as caught:
        ref.wait()
    assert (caught.value.state, caught.value.reason) == ("cancelled", None)


def test_in_a_coroutine_the_blocking_wait_names_the_other() -> None:
    app = App("memory://")
    ref = app.task()(lambda: None).enqueue()

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"use `await ref.await_"):
            ref.wait()

    asyncio.run(main())


def test_the_looks_grow_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")
    ref = app.task()(lambda: None).enqueue()
    pauses: list[float] = []
    looks: list[list[Message | None]] = [app.store.find([ref.id])] * 20 + [[None]]
    monkeypatch.setattr(app.store, "find", lambda ids: looks.pop(0))
    monkeypatch.setattr("redrive.enqueue.time.sleep", pauses.append)
    assert ref.wait() is None
    assert pauses[0] == 0.005 and pauses[-1] == 0.25 and sorted(pauses) == pauses and len(pauses) == 20


def test_what_cannot_be_meant_is_refused() -> None:
    app = App("memory://")
    with pytest.raises(ValueError, match="keep_result"):
        app.task(keep_result=-1)
    with pytest.raises(ValueError, match="keep_result"):
        app.task()(lambda: None).using(keep_result="soon")


# -- in the caller's own transaction


def test_using_tx_writes_with_the_callers_data_or_not_at_all(tmp_path: Path) -> None:
    import sqlite3

    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.task(ctx=True)
    def push(ctx: Context, n: int) -> None: ...

    app.store.counts()
    connection = sqlite3.connect(tmp_path / "work.db")
    connection.execute("create table orders (n integer)")
    for ending in (connection.rollback, connection.commit):
        connection.execute("insert into orders values (1)")
        kept = [push.using(tx=connection).enqueue(1), asyncio.run(push.using(tx=connection).aenqueue(2))]
        kept += app.enqueue_many([push.draft(3)], tx=connection)
        kept += asyncio.run(app.aenqueue_many([push.draft(4)], tx=connection))
        assert app.counts().ready == 0
        ending()
        assert app.counts().ready == (4 if ending == connection.commit else 0)
    assert [stored(app, ref.id).body for ref in kept] == [b'{"n":%d}' % n for n in (1, 2, 3, 4)]
    with pytest.raises(ConfigError, match=r"give tx= to app.enqueue_many"):
        push.using(tx=connection).draft(1)
    connection.close()
    app.store.close()


def test_a_follow_up_takes_no_tx() -> None:
    app = App("memory://")

    @app.task(ctx=True)
    def push(ctx: Context) -> None:
        ctx.enqueue(push.using(tx=object()))

    with pytest.raises(ConfigError, match="written with the ack"):
        push()


def test_a_kept_message_is_not_claimed_again(app: App) -> None:
    @app.task(keep_result="1h")
    def one() -> int:
        return 1

    one.enqueue()
    app.run_worker(burst=True)
    assert app.store.exchange([], [ClaimRequest("default", 10, 1000)]).deliveries == [] and app.counts().done == 1


def test_waiting_for_a_result_that_is_not_kept_warns(app: App) -> None:
    @app.task(name="count")
    def count() -> int:
        return 3

    @app.task(name="nothing")
    def nothing() -> None: ...

    refs = count.enqueue(), nothing.enqueue()
    app.run_worker(burst=True)
    with pytest.warns(UserWarning, match=r"'count' is done and what it returned was not kept, .*keep_result='1h'"):
        assert refs[0].wait() is None
    with pytest.warns(UserWarning, match="was not kept"):
        assert asyncio.run(refs[0].await_()) is None
    assert refs[1].wait() is None  # type: ignore[func-returns-value]
