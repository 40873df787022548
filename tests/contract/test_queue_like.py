"""The contract of stores that promise as little as a cloud queue."""

from __future__ import annotations

from pathlib import Path

from tests.support.queue_stores import BareStore, QueueLikeStore

from redrive.store import Store
from redrive.testing import ManualClock, StoreContract


class TestQueueLike(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return QueueLikeStore(clock)


class TestBare(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return BareStore(clock)
