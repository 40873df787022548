"""The stores of this project against the contract that any store must keep."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.message import Ack, ClaimRequest, Counts, Draft, Settlement
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock, StoreContract


class TestMemory(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return MemoryStore(clock)


class TestSqlite(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return SqliteStore(place / "work.db", clock_ms=clock)


@pytest.mark.parametrize(
    "open_store", [lambda place: MemoryStore(), lambda place: SqliteStore(place / "work.db")], ids=["memory", "sqlite"]
)
def test_on_the_wall_clock_nothing_is_early(open_store: Callable[[Path], Store], tmp_path: Path) -> None:
    store = open_store(tmp_path)
    ask = ClaimRequest("default", 1, 1000)
    before_s = time.time()
    store.put([Draft(task="push", delay_ms=30)])
    while not store.exchange([], [ask]).deliveries:
        store.wait([ask], timeout_ms=60_000)
    assert time.time() - before_s >= 0.03
    store.close()


def test_the_memory_store_forgets_groups_in_which_nobody_stands() -> None:
    store = MemoryStore()
    for number in range(10):
        store.put([Draft(task="t", group=f"g{number}"), Draft(task="t", group=f"g{number}")])
    while deliveries := store.exchange([], [ClaimRequest("default", 100, 1000)]).deliveries:
        store.exchange([Settlement(delivery.receipt, Ack()) for delivery in deliveries], [])
    assert store.counts() == Counts() and not store._tables.groups
