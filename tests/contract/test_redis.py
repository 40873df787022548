"""The Redis store against the contract that any store must keep, on a real private server."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from redrive.store import Store
from redrive.stores.redis import RedisStore
from redrive.testing import ManualClock, StoreContract
from redrive.testing.servers import RedisServer


def at(place: Path, server: RedisServer) -> str:
    """A namespace of its own for a test's directory."""
    return f"{server.url}?namespace={zlib.crc32(str(place).encode()):08x}"


class TestRedis(StoreContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_server: RedisServer) -> None:
        self.redis_server = redis_server

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return RedisStore(at(place, self.redis_server), clock_ms=clock)
