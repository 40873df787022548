"""Additional connections for reading while the first one is busy: a page must not wait for a count of a million
messages."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

from .errors import store_error

CONNECTIONS = 2


class FileReaders:
    """Connections for reading, which `connect` opens on demand. Thread-safe."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._locks = [threading.RLock() for _ in range(CONNECTIONS)]
        self._open: list[sqlite3.Connection | None] = [None] * CONNECTIONS

    def read(self, sql: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Read with the first connection that is free, or wait for the last. Raises StoreError."""
        at = next((at for at, lock in enumerate(self._locks) if lock.acquire(blocking=False)), None)
        if at is None:
            at = CONNECTIONS - 1
            self._locks[at].acquire()
        try:
            connection = self._open[at] = self._open[at] or self._connect()
            return connection.execute(sql, args).fetchall()
        except sqlite3.Error as error:
            self._drop(at)
            raise store_error(error, "SQLite could not read") from error
        finally:
            self._locks[at].release()

    def hold(self) -> None:
        """Close the connections, and let no thread open one until `release`."""
        for at, lock in enumerate(self._locks):
            lock.acquire()
            self._drop(at)

    def release(self) -> None:
        for lock in self._locks:
            lock.release()

    def close(self) -> None:
        self.hold()
        self.release()

    def _drop(self, at: int) -> None:
        connection, self._open[at] = self._open[at], None
        if connection is not None:
            connection.close()
