"""What is done to a store's schema by hand: read the statements that make it, bring it up to date."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError, Unsupported
from . import POSTGRES_SCHEMES, REDIS_SCHEMES, sqlite_path


class Upgraded(NamedTuple):
    """The schema's version before and after; 0 where there was nothing of ours."""

    before: int
    after: int


def ddl(url: str) -> str:
    """The statements that make the schema of the store a URL names, for somebody who may run them. Nothing is opened.

    Raises Unsupported for a store without a schema, ConfigError.
    """
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from ._sqlite_schema import ddl as of_sqlite

        return of_sqlite()
    if scheme in POSTGRES_SCHEMES:
        from ._postgres_schema import sql

        return sql(url)
    raise _without_schema(scheme)


def upgrade(url: str) -> Upgraded:
    """Bring the schema up to date, also where the URL says not to do that when it is opened.

    Raises Unsupported for a store without a schema, SchemaError with the reason where it cannot be done, StoreError.
    """
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from ._sqlite_schema import version_of
        from .sqlite import SqliteStore

        path = Path(sqlite_path(url)).absolute()
        before = version_of(path)
        SqliteStore(path).close()
        return Upgraded(before, version_of(path))
    if scheme in POSTGRES_SCHEMES:
        from ._postgres_schema import upgrade as of_postgres

        return Upgraded(*of_postgres(url))
    raise _without_schema(scheme)


def _without_schema(scheme: str) -> Exception:
    if scheme in REDIS_SCHEMES:
        return Unsupported("Redis has no schema; its scripts are loaded by whoever needs them")
    if scheme == "memory":
        return Unsupported("a store in memory has no schema; it begins empty with its process")
    return ConfigError(f"no store is known by the scheme {scheme!r}; expected sqlite://, postgresql:// or redis://")
