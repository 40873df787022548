"""A process that stands still in the midst of a call: a VM that is paused, SIGSTOP, a machine without memory. Here a
thread stands still at a named point of the call; for the server that is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from tests.support.schemas import schema  # noqa: F401

from redrive.message import Ack, ClaimRequest, Delivery, Draft, LeaseStatus, Settled, Settlement, Swap
from redrive.stores.postgres import session
from redrive.stores.postgres.store import PostgresStore

PATIENCE_S = 60.0


@pytest.fixture
def frozen(schema: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(f"{schema}&timeout=120")) as store:
        yield store


@pytest.fixture
def other(schema: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(f"{schema}&timeout=4")) as store:
        yield store


@contextmanager
def standing_still(store: PostgresStore, point: str, call: Callable[[], object]) -> Iterator[list[object]]:
    """`call` is under way, and stands still at the point until the block ends; then its value, or error, is in the
    list."""
    there, goes_on = threading.Event(), threading.Event()
    found: list[object] = []

    def failpoint(at: str) -> None:
        if at == point and not there.is_set():
            there.set()
            goes_on.wait(PATIENCE_S)

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    store.failpoint = failpoint
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert there.wait(PATIENCE_S)
        yield found
    finally:
        goes_on.set()
        thread.join(PATIENCE_S)


def claimed(store: PostgresStore, **more: object) -> Delivery:
    store.put([Draft(task="t", **more)])  # type: ignore[arg-type]
    (delivery,) = store.exchange([], [ClaimRequest("default", 1, 30_000, worker="w")]).deliveries
    return delivery


def test_a_swap_of_cells_that_stands_still_holds_none(frozen: PostgresStore, other: PostgresStore) -> None:
    other.cells.swap([Swap("flow", 0, b"1")])
    (cell,) = other.cells.read(["flow"])
    assert cell is not None
    swap = Swap("flow", cell.version, b"2")
    with standing_still(frozen, "commit", lambda: frozen.cells.swap([swap], durable=False)) as found:
        assert other.cells.swap([swap], durable=False) == [True]
    assert found == [[False]]


def test_an_exchange_that_stands_still_holds_no_group(frozen: PostgresStore, other: PostgresStore) -> None:
    delivery = claimed(frozen, group="g")
    done = [Settlement(delivery.receipt, Ack())]
    with standing_still(frozen, "commit", lambda: frozen.exchange(done, [])) as found:
        assert len(other.put([Draft(task="t", group="g")])) == 1
    assert [exchange.settled for exchange in found] == [[Settled.OK]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("retry_for_s", [session.RETRY_FOR_S, 0.0])
def test_an_exchange_that_stands_still_where_it_waited_for_an_answer_is_ended_and_done_again(
    frozen: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch, retry_for_s: float
) -> None:
    """Follow-ups are decided one by one, with what they may change locked. The server ends that soon. However long that
    lasted, the exchange is done once more, within the time of a call."""
    monkeypatch.setattr(session, "RETRY_FOR_S", retry_for_s)
    delivery = claimed(frozen)
    done = [Settlement(delivery.receipt, Ack(), follow_ups=(Draft(task="next"),))]
    with standing_still(frozen, "commit", lambda: frozen.exchange(done, [])) as found:
        assert other.extend([delivery.receipt], lease_ms=30_000) == [LeaseStatus.HELD]
    (settled,) = found
    assert settled.settled == [Settled.OK]  # type: ignore[attr-defined]
    assert (other.counts().ready, other.find([delivery.message.id])) == (1, [None])
