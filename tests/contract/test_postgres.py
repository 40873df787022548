"""PostgreSQL against the contract, and what is its own: many processes at once on one schema."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from redrive.message import Ack, Ask, Draft, Settled, Settlement, Swap
from redrive.store import Store
from redrive.stores.postgres import PostgresStore
from redrive.testing import ManualClock, StoreContract
from redrive.testing.servers import PostgresServer


def schema_of(place: Path) -> str:
    """The schema that stands for this folder."""
    return f"t_{hashlib.blake2b(str(place).encode(), digest_size=8).hexdigest()}"


@pytest.fixture
def schema(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[str]:
    """The URL of a schema of the test's own, dropped at its end."""
    name = schema_of(tmp_path)
    yield f"{postgres_server.url}?schema={name}&synchronous_commit=off"
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        c.execute(f"drop schema if exists {name} cascade".encode())


class TestPostgres(StoreContract):
    @pytest.fixture(autouse=True)
    def _schema(self, schema: str) -> None:
        self.url = schema

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return PostgresStore(self.url, clock_ms=clock)


def test_rows_of_groups_in_which_nobody_is_are_swept_away(schema: str) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    store.put([Draft(task="t", group=group) for group in ("gone", "gone", "held", "waits")])
    store.configure_group("default", "wide", width=3)
    ask = Ask("default", 9, 600_000)
    while acks := [d for d in store.exchange([], [ask]).deliveries if d.message.group == "gone"]:
        store.exchange([Settlement(delivery.receipt, Ack()) for delivery in acks], [])
    for _ in range(2):
        clock.advance("61s")
        store.exchange([], [ask])
    left = store._link.look(f"select name from {store._link.schema}.line order by name")
    assert left == [("held",), ("waits",), ("wide",)]
    store.close()


def test_expired_and_deleted_cells_leave_no_row(schema: str) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    count = f"select count(*) from {store._link.schema}.cell"
    for first in range(0, 2500, 500):
        keys = [f"k{n}" for n in range(first, first + 500)]
        assert all(store.cells.swap([Swap(key, 0, b"x", ttl_ms=30_000) for key in keys], durable=False))
    assert store.cells.swap([Swap("stays", 0, b"x"), Swap("long", 0, b"x", ttl_ms=3_600_000)]) == [True, True]
    assert store.cells.swap([Swap("goes", 0, b"x"), Swap("goes", 0, None)]) == [True, False]
    (cell,) = store.cells.read(["goes"])
    assert cell is not None and store.cells.swap([Swap("goes", cell.version, None)]) == [True]
    assert store._link.look(count) == [(2502,)]
    clock.advance("2m")
    for left in (1502, 502, 2, 2):
        store.exchange([], [])
        assert store._link.look(count) == [(left,)]
    clock.advance("2h")
    store.exchange([], [])
    assert store._link.look(count) == [(1,)]
    store.close()


def test_a_cell_that_appears_while_a_settlement_makes_it_makes_that_one_stale(schema: str) -> None:
    """It was not there to be locked."""
    store, other = PostgresStore(schema), PostgresStore(schema)
    store.put([Draft(task="t"), Draft(task="t")])
    first, second = store.exchange([], [Ask("default", 2, 60_000)]).deliveries
    sent: list[str] = []
    do = store._st.do

    def watched(c: psycopg.Connection, name: str, *args: object) -> object:
        if name == "make_cells" and name not in sent:
            assert other.cells.swap([Swap("a", 0, b"theirs")]) == [True]
        sent.append(name)
        return do(c, name, *args)

    store._st.do = watched  # type: ignore[assignment, method-assign]
    swaps = [(Swap("a", 0, b"ours"), Swap("c", 0, b"ours")), (Swap("b", 0, b"ours"),)]
    settlements = [Settlement(d.receipt, Ack(), swaps=one) for d, one in zip((first, second), swaps, strict=True)]
    assert store.exchange(settlements, []).settled == [Settled.STALE, Settled.OK]
    assert sent.count("lock_cells") == 2
    assert [cell and cell.value for cell in other.cells.read(["a", "b", "c"])] == [b"theirs", b"ours", None]
    assert store.counts().leased == 1
    for one in (store, other):
        one.close()
