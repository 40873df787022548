"""The engines, each a package with one driver; `open_store` chooses by URL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import ConfigError
from ..store import OpenCells, Store
from ..urls import shown
from .url import POSTGRES_SCHEMES, REDIS_SCHEMES, engine_of, sqlite_path, sqlite_synchronous

__all__ = ["POSTGRES_SCHEMES", "REDIS_SCHEMES", "driver_of", "engine_of", "open_cells", "open_store", "sqlite_path"]


def open_store(url: str) -> Store:
    """Open the store of a URL: `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`,
    `postgresql://user@host/database?schema=redrive`, `redis://host:6379/0?namespace=redrive`,
    `sqs://eu-central-1/shop?triage=sqlite:///dead.db`.

    Raises ConfigError for an unknown URL or a driver that is not installed, SchemaError, StoreUnavailable.
    """
    match engine_of(url):
        case "sqlite":
            from .sqlite.store import SqliteStore

            return SqliteStore(sqlite_path(url), synchronous=sqlite_synchronous(url))
        case "postgres":
            with driver_of("PostgreSQL", "postgres"):
                from .postgres.store import PostgresStore
            return PostgresStore(url)
        case "redis":
            with driver_of("Redis", "redis"):
                from .redis.store import RedisStore
            return RedisStore(url)
        case "sqs":
            from .sqs.store import SqsStore

            return SqsStore(url, open_store=_open_beside, open_cells=open_cells)
        case _:
            from .memory.store import MemoryStore

            if url != "memory://":
                raise ConfigError(f"store URL {shown(url)!r}: expected memory:// and nothing more")
            return MemoryStore()


def open_cells(url: str) -> OpenCells:
    """Open the cells of a URL: `dynamodb://TABLE?region=eu-central-1`, or those of the store with this URL. Closing the
    cells closes that store too.

    Raises ConfigError for an unknown URL or a driver that is not installed, SchemaError, StoreUnavailable.
    """
    if url.partition("://")[0] == "dynamodb":
        from .dynamodb.store import DynamoCells

        return DynamoCells(url)
    from .cells import CellsOfStore

    return CellsOfStore(open_store(url))


def _open_beside(url: str) -> Store:
    """Open a store for use by another store. A PostgreSQL or Redis store is opened at first use, so that work that does
    not use it continues while the server is unreachable."""
    if engine_of(url) not in ("postgres", "redis"):
        return open_store(url)
    from .lazy import LazyStore

    return LazyStore(lambda: open_store(url))


@contextlib.contextmanager
def driver_of(engine: str, extra: str) -> Iterator[None]:
    """A context for importing an engine's modules. Raises ConfigError, naming the extra, if the driver is missing."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{engine} needs its driver ({error}); pip install 'redrive[{extra}]'") from error
