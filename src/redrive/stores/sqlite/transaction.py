"""Write in the caller's own transaction: find the sqlite3 connection of the object given, and check its file."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import EnqueueError, Unsupported
from ..sqlalchemy import driver_connection, is_of

_WAITING = "redrive: calls after the commit"  # key in `info` of a session of SQLAlchemy


def connection_of(tx: Any) -> sqlite3.Connection:
    """Return the sqlite3 connection behind `tx`, of sqlite3 or SQLAlchemy. Raises Unsupported for others."""
    connection = driver_connection(tx) if is_of(tx, "sqlalchemy") else tx
    if not isinstance(connection, sqlite3.Connection):
        raise Unsupported(
            f"tx={type(tx).__name__}: expected a sqlite3.Connection, or a Connection or Session of SQLAlchemy on it"
        )
    return connection


@contextlib.contextmanager
def within(c: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """Yield the connection for redrive's statements in its transaction: all of them apply, or none if the block raises.

    Begins the transaction if none is open. Raises Unsupported if the connection is to another file than `path`,
    EnqueueError if it is in autocommit.
    """
    as_it_was, c.row_factory, c.text_factory = (c.row_factory, c.text_factory), None, str
    try:
        _same_file(c, path)
        if not c.in_transaction:
            _begin(c)
        c.execute("savepoint redrive")
        try:
            yield c
        except BaseException:
            if c.in_transaction:
                c.execute("rollback to redrive")
                c.execute("release redrive")
            raise
        c.execute("release redrive")
    finally:
        c.row_factory, c.text_factory = as_it_was


def _same_file(c: sqlite3.Connection, path: Path) -> None:
    file = next((row[2] for row in c.execute("pragma database_list") if row[1] == "main"), "")
    if not file or not Path(file).exists() or not Path(file).samefile(path):
        raise Unsupported(f"tx= is a connection to {file or 'a database in memory'}, but messages go to {path}")


def _begin(c: sqlite3.Connection) -> None:
    if c.isolation_level is None or getattr(c, "autocommit", -1) is True:
        raise EnqueueError(
            "tx= has no transaction open and commits each statement by itself; execute 'begin immediate' on it first"
        )
    c.execute("begin immediate")  # a read transaction could not write once another has written


def after_commit(tx: Any, do: Callable[[], None]) -> None:
    """Call `do` when `tx`, a session of SQLAlchemy, commits. Waiters notice other commits by polling."""
    orm, event = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.event")
    if orm is not None and event is not None and isinstance(tx, orm.Session):
        if _WAITING not in tx.info:  # one listener per session, as no listener can be removed, not even with once=
            event.listen(tx, "after_commit", _call_waiting)
        tx.info.setdefault(_WAITING, {})[do] = None


def _call_waiting(session: Any) -> None:
    waiting = session.info[_WAITING]
    for do in [*waiting]:
        do()
    waiting.clear()
