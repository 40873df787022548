"""The URL of a new store of an engine, for tests that take the engine as a parameter."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer


def url_of(engine: str, request: pytest.FixtureRequest, place: Path) -> str:
    """A store of its own: sqlite, postgres or redis."""
    if engine == "sqlite":
        return f"sqlite:///{place}/work.db"
    server: PostgresServer | RedisServer = request.getfixturevalue(f"{engine}_server")
    own = "schema" if engine == "postgres" else "namespace"
    return f"{server.url}?{own}=test_{secrets.token_hex(4)}"
