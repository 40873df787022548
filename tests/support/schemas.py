"""Schemas on a PostgreSQL server, one for each test."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support.servers import PostgresServer

from redrive.stores.postgres.store import PostgresStore


def schema_of(place: Path) -> str:
    """The schema that stands for this folder."""
    return f"t_{hashlib.blake2b(str(place).encode(), digest_size=8).hexdigest()}"


@pytest.fixture
def schema(postgres_server: PostgresServer, postgres_session: psycopg.Connection) -> Iterator[str]:
    """The URL of an empty schema. A process makes one, and empties it after each test: it takes a tenth of the time."""
    name = f"t_{os.getpid()}"
    url = f"{postgres_server.url}?schema={name}&synchronous_commit=off"
    if name not in _MADE:
        PostgresStore(url).close()
        _MADE.add(name)
    yield url
    written = postgres_session.execute(_WRITTEN, (name, [*TABLES])).fetchall()
    if written:
        tables = ", ".join(f"{name}.{table}" for (table,) in written)
        postgres_session.execute(f"truncate {tables} restart identity".encode())


TABLES = ("message", "unique_key", "queue", "line", "cell", "batch", "batch_delta")
_WRITTEN = """select relname from pg_class
where relnamespace = %s::regnamespace and relname = any(%s) and pg_relation_size(oid) > 0"""
_MADE = set[str]()
