"""What `db.example.com` (PostgreSQL) and `cache.example.com` (Redis) stand for while pages run: private servers.

The first has a user and a database `app`, the second an append-only file. They are started for pages that name them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.servers import PostgresServer, RedisServer

POSTGRES, REDIS = "db.example.com", "cache.example.com"


@contextmanager
def serving(text: str) -> Iterator[Mapping[str, str]]:
    """The real HOST:PORT of each server that the text names; they end with the block."""
    with contextlib.ExitStack() as ending:
        found: dict[str, str] = {}
        if POSTGRES in text:
            server = ending.enter_context(PostgresServer())
            _make_user(server.url)
            found[POSTGRES] = f"127.0.0.1:{server.port}"
        if REDIS in text:
            found[REDIS] = f"127.0.0.1:{ending.enter_context(RedisServer(appendonly=True)).port}"
        yield found


def placed(text: str, servers: Mapping[str, str]) -> str:
    """The text with real places for names; `-h NAME` of their shells gets a port too."""
    for name, place in servers.items():
        host, _, port = place.partition(":")
        text = re.sub(rf"-h {re.escape(name)}", f"-h {host} -p {port}", text)
        text = re.sub(rf"{re.escape(name)}(:\d+)?", place, text)
    return text


def _make_user(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as c:
        c.execute("create role app login createrole")
        c.execute("create database app owner app")
