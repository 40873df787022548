"""Find the driver's connection behind a connection or session of SQLAlchemy, without importing SQLAlchemy."""

from __future__ import annotations

from typing import Any


def is_of(thing: Any, package: str) -> bool:
    """True if the object's class, or one of its base classes, is defined in the package."""
    return any(base.__module__.partition(".")[0] == package for base in type(thing).__mro__)


def driver_connection(tx: Any) -> Any:
    """The driver's connection, in a transaction begun by SQLAlchemy: otherwise its commit would do nothing, and later
    writes be lost. None if `tx` has no such connection."""
    connection = getattr(tx, "connection", None)
    if callable(connection):  # Session.connection is a method; calling it begins the transaction
        tx = connection()
        connection = getattr(tx, "connection", None)
    driven = getattr(connection, "driver_connection", None)
    if driven is not None and not tx.in_transaction():
        tx.exec_driver_sql("select 1")
    return driven
