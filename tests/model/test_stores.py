"""The stores of this project against the plain model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.test_contract import ModestStore

from redrive.store import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock, StoreModel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # Hypothesis takes its time to shrink a failure


class TestMemory(StoreModel):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return MemoryStore(clock)


class TestSqlite(StoreModel):
    examples = 15
    walks = 30

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return SqliteStore(place / "work.db", synchronous="normal", clock_ms=clock)


class TestModest(StoreModel):
    examples = 10
    walks = 30

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return ModestStore(clock)
