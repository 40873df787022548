"""The engines a store can lie on: a private server for one run of the benchmarks, and what it costs."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tests.support.servers import PostgresServer, RedisServer, Server

from .processes import cpu_s

DEFAULTS = {"shared_buffers": "128MB", "max_wal_size": "1GB", "min_wal_size": "80MB", "autovacuum_naptime": "1min"}


class Engine(Protocol):
    """Where stores lie. `url` names an empty one, `size` says how many bytes one takes."""

    @property
    def name(self) -> str: ...
    @property
    def server(self) -> Server | None: ...

    def url(self, folder: Path) -> str: ...
    def size(self, url: str) -> int: ...


def server_cpu_s(engine: Engine) -> float:
    """Processor time of the server, all its processes, so far."""
    return 0.0 if engine.server is None else cpu_s(engine.server.pid, children=True)


class Sqlite:
    name = "sqlite"
    server = None

    def url(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'work.db'}"

    def size(self, url: str) -> int:
        path = Path(url.removeprefix("sqlite:///"))
        with contextlib.closing(sqlite3.connect(path)) as c:
            c.execute("pragma wal_checkpoint(truncate)")
        return path.stat().st_size


class Redis:
    """Append-only file, synced each second, as in the manual's advice for data one wants to keep."""

    name = "redis"

    def __init__(self, server: RedisServer) -> None:
        self.server, self._command = server, server.command

    def url(self, folder: Path) -> str:
        return f"{self.server.url}?namespace={folder.name}"

    def size(self, url: str) -> int:
        """Of all stores in the server: the difference to before is one's own."""
        return int(re.findall(r"used_memory:(\d+)", self._command("INFO", "memory"))[0])


class Postgres:
    """With the settings it comes with."""

    name = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server

    def url(self, folder: Path) -> str:
        return f"{self.server.url}?schema={re.sub('[^a-z0-9]', '_', folder.name)}"

    def size(self, url: str) -> int:
        import psycopg

        at, _, schema = url.partition("?schema=")
        size = "select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = relnamespace"
        with psycopg.connect(at) as c:
            row = c.execute(f"{size} where nspname = %s and relkind = 'r'", (schema,)).fetchone()
        return int(row[0] or 0) if row else 0


@contextlib.contextmanager
def _sqlite(folder: Path | None) -> Iterator[Engine]:
    yield Sqlite()


@contextlib.contextmanager
def _redis(folder: Path | None) -> Iterator[Engine]:
    with RedisServer(appendonly=True, folder=folder) as server:
        yield Redis(server)


@contextlib.contextmanager
def _postgres(folder: Path | None) -> Iterator[Engine]:
    with PostgresServer(settings=DEFAULTS, folder=folder) as server:
        yield Postgres(server)


#: By name: opens the engine, with its data in the folder (None: the system's place for temporary files).
ENGINES: dict[str, Callable[[Path | None], AbstractContextManager[Engine]]] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "postgres": _postgres,
}
