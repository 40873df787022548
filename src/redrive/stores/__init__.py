"""The engines, one file and one driver each; `open_store` chooses by URL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast
from urllib.parse import unquote

from ..errors import ConfigError
from ..store import OpenCells, Store
from ..urls import option_shown, shown, split

POSTGRES_SCHEMES = ("postgresql", "postgres")
REDIS_SCHEMES = (
    "redis", "rediss", "redis+unix", "redis+cluster", "rediss+cluster",
    "valkey", "valkeys", "valkey+unix", "valkey+cluster", "valkeys+cluster",
)  # fmt: skip
_SCHEMES = "memory://, sqlite:///PATH, postgresql://HOST/DATABASE, redis://HOST:PORT, sqs://REGION/PREFIX"


def open_store(url: str) -> Store:
    """The store a URL names: `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`,
    `postgresql://user@host/database?schema=redrive`, `redis://host:6379/0?namespace=redrive`,
    `sqs://eu-central-1/shop?triage=sqlite:///dead.db`.

    Raises ConfigError for a URL it does not know or a driver that is not installed, SchemaError, StoreUnavailable.
    """
    match engine_of(url):
        case "sqlite":
            return _sqlite(url)
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
    """The cells that a URL names: `dynamodb://TABLE?region=eu-central-1`, or those of a store by its URL. Closing them
    closes what was opened for them.

    Raises ConfigError for a URL it does not know or a driver that is not installed, SchemaError, StoreUnavailable.
    """
    if url.partition("://")[0] == "dynamodb":
        from .dynamodb.store import DynamoCells

        return DynamoCells(url)
    from .cells import CellsOfStore

    return CellsOfStore(open_store(url))


def _open_beside(url: str) -> Store:
    """A store that another store uses. One on a server is opened at its first use: what needs none of it goes on while
    the server cannot be reached."""
    if engine_of(url) not in ("postgres", "redis"):
        return open_store(url)
    from .lazy import Later

    return cast(Store, Later(lambda: open_store(url)))


@contextlib.contextmanager
def driver_of(engine: str, extra: str) -> Iterator[None]:
    """Where an engine's modules are imported: raises ConfigError, which names the extra, if its driver is missing."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{engine} needs its driver ({error}); pip install 'redrive[{extra}]'") from error


def _sqlite(url: str) -> Store:
    from .sqlite.store import SqliteStore

    path = sqlite_path(url)
    options = {name: unquote(value) for name, value in split(url).options()}
    synchronous = options.pop("synchronous", "full")
    if options:
        unknown = option_shown(sorted(options)[0])
        raise ConfigError(f"store URL {shown(url)!r}: unknown option {unknown}; known: synchronous")
    return SqliteStore(path, synchronous=synchronous)


def engine_of(url: str) -> str:
    """memory, sqlite, postgres, redis or sqs, by the URL's scheme. Raises ConfigError."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in ("memory", "sqlite", "sqs"):
        return scheme
    if scheme in POSTGRES_SCHEMES:
        return "postgres"
    if scheme in REDIS_SCHEMES:
        return "redis"
    what = f"unknown scheme {scheme!r}" if scheme and not set(scheme) & set("@:/") else "it has no scheme"
    if scheme.partition("+")[0] in POSTGRES_SCHEMES:
        what += ", write postgresql:// (redrive chooses the driver)"
    raise ConfigError(f"store URL {shown(url)!r}: {what}; known: {_SCHEMES}")


def sqlite_path(url: str) -> str:
    """The path that `sqlite:///…` names. Raises ConfigError."""
    parts = split(url)
    path = unquote(parts.path)[1:]
    if parts.hosts or parts.user is not None or not path:
        raise ConfigError(
            f"store URL {shown(url)!r}: expected sqlite:///relative/path.db or sqlite:////absolute/path.db"
        )
    return path
