"""The stores of this project against the contract that any store must keep."""

from __future__ import annotations

from pathlib import Path

from redrive.store import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock, StoreContract


class TestMemory(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return MemoryStore(clock)


class TestSqlite(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return SqliteStore(place / "work.db", clock_ms=clock)
