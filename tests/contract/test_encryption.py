"""Every store behind encryption: it keeps the contract that any store must keep, and its bytes show nothing."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis as redis_py
from tests.support.encrypted_stores import KEYS, SECRET, an_app, dumped, entropy, fill, forms_in
from tests.support.servers import PostgresServer, RedisServer

from redrive.crypto import Box, sealed_by
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.postgres.store import PostgresStore
from redrive.stores.redis.store import RedisStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock, StoreContract
from redrive.testing.contract.base import Contract
from redrive.testing.contract.leasing import LeaseRules
from redrive.testing.contract.mending import ReplaceRules, RestoreRules
from redrive.testing.contract.settling import SettleRules
from redrive.testing.contract.triaging import TriageRules


class TestMemory(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return sealed_by(MemoryStore(clock), Box(KEYS))


@pytest.mark.soak
class TestSqliteWhole(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return sealed_by(SqliteStore(place / "work.db", clock_ms=clock), Box(KEYS))


class Payloads(LeaseRules, SettleRules, TriageRules, ReplaceRules, RestoreRules, Contract):
    """What depends on what passes to and from a store."""


def redis_url(place: Path, server: RedisServer) -> str:
    return f"{server.url}?namespace={zlib.crc32(str(place).encode()):08x}"


@pytest.fixture
def schema(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[str]:
    name = f"e_{zlib.crc32(str(tmp_path).encode()):08x}"
    yield f"{postgres_server.url}?schema={name}&synchronous_commit=off"
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        c.execute(f"drop schema if exists {name} cascade".encode())


class TestSqlite(Payloads):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return sealed_by(SqliteStore(place / "work.db", clock_ms=clock), Box(KEYS))


class TestPostgres(Payloads):
    @pytest.fixture(autouse=True)
    def _schema(self, schema: str) -> None:
        self.url = schema

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return sealed_by(PostgresStore(self.url, clock_ms=clock), Box(KEYS))


class TestRedis(Payloads):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.server = redis_server

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return sealed_by(RedisStore(redis_url(place, self.server), clock_ms=clock), Box(KEYS))


# -- what the bytes show


def sqlite_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("work.db*") if path.is_file())


def postgres_bytes(url: str, schema: str) -> bytes:
    with psycopg.connect(url) as c:
        names = c.execute("select tablename from pg_tables where schemaname = %s", [schema]).fetchall()
        rows = [c.execute(f'select t::text from "{schema}"."{name}" t'.encode()).fetchall() for (name,) in names]
    return dumped(value for found in rows for (value,) in found)


def redis_bytes(server: RedisServer, namespace: str) -> bytes:
    found: list[Any] = []
    with redis_py.Redis.from_url(server.url) as c:
        for key in c.scan_iter(match=f"*{namespace}*"):
            found += [key]
            match c.type(key):
                case b"hash":
                    found += [each for pair in c.hgetall(key).items() for each in pair]
                case b"zset":
                    found += c.zrange(key, 0, -1)
                case b"set":
                    found += c.smembers(key)
                case b"list":
                    found += c.lrange(key, 0, -1)
                case b"string":
                    found += [c.get(key)]
                case other:
                    raise AssertionError(f"key {key!r} is of type {other!r}: look at it too")
    return dumped(found)


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
@pytest.mark.parametrize("keys", [KEYS, None], ids=["encrypted", "in the clear"])
def test_nothing_of_a_body_is_found_in_the_bytes_of_the_store(
    engine: str, keys: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Without encryption the same look finds it: so the look is a true one."""
    store: Any
    if engine == "sqlite":
        store = SqliteStore(tmp_path / "work.db")
    elif engine == "postgres":
        store = PostgresStore(request.getfixturevalue("schema"))
    else:
        server = request.getfixturevalue("redis_server")
        store = RedisStore(redis_url(tmp_path, server))
    ran: list[str] = []
    app = an_app(store, ran, keys)
    fill(app)
    if engine == "sqlite":
        found = sqlite_bytes(tmp_path)
    elif engine == "postgres":
        url = request.getfixturevalue("schema")
        found = postgres_bytes(url.partition("?")[0], url.partition("schema=")[2].partition("&")[0])
    else:
        found = redis_bytes(server, redis_url(tmp_path, server).rpartition("=")[2])
    assert {"fails", "keeps", "once", "undo"} <= set(ran), ran
    assert b"ValueError" in found and b"fails" in found, "what triage goes by is in the clear"
    assert forms_in(found) == [] if keys else "plain" in forms_in(found) or "hex" in forms_in(found)
    if keys:
        longest = max((m.body for m in store.peek(None).messages), key=len)
        assert len(longest) > 20_000 and entropy(longest[-20_000:]) > 7.98, "twenty thousand times A is noise"
        app.run_worker(["q", "later"], burst=True)
        assert "waits" in ran and SECRET in repr(app.store.peek(None))
    store.close()
