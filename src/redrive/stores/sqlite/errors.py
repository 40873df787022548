"""Translate errors of sqlite3 to those of redrive."""

from __future__ import annotations

import sqlite3

from ...errors import StoreError, StoreFull, StoreUnavailable


def store_error(error: sqlite3.Error, what: str = "SQLite could not commit") -> StoreError:
    """Return the redrive error for an error of sqlite3: file or disk full, temporarily unavailable, or broken."""
    code = getattr(error, "sqlite_errorname", "")
    text = f"{what}: {error} ({code or type(error).__name__}); nothing was acknowledged"
    if code == "SQLITE_FULL":
        return StoreFull(text)
    if code.startswith(
        ("SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PROTOCOL")
    ):
        return StoreUnavailable(text)
    return StoreError(text)
