"""Check if a server is safe for messages, when a store opens, and find what makes it slow, on request."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import Refused
from .listen import POLL_EVERY_S
from .session import Session

VERSION_LEAST = 13
OLD_S = 300  # an open transaction is reported from this age on, as it keeps vacuum from removing rows
ROOM_LEAST = 5
DEAD_MOST = 200_000
_SETTINGS = "select name, setting from pg_settings where name in ('fsync', 'full_page_writes', 'autovacuum')"
_OLD = f"""select pid::text, state, usename, extract(epoch from now() - xact_start)::int from pg_stat_activity
where xact_start < now() - interval '{OLD_S} s' and pid <> pg_backend_pid() and backend_type = 'client backend'
order by xact_start limit 3"""
_PREPARED = f"select gid from pg_prepared_xacts where prepared < now() - interval '{OLD_S} s' order by prepared limit 3"
_SLOTS = "select slot_name from pg_replication_slots where not active and xmin is not null order by age(xmin) desc"
_ROOM = """select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
 - sum(numbackends)::int, current_setting('max_connections')::int from pg_stat_database"""
_TABLES = f"""select s.relname::text, n_dead_tup, coalesce(array_to_string(c.reloptions, ','), '')
from pg_stat_user_tables s join pg_class c on c.oid = s.relid where schemaname = %s
and (n_dead_tup > {DEAD_MOST} and n_dead_tup > n_live_tup or 'autovacuum_enabled=false' = any(c.reloptions)
  or 'autovacuum_enabled=off' = any(c.reloptions)) order by s.relname"""


def preflight(link: Session) -> None:
    """Raise Refused, with the remedy, for a server that would lose messages, or on which redrive cannot run.
    `?fsync=off` in the URL accepts a server that may lose messages."""
    for problem in _refusals(link):
        raise Refused(f"{link.where}: {problem}")


def doctor(link: Session) -> list[str]:
    """Find unsafe or slow settings; returns one line per setting, with the remedy."""
    warnings = [*_refusals(link), *_opted_out(link), *_settings(link), *_held_back(link), *_room(link), *_tables(link)]
    if link.pooled and not link.url.listen:
        warnings.append(
            f"a pooler is in between, which does not pass LISTEN on: idle workers poll every {POLL_EVERY_S:g} s; "
            "add ?listen=URL with the server's own address"
        )
    return warnings


def _refusals(link: Session) -> Iterator[str]:
    server = link.open()
    if server.version < VERSION_LEAST * 10_000:
        yield (
            f"the server is PostgreSQL {server.version // 10_000}, redrive needs {VERSION_LEAST} or later: upgrade it"
        )
    if server.encoding != "UTF8":
        yield (
            f"the database's encoding is {server.encoding}, which cannot hold every text: make one with "
            "`create database … encoding 'UTF8' template template0`"
        )
    if link.url.fsync and dict(link.look(_SETTINGS)).get("fsync") == "off":
        yield (
            "fsync is off: a crash of the machine may damage the database and lose acknowledged messages; `alter "
            "system set fsync = on; select pg_reload_conf()`, or say that it is meant with ?fsync=off"
        )


def _opted_out(link: Session) -> Iterator[str]:
    if not link.url.fsync:
        yield "fsync=off in the URL: a crash of the machine may lose acknowledged messages; take it out unless meant"
    if link.url.synchronous_commit == "off":
        yield (
            "synchronous_commit=off: a crash of the server may take back the last commits, acknowledged or not; take "
            "it out of the URL unless that is meant"
        )


def _settings(link: Session) -> Iterator[str]:
    settings = dict(link.look(_SETTINGS))
    if settings.get("full_page_writes") == "off":
        yield (
            "full_page_writes is off: after a power cut pages may be torn; `alter system set full_page_writes = on; "
            "select pg_reload_conf()`, unless the file system writes whole pages (ZFS)"
        )
    if settings.get("autovacuum") == "off":
        yield (
            "autovacuum is off: queues grow slow within hours; `alter system set autovacuum = on; "
            "select pg_reload_conf()`"
        )


def _held_back(link: Session) -> Iterator[str]:
    for pid, state, user, age_s in link.look(_OLD):
        yield (
            f"session {pid} of {user} is {state} in a transaction begun {age_s} s ago: what was deleted since cannot "
            "be removed, so tables grow, and the first claim of each worker reads all of it; end the transaction, by "
            f"`select pg_terminate_backend({pid})` if nothing else helps"
        )
    for (gid,) in link.look(_PREPARED):
        yield (
            f"prepared transaction {gid!r} is neither committed nor rolled back, and holds back vacuum: `rollback "
            f"prepared '{gid}'`"
        )
    for (slot,) in link.look(_SLOTS):
        yield (
            f"replication slot {slot!r} is unused, and holds back vacuum: `select "
            f"pg_drop_replication_slot('{slot}')`, or start its standby"
        )


def _room(link: Session) -> Iterator[str]:
    left, most = link.look(_ROOM)[0]
    if left < ROOM_LEAST:
        yield (
            f"{left} of {most} connections are left: more workers cannot connect; raise max_connections, lower ?pool= "
            f"({link.url.pool} per process, and one that listens), or put a pooler in front"
        )


def _tables(link: Session) -> Iterator[str]:
    for table, dead, options in link.look(_TABLES, [link.schema]):
        if "autovacuum_enabled" in options:
            yield (
                f"autovacuum is off for {link.schema}.{table}: `alter table {link.schema}.{table} reset "
                "(autovacuum_enabled)`"
            )
        else:
            yield (
                f"{link.schema}.{table} holds {dead} dead rows: vacuum does not keep up; `vacuum "
                f"{link.schema}.{table}`, and look for old transactions"
            )
