"""Operations on a store's schema: print its DDL, migrate it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import ReadOnly, Unsupported
from . import driver_of, engine_of, sqlite_path


class Upgraded(NamedTuple):
    """The version of a store's schema before and after an upgrade; 0 before if there was no schema."""

    before: int
    after: int


def ddl(url: str, since: int = 0) -> str:
    """Return the DDL of the schema for a store URL, for a person with the rights to run it. Does not connect.

    It creates the schema, or upgrades one that is at version `since`. Raises Unsupported for a store without a schema
    and for the upgrade of an SQLite file, ConfigError for an invalid URL or version.
    """
    match engine_of(url):
        case "sqlite":
            from .sqlite.schema import ddl as of_sqlite

            if since:
                raise Unsupported(
                    "there is no SQL to upgrade an SQLite file; the first process that opens it does that"
                )
            return of_sqlite()
        case "postgres":
            with driver_of("PostgreSQL", "postgres"):
                from .postgres.schema import sql

            return sql(url, since=since)
        case engine:
            raise Unsupported(_SCHEMALESS[engine])


def is_there(url: str) -> bool:
    """True if the store of this URL has been opened before: its file exists, or its schema has redrive's tables.
    Creates nothing; always True for a store without file and schema. Raises StoreError, ConfigError."""
    match engine_of(url):
        case "sqlite":
            return Path(sqlite_path(url)).exists()
        case "postgres":
            with driver_of("PostgreSQL", "postgres"):
                from .postgres.schema import version

            return version(url) > 0
        case _:
            return True


def upgrade(url: str) -> Upgraded:
    """Migrate the schema, even if the URL says not to do so on opening.

    Raises Unsupported for a store without a schema, SchemaError with the reason if the schema cannot be migrated,
    ReadOnly, StoreError.
    """
    match engine_of(url):
        case "sqlite":
            from .sqlite.reading import why_read_only
            from .sqlite.schema import version_of
            from .sqlite.store import SqliteStore

            path = Path(sqlite_path(url)).absolute()
            if why := why_read_only(path):
                raise ReadOnly(f"{why}; nothing was changed")
            before = version_of(path)
            SqliteStore(path).close()
            return Upgraded(before, version_of(path))
        case "postgres":
            with driver_of("PostgreSQL", "postgres"):
                from .postgres.schema import upgrade as of_postgres

            return Upgraded(*of_postgres(url))
        case engine:
            raise Unsupported(_SCHEMALESS[engine])


_SCHEMALESS = {
    "sqs": "SQS has no schema; its queues are made by `redrive aws template`, or by create=true in the URL",
    "redis": "Redis has no schema; each process loads the scripts it needs",
    "memory": "a store in memory has no schema; it begins empty with its process",
}
