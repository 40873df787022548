"""Schemas on a PostgreSQL server, one for each test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support.servers import PostgresServer


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
