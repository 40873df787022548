"""PostgreSQL against the contract, and what is its own: many processes at once on one schema."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

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
