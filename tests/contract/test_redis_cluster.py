"""The Redis store on a Redis Cluster: the whole contract, and what happens when slots and masters move."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.store import Store
from redrive.stores.redis import RedisStore
from redrive.testing import ManualClock, RedisCluster, StoreContract


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(appendonly=True) as cluster:
        yield cluster


class TestRedisCluster(StoreContract):
    @pytest.fixture(autouse=True)
    def server(self, cluster: RedisCluster) -> None:
        self.url = cluster.url

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return RedisStore(f"{self.url}?namespace={zlib.crc32(str(place).encode()):08x}", clock_ms=clock)
