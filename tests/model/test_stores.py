"""The stores of this project against the plain model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support.floors import always as always
from tests.support.modest import ModestStore
from tests.support.namespaces import redis_url
from tests.support.schemas import schema_of
from tests.support.servers import PostgresServer, RedisServer
from tests.support.store_model import StoreModel
from tests.support.turns import in_turn

from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.postgres import floor
from redrive.stores.postgres.store import PostgresStore
from redrive.stores.redis.store import RedisStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # Hypothesis takes its time to shrink a failure


class TestMemory(StoreModel):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return MemoryStore(clock)


class TestSqlite(StoreModel):
    examples = 15
    walks = 30

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return SqliteStore(place / "work.db", synchronous="normal", clock_ms=clock)


class TestPostgres(StoreModel):
    examples = 12
    walks = 20

    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: PostgresServer) -> Iterator[None]:
        self.server, self.schemas = postgres_server, set[str]()
        yield
        with psycopg.connect(postgres_server.url, autocommit=True) as c:
            for schema in self.schemas:
                c.execute(f"drop schema if exists {schema} cascade".encode())

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        schema = schema_of(place)
        self.schemas.add(schema)
        return PostgresStore(f"{self.server.url}?schema={schema}&synchronous_commit=off", clock_ms=clock)


@in_turn(0, of=3)
@pytest.mark.usefixtures("always")
class TestPostgresWithFloors(TestPostgres):
    """Claims begin where the last look found the first message; nothing is looked for behind."""

    @pytest.fixture(autouse=True)
    def _untold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told = defaultdict[str, list[PostgresStore]](list)
        monkeypatch.setattr(floor, "SHARE", 0.0)
        monkeypatch.setattr(floor, "SAVED_MS", 0.0)

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        store, told = super().make_store(clock, place), self.told[schema_of(place)]
        assert isinstance(store, PostgresStore)
        told.append(store)

        def tell_all(queue: str, spots: object) -> None:  # at once, as the model knows no while of a notification
            for one in told:
                one._floors.expect(queue, spots)  # type: ignore[arg-type]

        store._link.on_late = tell_all
        return store


class TestRedis(StoreModel):
    examples = 15
    walks = 30

    @pytest.fixture(autouse=True)
    def server(self, redis_server: RedisServer) -> None:
        self.redis_server = redis_server

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return RedisStore(redis_url(place, self.redis_server), clock_ms=clock)


class TestModest(StoreModel):
    examples = 10
    walks = 30

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return ModestStore(clock)
