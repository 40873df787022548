"""The schema in the database, migrated in numbered steps while other processes use it.

A migration is a part `migration_N` of statements.sql. Its first line says which programs may continue to run: `--
compatible from V` means every redrive that knows version V or later. So migrations only add, until no process needs the
old parts. Each migration is a transaction of its own under an advisory lock: a second process waits, and finds the
migration done. A crash undoes it. The first migration creates the schema.
"""

from __future__ import annotations

import hashlib
import re
import time
from functools import cache
from importlib.resources import files

import psycopg
from msgspec import Struct

from ...chance import uniform
from ...errors import ConfigError, ReadOnly, SchemaError, StoreUnavailable
from .connection import Connection, open_error, store_error
from .session import Session
from .url import PostgresUrl, parse

LOCK_TIMEOUT_S = 1.0  # longest wait for a table's lock: waiting blocks later statements, so it is short and repeated
LOCK_TRIES = 30
MIGRATE_FOR_S = 3600.0
_SCHEMA = "create schema if not exists {s};\n"
_META = """create table if not exists {s}.meta (
    one boolean primary key default true check (one), version integer not null, compatible_from integer not null
);
"""
_SET_VERSION = """insert into {s}.meta (version, compatible_from) values (%d, %d)
on conflict (one) do update set version = excluded.version, compatible_from = excluded.compatible_from;
"""


class Migration(Struct, frozen=True):
    number: int
    compatible_from: int
    sql: str


class Version(Struct, frozen=True):
    """The version of the schema; number 0 if there is none. `read_only`: why the role may only read the schema."""

    number: int = 0
    compatible_from: int = 0
    read_only: str = ""


@cache
def statements() -> dict[str, str]:
    """Return the parts of statements.sql by name, with {s} where the name of the schema belongs."""
    text = (files(__package__) / "statements.sql").read_text()
    parts = re.split(r"^-- name: (\w+(?:, \w+)?)\n", text, flags=re.M)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def migrations(parts: dict[str, str]) -> list[Migration]:
    """Return the migrations among these parts of statements.sql, in order."""
    steps = []
    for number in sorted(int(name.removeprefix("migration_")) for name in parts if name.startswith("migration_")):
        sql = parts[f"migration_{number}"]
        said = re.match(r"-- compatible from (\d+)\n", sql)
        steps.append(Migration(number, int(said[1]) if said else number, sql))
    return steps


def open_schema(link: Session, parts: dict[str, str] | None = None) -> Version:
    """Migrate the schema, unless the URL says `migrate=off`; returns its version. Raises SchemaError if unusable."""
    known = migrations(statements() if parts is None else parts)
    at, last = version_of(link), known[-1].number
    _require_released(link, at, known)
    if at.number < last and at.read_only:
        raise SchemaError(
            f"{link.where}, schema {link.schema!r} is at version {at.number}, this redrive reads {last}, and "
            f"{at.read_only}; let somebody who may write run `redrive store upgrade`"
        )
    if at.number < last and link.url.migrate:
        return _migrate(link, known)
    return _usable(link, at, last)


def upgrade(url: str) -> tuple[int, int]:
    """Migrate the schema of a URL, even with `migrate=off`; returns its version before and after."""
    link = Session(parse(url))
    try:
        link.open()
        version, known = version_of(link), migrations(statements())
        if version.read_only:
            raise ReadOnly(f"{link.where}: {version.read_only}; nothing was changed")
        _require_released(link, version, known)
        return version.number, _migrate(link, known).number
    finally:
        link.close()


def version(url: str) -> int:
    """Return the version of the schema that the URL names; 0 if there is none. Writes nothing."""
    link = Session(parse(url))
    try:
        link.open()
        return version_of(link).number
    finally:
        link.close()


def sql(url: str, *, since: int = 0) -> str:
    """Return the DDL for an empty database, or one at version `since`, for an administrator to run.

    Raises ConfigError for a version that this redrive does not upgrade.
    """
    schema = parse(url).schema
    known = migrations(statements())
    if since and since not in [m.number for m in known]:
        raise ConfigError(
            f"there is no SQL to upgrade from schema {since}; this redrive upgrades schemas {known[0].number} to "
            f"{known[-1].number}, and `redrive store info` names the version of yours"
        )
    head = f"-- redrive: schema {schema!r}, from version {since} to {known[-1].number}. A worker needs no more than:\n"
    head += "".join(f"--   {line}\n" for line in _GRANTS.replace("{s}", schema).splitlines())
    head += "-- Who only looks at it (queue list, dlq list, job show, store doctor) needs no more than:\n"
    head += "".join(f"--   {line}\n" for line in _GRANTS_TO_LOOK.replace("{s}", schema).splitlines())
    steps = "\n".join(
        "begin;\n" + (_SCHEMA + _META if m is known[0] else "") + _script(m) + "commit;\n"
        for m in known
        if m.number > since
    )
    return head + "\n" + steps.replace("{s}", schema)


def _script(step: Migration) -> str:
    return f"{step.sql}\n{_SET_VERSION % (step.number, step.compatible_from)}"


_GRANTS = """grant usage on schema {s} to ROLE;
grant select, insert, update, delete on all tables in schema {s} to ROLE;
grant usage on all sequences in schema {s} to ROLE;
grant execute on all functions in schema {s} to ROLE;"""
_GRANTS_TO_LOOK = """grant usage on schema {s} to ROLE;
grant select on all tables in schema {s} to ROLE;"""

# A read-only setting of the database or server is temporary, and does not count. A setting of the role does.
_VERSION = """select version, compatible_from, current_user::text,
    has_table_privilege(to_regclass('{s}.message'), 'insert, update, delete'),
    exists (select 1 from pg_settings where name = 'default_transaction_read_only' and setting = 'on'
        and source in ('user', 'database user', 'client'))
from {s}.meta"""


def version_of(link: Session) -> Version:
    """Read the schema's version, without waiting for a migration in progress."""
    if link.look("select to_regclass(%s)", [f"{link.schema}.meta"])[0][0] is None:
        return Version()
    rows = link.look(_VERSION.format(s=link.schema))
    if not rows:
        return Version()
    number, compatible_from, role, may_write, is_set = rows[0]
    why = ""
    if may_write is False:
        why = f"role {role!r} may only look: it has none of INSERT, UPDATE and DELETE on schema {link.schema!r}"
    elif is_set:
        why = f"role {role!r} only looks: its default_transaction_read_only is on"
    return Version(number, compatible_from, why)


def _require_released(link: Session, at: Version, known: list[Migration]) -> None:
    if 0 < at.number < known[0].number:
        raise SchemaError(
            f"{link.where}, schema {link.schema!r} is at version {at.number}, which no release had, this redrive "
            f"knows {known[0].number} and later; let the redrive that made it work what is in it, and name a new one "
            "(?schema=)"
        )


def _usable(link: Session, at: Version, known: int) -> Version:
    where = f"{link.where}, schema {link.schema!r}"
    if at.number < known:
        has = f"is at version {at.number}" if at.number else "has no tables of redrive"
        raise SchemaError(
            f"{where} {has}, this redrive needs {known}, and migrate=off; run `redrive store upgrade`, or "
            f"`{_printed(at)}` for somebody who may"
        )
    if at.compatible_from > known:
        raise SchemaError(
            f"{where} is at version {at.number}, for redrive that knows {at.compatible_from} or later; this one "
            f"knows {known}: upgrade redrive"
        )
    return at


def _printed(at: Version) -> str:
    """Return the command that prints the SQL which brings a schema of this version up to date."""
    return "redrive store sql" + (f" --from-version {at.number}" if at.number else "")


def _migrate(link: Session, known: list[Migration]) -> Version:
    deadline_s = time.monotonic() + MIGRATE_FOR_S
    tries = 0
    while True:
        try:
            c = link.connect(time.monotonic() + link.url.timeout_s)
        except psycopg.Error as error:
            raise open_error(error, link.where) from error
        try:
            c.deadline_s = deadline_s
            while (version := _step(c, link.url, known)) is None:
                pass
            return _usable(link, version, known[-1].number)
        except psycopg.errors.LockNotAvailable as error:
            tries += 1
            if tries >= LOCK_TRIES:
                raise StoreUnavailable(
                    f"{link.where}: the schema cannot be brought up to date while a transaction holds its tables "
                    "(pg_stat_activity shows which); nothing was changed, the same call may work later"
                ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise SchemaError(
                f"{link.where}: {' '.join(str(error).split())}; let somebody who may run what "
                f"`{_printed(version_of(link))}` prints"
            ) from error
        except psycopg.Error as error:
            tries += 1
            if tries >= LOCK_TRIES or not isinstance(error, psycopg.OperationalError):
                raise store_error(error, "cannot bring the schema up to date", link.where) from error
        finally:
            c.drop()
        time.sleep(uniform(0.1, 0.5))


def _step(c: Connection, url: PostgresUrl, known: list[Migration]) -> Version | None:
    """Run the next missing migration and return None; if none is missing, return the schema's version."""
    with c.transaction():
        c.execute("set transaction isolation level read committed, read write")
        c.execute(f"set local lock_timeout = {int(LOCK_TIMEOUT_S * 1000)}")
        c.execute("set local statement_timeout = 0")
        c.execute("set local idle_in_transaction_session_timeout = 0")
        _wait_turn(c, url.schema)
        version = _version(c, url.schema)
        step = next((step for step in known if step.number > version.number), None)
        if step is None:
            return version
        meta = (_META if _exists(c, url.schema) else _SCHEMA + _META) if version.number == 0 else ""
        c.execute((meta + _script(step)).replace("{s}", url.schema).encode())
    return None


def _wait_turn(c: Connection, schema: str) -> None:
    """Poll for the advisory lock of migrations: lock_timeout would end a blocking wait during another migration."""
    digest = hashlib.blake2b(f"redrive:{schema}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest, "big", signed=True)
    while True:
        row = c.execute("select pg_try_advisory_xact_lock(%s)", (key,)).fetchone()
        if row is not None and row[0]:
            return
        if time.monotonic() > c.deadline_s:
            raise psycopg.errors.LockNotAvailable("another process is still bringing the schema up to date")
        time.sleep(uniform(0.02, 0.1))


def _exists(c: Connection, schema: str) -> bool:
    """True if the schema exists. Asked first, as `create schema if not exists` needs the right to create one."""
    return c.execute("select to_regnamespace(%s) is not null", (schema,)).fetchone() == (True,)


def _version(c: Connection, schema: str) -> Version:
    row = c.execute("select to_regclass(%s)", (f"{schema}.meta",)).fetchone()
    if row is None or row[0] is None:
        return Version()
    stored = c.execute(f"select version, compatible_from from {schema}.meta").fetchone()
    return Version(*stored) if stored is not None else Version()
