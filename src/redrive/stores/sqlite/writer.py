"""One writing connection per process, and commits that threads share."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import ReadOnly, StoreError, StoreFull, StoreUnavailable

T = TypeVar("T")
_OF_THE_CALLER = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)


class _Work:
    """One caller's part of a commit."""

    __slots__ = ("do", "done", "error", "synced", "value")

    def __init__(self, do: Callable[[sqlite3.Connection], Any], synced: bool) -> None:
        self.do, self.synced, self.done = do, synced, False
        self.value: Any = None
        self.error: BaseException | None = None


class Writer:
    """The one writing connection, opened when it is needed; whoever gets the lock commits for everybody who waits."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], synchronous: str, seam: Callable[[str], None]
    ) -> None:
        self._connect, self._synchronous, self._seam = connect, synchronous, seam
        self.begun: Callable[[sqlite3.Connection], None] = lambda c: None  # called at the beginning of each commit
        self.undone: Callable[[], None] = lambda: None  # and where nothing of one was written
        self._now_synchronous = synchronous
        self.lock = threading.Lock()
        self.waiting: deque[_Work] = deque()
        self._connection: sqlite3.Connection | None = None
        self.closed = False
        self.read_only = ""  # why nothing can be written

    def run(self, do: Callable[[sqlite3.Connection], T], *, synced: bool = True) -> T:
        """`do`'s value, once what it wrote is committed and, if `synced`, on the disk. Raises what `do` raised, or
        StoreError; then nothing of it was written.
        """
        if self.read_only:
            raise ReadOnly(f"{self.read_only}; nothing was changed")
        work = _Work(do, synced)
        self.waiting.append(work)
        with self.lock:
            if not work.done:
                self._commit([self.waiting.popleft() for _ in range(len(self.waiting))])
        if work.error is not None:
            raise work.error
        value: T = work.value
        return value

    def _commit(self, group: list[_Work]) -> None:
        try:
            if self.closed:
                raise StoreError("this SQLite store is closed; open another")
            c = self._connection or self._open()
            self._set_sync(c, any(work.synced for work in group))
            c.execute("begin immediate")
            self.begun(c)
            if len(group) == 1:
                group[0].value = group[0].do(c)
            else:
                for work in group:
                    self._do(c, work)
            self._seam("commit")
            c.execute("commit")
            self._seam("committed")
        except BaseException as error:
            self._undo()
            self.undone()
            typed = store_error(error) if isinstance(error, sqlite3.Error) else error
            if not isinstance(typed, Exception):  # an interrupt is only for the thread it hit
                typed = StoreUnavailable("the commit was interrupted; nothing was acknowledged")
            for work in group:
                work.error = typed
            if not isinstance(error, sqlite3.Error):
                raise
        finally:
            for work in group:
                work.done = True

    def _open(self) -> sqlite3.Connection:
        self._connection, self._now_synchronous = self._connect(), self._synchronous
        return self._connection

    def _set_sync(self, c: sqlite3.Connection, synced: bool) -> None:
        """A commit that need not be synced leaves that to the next one that must: both append to the same log."""
        wanted = self._synchronous if synced else "normal"
        if wanted != self._now_synchronous:
            c.execute(f"pragma synchronous={wanted}")
            self._now_synchronous = wanted

    def _do(self, c: sqlite3.Connection, work: _Work) -> None:
        """One of several: errors that are the caller's own undo its part alone; errors of the engine end the whole
        group.
        """
        c.execute("savepoint work")
        try:
            work.value = work.do(c)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, _OF_THE_CALLER):
                raise
            c.execute("rollback to work")
            work.error = store_error(error) if isinstance(error, sqlite3.Error) else error
        c.execute("release work")

    def _undo(self) -> None:
        """Never raises: who waits would take a failed commit for a success."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:  # a connection that cannot even roll back is of no more use
            self.disconnect()

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.disconnect()


def store_error(error: sqlite3.Error, what: str = "SQLite could not commit") -> StoreError:
    """The typed error for one of sqlite3's: full, unavailable for now, or broken."""
    code = getattr(error, "sqlite_errorname", "")
    text = f"{what}: {error} ({code or type(error).__name__}); nothing was acknowledged"
    if code == "SQLITE_FULL":
        return StoreFull(text)
    if code.startswith(
        ("SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PROTOCOL")
    ):
        return StoreUnavailable(text)
    return StoreError(text)
