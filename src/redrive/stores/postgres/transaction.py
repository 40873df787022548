"""Write in the caller's own transaction: find the psycopg connection of the object given, and check its database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ...errors import EnqueueError, Unsupported
from ...message import Draft
from ..sqlalchemy import driver_connection, is_of
from .connection import store_error
from .notifications import SPOTS_MAX, clustered, named, short
from .rows import adapt, flags, numbers, wait_ms
from .session import Session
from .statements import Statements

_EXPECTED = (
    "expected a connection of psycopg 3, a Connection or Session of SQLAlchemy on one (postgresql+psycopg://), or "
    "Django's connection"
)
_HERE = (
    "select system_identifier::text, current_database()::text, to_regclass($1) is not null, "
    "current_setting('transaction_read_only') = 'on', current_setting('transaction_isolation') from pg_control_system()"
)


def connection_of(tx: Any) -> psycopg.Connection[Any]:
    """Return the psycopg connection behind `tx`, of psycopg, SQLAlchemy or Django. Raises Unsupported for others."""
    connection = tx
    if is_of(tx, "sqlalchemy"):
        connection = driver_connection(tx)
    elif getattr(tx, "vendor", None) == "postgresql" and hasattr(tx, "ensure_connection"):
        tx.ensure_connection()
        connection = tx.connection
    if not isinstance(connection, psycopg.Connection):
        raise Unsupported(f"tx={_name(tx)}{_driver(tx, connection)}: {_EXPECTED}")
    return connection


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _driver(tx: Any, connection: Any) -> str:
    return f" on {_name(connection)}" if connection is not None and connection is not tx else ""


@contextlib.contextmanager
def within(c: psycopg.Connection[Any], link: Session, drafts: Sequence[Draft]) -> Iterator[psycopg.Connection[Any]]:
    """Yield the connection for redrive's statements in its transaction: all of them apply, or none if the block raises.

    Begins the transaction if none is open. Raises Unsupported if the connection is to another database than `link`,
    EnqueueError if it is in autocommit, failed or read-only, or at an isolation level at which `drafts` cannot be put,
    and the errors of errors.py for errors of the server.
    """
    _writable(c)
    try:
        _sees_others(_same_database(c, link), drafts)
        adapt(c)
        try:
            with c.pipeline():
                _do(c, "savepoint redrive")
                yield c
                _do(c, "release savepoint redrive")
        except BaseException:
            with contextlib.suppress(psycopg.Error):  # a lost connection has nothing to roll back
                _do(c, "rollback to savepoint redrive")
                _do(c, "release savepoint redrive")
            raise
    except psycopg.Error as error:
        raise store_error(error, "could not write in the transaction of tx=", link.where) from error


def tell(c: psycopg.Connection[Any], link: Session, st: Statements, drafts: Sequence[Draft]) -> None:
    """Notify waiters when the caller commits; those of this process too, as it does not see that commit. The commit may
    be long after the transaction began, from when the messages are due, so the notification has the due times."""
    for queue in named(draft.queue for draft in drafts):
        mine = [draft for draft in drafts if not queue or draft.queue == queue]
        later = clustered([wait_ms(draft) for draft in mine if draft.due_ms is None], SPOTS_MAX)
        fixed = clustered([draft.due_ms for draft in mine if draft.due_ms is not None], SPOTS_MAX)
        spots = [*zip(*(later + fixed), strict=True)]
        relative = flags([True] * len(later) + [False] * len(fixed))
        ranges = numbers(spots[0]), numbers(spots[1]), relative
        st.do(c, "tell", link.channel, "tx", short(queue), *ranges, st.now())


def _writable(c: psycopg.Connection[Any]) -> None:
    status = c.info.transaction_status
    if c.closed or status == TransactionStatus.UNKNOWN:
        raise EnqueueError("tx= is a connection that is closed")
    if status == TransactionStatus.INERROR:
        raise EnqueueError("tx= is in a transaction that has failed; roll it back first")
    if status == TransactionStatus.IDLE and c.autocommit:
        raise EnqueueError(
            "tx= has no transaction open and commits each statement by itself; begin one first: "
            "`with connection.transaction():`, or with Django `with transaction.atomic():`"
        )


def _same_database(c: psycopg.Connection[Any], link: Session) -> str:
    """Return the isolation level of the transaction."""
    (here,) = _do(c, _HERE, f"{link.schema}.message")
    if here[:2] != link.identity() or not here[2]:
        link.forget_identity()  # after a failover the session's server may be another
    if here[:2] != link.identity() or not here[2]:
        raise Unsupported(
            f"tx= is a connection to another server or database ({c.info.dbname!r} on {c.info.host}:{c.info.port}), "
            f"but messages go to {link.where}"
        )
    if here[3]:
        raise EnqueueError("tx= is in a transaction that only reads; begin one that may write")
    return str(here[4])


def _sees_others(level: str, drafts: Sequence[Draft]) -> None:
    """Raise EnqueueError for drafts with a key or a group, unless each statement sees what others have committed: by an
    older snapshot the holder of a key, or of a place in a group, may be a message that is gone."""
    if level in ("read committed", "read uncommitted"):
        return
    for draft in drafts:
        if draft.key is not None or draft.group is not None:
            what = "a group" if draft.key is None else "a unique key"
            raise EnqueueError(
                f"tx= is in a transaction whose isolation level is {level!r}, and a message of task "
                f"{draft.task[:100]!a} has {what}, which it may see as it was before; expected 'read committed': begin "
                "such a transaction, or enqueue the message without a key and a group; nothing was written"
            )


def _do(c: psycopg.Connection[Any], sql: str, *args: Any) -> psycopg.RawCursor[tuple[Any, ...]]:
    """Execute a statement with a plain cursor, as the caller's cursors may have another row factory."""
    cursor = psycopg.RawCursor(c, row_factory=tuple_row)
    cursor.execute(sql.encode(), args or None)
    return cursor
