"""Idempotency where handlers run in child processes: a child's death leaves its message one effect."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import isolated_payments, sealed_payments
from tests.support.idempotent_tasks import kept
from tests.support.workers import stored, until

from redrive import App
from redrive.errors import StoreUnavailable
from redrive.fault import Crash, crash_fault
from redrive.flow.idempotency import cell_of
from redrive.message import ClaimRequest
from redrive.worker.executors import ipc


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "work.db")
    with sqlite3.connect(path) as c:
        c.execute("pragma journal_mode=wal")
        c.execute("create table payment(order_id integer)")
    return path


@pytest.fixture
def app(file: str) -> Iterator[App]:
    made = isolated_payments.at(f"sqlite:///{file}")
    yield made
    made.store.close()


def runs(file: str, order: int) -> list[str]:
    path = Path(f"{file}-ran-{order}")
    return path.read_text().split() if path.exists() else []


def test_a_child_that_dies_before_its_commit_runs_again_and_after_it_does_not(app: App, file: str) -> None:
    points = ("complete", "commit", "fails")
    refs = [isolated_payments.pay.enqueue(n, file, point) for n, point in enumerate(points)]
    app.run_worker({"default": 1}, drain=True)
    assert [ref.wait("1s") for ref in refs] == ["paid"] * len(points)
    assert [len(runs(file, n)) for n in range(len(points))] == [2, 1, 1]
    with sqlite3.connect(file) as c:
        assert sorted(c.execute("select order_id from payment")) == [(n,) for n in range(len(points))]


def test_what_a_drain_cuts_off_after_its_commit_is_not_left_leased(app: App, file: str) -> None:
    ref = isolated_payments.pay.enqueue(1, file, "stays")

    async def work() -> None:
        async with app.worker(["default"], grace=0):
            await until(Path(f"{file}-paid").exists)

    asyncio.run(work())
    assert app.store.counts("default").leased == 0
    app.run_worker(drain=True)
    assert ref.wait("1s") == "paid" and len(runs(file, 1)) == 1


def test_a_worker_ends_where_it_cannot_learn_what_was_committed(
    app: App, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated_payments.pay.enqueue(1, file, "stays")

    def failing(*_: object) -> None:
        raise StoreUnavailable("gone")

    async def work() -> None:
        async with app.worker(["default"], grace=0):
            await until(Path(f"{file}-paid").exists)
            monkeypatch.setattr("redrive.worker.idempotency.read_all", failing)

    with pytest.raises(StoreUnavailable):
        asyncio.run(asyncio.wait_for(work(), 20))


def test_a_key_is_known_in_the_child_and_completed_or_freed_by_the_worker(app: App, file: str) -> None:
    refs = [isolated_payments.plain.enqueue(n, file) for n in (7, 13)]
    app.run_worker(drain=True)
    again = isolated_payments.plain.enqueue(7, file)
    app.run_worker(drain=True)
    assert [ref.wait("1s") for ref in (*refs, again)] == ["paid"] * 3
    assert runs(file, 7) == ["order-7"] and runs(file, 13) == ["order-13"] * 2
    record = kept(app, "plain", "order-13")
    assert record is not None and record.done and record.result == b'"paid"'


# -- in an app that encrypts

CARD = "4111 1111 1111 1111"


@pytest.fixture
def sealed(file: str) -> Iterator[App]:
    made = sealed_payments.at(f"sqlite:///{file}")
    yield made
    made.store.close()


def is_sealed(app: App, task: str) -> bool:
    """Whether the key of that task is done, and its cell has the result, but not in the clear."""
    record = kept(app, task, task)
    [cell] = app.store.cells.read([cell_of(task, task)])
    return record is not None and record.done and cell is not None and CARD.encode() not in cell.value


def test_an_isolated_task_with_a_key_runs_in_an_app_that_encrypts(sealed: App) -> None:
    ref = sealed_payments.isolated.enqueue(CARD)
    sealed.run_worker(drain=True)
    assert stored(sealed, ref.id).faults == ()
    key, pid, card = ref.wait("1s")
    assert (key, card) == ("isolated", CARD) and pid != os.getpid() and is_sealed(sealed, "isolated")


def test_a_suspect_with_a_key_runs_in_a_child_of_an_app_that_encrypts(sealed: App) -> None:
    ref = sealed_payments.beside.enqueue(CARD)
    assert sealed.store.exchange([], [ClaimRequest("default", 1, 600_000, worker="dead")]).deliveries
    crash = Crash(cause="signal", signal="SIGKILL", started_count=2)
    sealed.store.reclaim("dead", None, fault=crash_fault(crash, sealed.store.now_ms()))
    sealed.run_worker(drain=True)
    message = stored(sealed, ref.id)
    assert (message.crashes, len(message.faults)) == (1, 1)
    key, pid, card = ref.wait("1s")
    assert (key, card) == ("beside", CARD) and pid != os.getpid() and is_sealed(sealed, "beside")


def test_a_child_encrypts_the_result_with_which_its_handler_completes_the_key(sealed: App, file: str) -> None:
    ref = sealed_payments.completes.enqueue(CARD, file)
    sealed.run_worker(drain=True)
    assert stored(sealed, ref.id).faults == ()
    assert ref.wait("1s") == CARD and is_sealed(sealed, "completes")


def test_work_that_cannot_be_sent_to_a_child_fails_its_run(sealed: App, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = ipc._encode

    def failing(frame: object) -> bytes:
        if isinstance(frame, ipc.ChildWork) and frame.message.attempt == 1:
            raise TypeError("Encoding objects of type Box is unsupported")
        return encode(frame)

    monkeypatch.setattr(ipc, "_encode", failing)
    ref = sealed_payments.isolated.enqueue(CARD)
    sealed.run_worker(drain=True)
    message = stored(sealed, ref.id)
    assert message.crashes == 0 and ref.wait("1s")[2] == CARD
    assert [(fault.error, fault.text) for fault in message.faults] == [
        ("TypeError", "Encoding objects of type Box is unsupported")
    ]
