"""Stores with a message whose row was damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.attack.hosts import Host, PostgresHost, RedisHost, SqliteHost

from redrive.fault import Fault, Kind
from redrive.message import (
    ClaimRequest,
    Delivery,
    Message,
    Settled,
    Settlement,
)
from redrive.store import Store

FAULT = Fault(Kind.TRANSIENT, "ValueError", "it broke", "0123456789abcdef", at_ms=1, attempt=1)


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    name = f"t{zlib.crc32(str(tmp_path).encode()):08x}"
    match request.param:
        case "sqlite":
            made: Host = SqliteHost(tmp_path)
        case "redis":
            made = RedisHost(request.getfixturevalue("redis_server").url, name)
        case _:
            made = PostgresHost(request.getfixturevalue("postgres_server").url, name)
    with closing(made):
        yield made


@pytest.fixture
def store(host: Host) -> Iterator[Store]:
    with closing(host.open()) as store:
        yield store


def claim(store: Store, limit: int = 100) -> list[Delivery]:
    return store.exchange([], [ClaimRequest("default", limit, 30_000, worker="w")]).deliveries


def settle(store: Store, deliveries: list[Delivery], decision: Any, fault: Fault | None = FAULT) -> list[Settled]:
    return store.exchange([Settlement(d.receipt, decision, fault) for d in deliveries], []).settled


def everything(store: Store) -> list[Message]:
    found: list[Message] = []
    cursor = None
    while True:
        page = store.peek(None, limit=50, cursor=cursor)
        found += page.messages
        cursor = page.cursor
        if cursor is None:
            return found
