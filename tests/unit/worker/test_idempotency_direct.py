"""Direct calls of tasks with idempotency: claim, run, complete; and completions in the handler's own transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.support.direct_calls import ONCE, both, ordered, test_a_direct_call_runs_once_for_its_key  # noqa: F401
from tests.support.idempotent_tasks import kept
from tests.support.workers import SOON, Heard, stored, until

from redrive import App, Context, Idempotency
from redrive.errors import ConfigError, InProgress, LeaseLost, StoreUnavailable, Unreadable
from redrive.fault import classify
from redrive.flow.idempotency import cell_of
from redrive.message import Lane, Swap
from redrive.stores.sqlite.store import SqliteStore


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_messages_and_direct_calls_share_their_keys(app: App, kind: str) -> None:
    ran: list[Any] = []
    charge = both(app, ran, [])[kind]
    assert charge(7) == {"paid": 100}
    ref = app.tasks[kind].using(keep_result="1h").enqueue(7)
    app.run_worker(burst=True)
    assert ref.wait("1s") == {"paid": 100} and len(ran) == 1
    app.tasks[kind].enqueue(8)
    app.run_worker(burst=True)
    assert charge(8) == {"paid": 100} and len(ran) == 2


def test_a_live_conflict_says_who_and_for_how_long_and_what_to_do(app: App) -> None:
    caught = []

    @app.task(name="charge", idempotency=ONCE, timeout="90s")
    def charge(order: int) -> str:
        with pytest.raises(InProgress, match="enqueue the call") as conflict:
            charge(order)
        caught.append(conflict.value)
        return "paid"

    assert charge(7) == "paid"
    (error,) = caught
    assert 0 < error.retry_after <= 90 and error.key == "order-7" and error.owner.startswith("call ")
    fault = classify(error)
    assert fault.kind == "transient" and fault.retry_after_s == pytest.approx(error.retry_after, abs=1)


def test_a_call_that_ran_too_long_is_told_so_and_the_new_owner_keeps_the_key(app: App) -> None:
    @app.task(name="charge", idempotency=ONCE)
    def charge(order: int) -> str:
        cell = app.store.cells.read([cell_of("charge", "order-7")])[0]
        assert cell is not None
        app.store.cells.swap([Swap(cell_of("charge", "order-7"), cell.version, b"another's")])
        return "paid"

    with pytest.raises(LeaseLost, match="went to another call"):
        charge(7)
    (cell,) = app.store.cells.read([cell_of("charge", "order-7")])
    assert cell is not None and cell.value == b"another's"


def test_a_cancelled_call_frees_its_key(app: App) -> None:
    @app.task(name="charge", idempotency=ONCE)
    async def charge(order: int) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        call = asyncio.ensure_future(charge(7))
        await until(lambda: kept(app, "charge", "order-7"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert kept(app, "charge", "order-7") is None

    asyncio.run(main())


def test_a_result_that_is_no_json_is_returned_once_and_then_told_of(app: App) -> None:
    @app.task(name="charge", idempotency=ONCE)
    def charge(order: int) -> Any:
        return object()

    assert type(charge(7)) is object
    with pytest.raises(Unreadable, match="could not be stored"):
        charge(7)


def test_a_partial_result_of_a_direct_call_is_stored(app: App) -> None:
    @app.task(name="charge", ctx=True, idempotency=ONCE)
    def charge(ctx: Context, order: int) -> int | None:
        ctx.partial(5, "no receipt")
        return None

    assert charge(7) is None and charge(7) == 5


def test_what_is_no_rule_is_refused_where_it_is_declared(app: App) -> None:
    with pytest.raises(ConfigError, match="expected an Idempotency"):
        app.task(idempotency="order")  # type: ignore[call-overload]


def test_a_key_is_the_tasks_own_and_gone_after_its_time(app: App) -> None:
    ran = []

    @app.task(name="charge", idempotency=Idempotency(ordered, keep="20ms"))
    def charge(order: int) -> None:
        ran.append("charge")

    @app.task(name="refund", idempotency=ONCE)
    def refund(order: int) -> None:
        ran.append("refund")

    charge(7)
    refund(7)
    end_ms = app.store.now_ms() + 25
    while app.store.now_ms() < end_ms:
        pass
    charge(7)
    assert ran == ["charge", "refund", "charge"]


# -- in the handler's own transaction


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work.db"
    with sqlite3.connect(path) as c:
        c.execute("pragma journal_mode=wal")
        c.execute("create table payment(order_id integer, cents integer)")
    return path


def payments(file: Path) -> int:
    c = sqlite3.connect(file)
    (count,) = c.execute("select count(*) from payment").fetchone()
    c.close()
    return int(count)


class Bank:
    """A task that pays and completes in one transaction, and then does what the test says."""

    def __init__(self, file: Path) -> None:
        self.app = App(store=SqliteStore(file))
        self.heard = Heard(self.app)
        self.ran: list[int] = []
        self.after: Any = None
        self.commit = True

        @self.app.task(name="mail", queue="later")
        def mail(order: int) -> None: ...

        @self.app.task(name="charge", ctx=True, idempotency=ONCE, retry=SOON, keep_result="1h")
        def charge(ctx: Context, order: int) -> str:
            self.ran.append(ctx.fence)
            ctx.enqueue(mail, order)
            c = sqlite3.connect(file)
            try:
                c.execute("insert into payment values(?, 100)", (order,))
                ctx.complete("paid", tx=c)
                if self.commit:
                    c.commit()
            finally:
                c.close()
            if self.after is not None:
                raise self.after
            return "paid"

        self.charge = charge


def test_effect_follow_ups_and_completion_are_one_transaction(file: Path) -> None:
    bank = Bank(file)
    ref = bank.charge.enqueue(7)
    bank.app.run_worker(["default"], burst=True)
    record = kept(bank.app, "charge", "order-7")
    assert payments(file) == 1 and record is not None and record.done and record.result == b'"paid"'
    assert ref.wait("1s") == "paid" and bank.app.counts("later").ready == 1
    second = bank.charge.enqueue(7)
    bank.app.run_worker(["default"], burst=True)
    assert second.wait("1s") == "paid" and len(bank.ran) == 1 and bank.app.counts("later").ready == 1
    bank.app.store.close()


def test_what_fails_after_its_commit_is_done_all_the_same(file: Path) -> None:
    bank = Bank(file)
    bank.after = ConnectionError("after the commit")
    ref = bank.charge.enqueue(7)
    bank.app.run_worker(["default"], burst=True)
    assert payments(file) == 1 and ref.wait("1s") == "paid" and len(bank.ran) == 1
    assert bank.heard.outcomes == ["done"] and bank.app.counts("later").ready == 1
    bank.app.store.close()


def test_a_completion_that_was_not_committed_is_a_failure_and_frees_the_key(file: Path) -> None:
    bank = Bank(file)
    bank.commit = False
    ref = bank.charge.enqueue(7)
    bank.app.run_worker(["default"], drain=True)
    message = stored(bank.app, ref.id)
    assert payments(file) == 0 and len(bank.ran) == 3 and message.lane is Lane.DEAD
    assert "not committed" in message.faults[-1].text and kept(bank.app, "charge", "order-7") is None
    assert bank.app.counts("later").ready == 0
    bank.app.store.close()


def test_a_direct_call_completes_in_a_transaction_too(file: Path) -> None:
    bank = Bank(file)
    assert bank.charge(7) == bank.charge(7) == "paid" and payments(file) == 1 and len(bank.ran) == 1
    bank.after = ValueError("after the commit")
    with pytest.raises(ValueError, match="after the commit"):
        bank.charge(8)
    assert bank.charge(8) == "paid" and payments(file) == 2
    bank.commit, bank.after = False, None
    with pytest.raises(RuntimeError, match="not committed"):
        bank.charge(9)
    assert payments(file) == 2 and kept(bank.app, "charge", "order-9") is None
    bank.app.store.close()


def test_a_zombie_cannot_complete_in_a_transaction(file: Path) -> None:
    """Another one has the key by now: its transaction is to be rolled back."""
    app = App(store=SqliteStore(file))
    lost = []

    @app.task(name="charge", ctx=True, idempotency=ONCE)
    def charge(ctx: Context, order: int) -> None:
        cell = app.store.cells.read([cell_of("charge", "order-7")])[0]
        assert cell is not None
        app.store.cells.swap([Swap(cell_of("charge", "order-7"), cell.version, cell.value, 60_000)])
        with sqlite3.connect(file) as c:
            c.execute("insert into payment values(7, 100)")
            try:
                ctx.complete(None, tx=c)
            except LeaseLost as error:
                lost.append(error)
                raise
            finally:
                c.rollback()

    with pytest.raises(LeaseLost):
        charge(7)
    assert payments(file) == 0 and len(lost) == 1
    app.store.close()


def test_completing_needs_a_key_and_ends_the_follow_ups(file: Path) -> None:
    app = App(store=SqliteStore(file))

    @app.task(name="plain", ctx=True)
    def plain(ctx: Context) -> None:
        ctx.complete(None, tx=None)

    @app.task(name="charge", ctx=True, idempotency=ONCE)
    def charge(ctx: Context, order: int) -> None:
        with sqlite3.connect(file) as c:
            ctx.complete(None, tx=c)
        with pytest.raises(RuntimeError, match="comes too late"):
            ctx.enqueue(plain)

    with pytest.raises(ConfigError, match="idempotency="):
        plain()
    charge(7)
    app.store.close()


def test_a_store_that_fails_after_the_effect_leaves_the_claim(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(name="charge", idempotency=ONCE)
    def charge(order: int) -> str:
        def down(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("out")

        monkeypatch.setattr(app.store.cells, "swap", down)
        return "paid"

    with pytest.raises(StoreUnavailable):
        charge(7)
    record = kept(app, "charge", "order-7")
    assert record is not None and not record.done
