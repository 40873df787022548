"""The Redis store against the contract that any store must keep, on a real private server."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import pytest

from redrive.message import Ask, Draft
from redrive.store import Store
from redrive.stores.redis import RedisStore
from redrive.testing import ManualClock, StoreContract
from redrive.testing.servers import RedisServer


def redis_url(place: Path, server: RedisServer) -> str:
    """A namespace of its own for a test's directory."""
    return f"{server.url}?namespace={zlib.crc32(str(place).encode()):08x}"


class TestRedis(StoreContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_server: RedisServer) -> None:
        self.redis_server = redis_server

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return RedisStore(redis_url(place, self.redis_server), clock_ms=clock)


def test_on_the_servers_clock_nothing_is_early(redis_server: RedisServer, tmp_path: Path) -> None:
    store = RedisStore(redis_url(tmp_path, redis_server))
    ask = Ask("default", 1, 1000)
    before_s = time.time()
    store.put([Draft(task="push", delay_ms=30)])
    while not store.exchange([], [ask]).deliveries:
        store.wait([ask], timeout_ms=60_000)
    assert time.time() - before_s >= 0.03
    store.close()
