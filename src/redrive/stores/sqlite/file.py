"""One open SQLite file: its connections and clock, commits that threads share, and what forks need."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ...config.resolve import is_shared
from ...errors import ConfigError, Conflict, ReadOnly, StoreError, StoreFull, StoreUnavailable
from ...files import make_database
from ...message import Message
from ...store import Cells, Store, Traits
from ...system import at_fork
from ..failpoints import no_failpoint
from ..meta import text
from . import cells, schema
from .batches import SqliteBatches
from .beside import FileReaders
from .cells import SqliteCells
from .clock import Host, StoreClock
from .damage import Damages
from .errors import store_error
from .groups import SqliteGroups
from .reading import TRIES, Reading, passes, require_schema, why_read_only
from .triage import SqliteTriage
from .wake import SqliteWaiter, Waker, wake_dir
from .writes import Writes

T = TypeVar("T")
BUSY_TIMEOUT_S = 5.0
SWEEP_EVERY_MS = 60_000
SET_ASIDE_MAX = 100  # most damaged messages that one exchange reports
Seqs = Callable[[sqlite3.Connection], list[int]]


_OF_THE_CALLER = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)


class _Work:
    """One caller's part of a shared commit."""

    __slots__ = ("do", "done", "error", "synced", "value")

    def __init__(self, do: Callable[[sqlite3.Connection], Any], synced: bool) -> None:
        self.do, self.synced, self.done = do, synced, False
        self.value: Any = None
        self.error: BaseException | None = None


class FileWriter:
    """The only writing connection, opened on demand. The thread that gets the lock commits for all that wait."""

    lock: threading.Lock
    closed: bool

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], synchronous: str, failpoint: Callable[[str], None]
    ) -> None:
        self._connect, self._synchronous, self._failpoint = connect, synchronous, failpoint
        self.begun: Callable[[sqlite3.Connection], None] = lambda c: None  # called at the beginning of each commit
        self.undone: Callable[[], None] = lambda: None  # called after a rollback of a commit
        self._now_synchronous = synchronous
        self.lock = threading.Lock()
        self.waiting: deque[_Work] = deque()
        self._connection: sqlite3.Connection | None = None
        self.closed = False
        self.read_only = ""  # why the file cannot be written; empty if it can

    def run(self, do: Callable[[sqlite3.Connection], T], *, synced: bool = True) -> T:
        """Run `do`; returns its value once what it wrote is committed and, if `synced`, on the disk. Raises the errors
        of `do`, or StoreError; then nothing was written."""
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
            self._failpoint("commit")
            c.execute("commit")
            self._failpoint("committed")
        except BaseException as error:
            self._undo()
            self.undone()
            typed = store_error(error) if isinstance(error, sqlite3.Error) else error
            if not isinstance(typed, Exception):  # an interrupt is for the interrupted thread alone
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
        """Set the sync mode. The next commit with sync also syncs one without it: both append to the same log."""
        wanted = self._synchronous if synced else "normal"
        if wanted != self._now_synchronous:
            c.execute(f"pragma synchronous={wanted}")
            self._now_synchronous = wanted

    def _do(self, c: sqlite3.Connection, work: _Work) -> None:
        """Run one part of a shared commit. Errors of the caller undo that part, errors of the engine are raised."""
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
        """Roll back the commit. Never raises: callers that wait would take a failed commit for a success."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("rollback")
        except sqlite3.Error:  # a connection that cannot roll back is useless
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


class SqliteFile(Store):
    """The parts that all of the store shares. A write quarantines damaged rows in its way, then starts again."""

    traits: Traits = Traits(
        name="sqlite", one_machine=True, batches=True, hastens=True, edits=True, takes_over=True, replaces=True
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "full",
        clock_ms: Callable[[], int] | None = None,
        host: Host | None = None,
    ) -> None:
        if sqlite3.sqlite_version_info < (3, 35):
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old; redrive needs 3.35 or later")
        if synchronous.lower() not in ("full", "normal", "extra"):
            raise ConfigError(
                f"store option synchronous={synchronous!r}; expected full, extra, or normal (opts out of durability on "
                "power loss)"
            )
        self.path: Path = Path(path).absolute()
        why = why_read_only(self.path)
        self._reading = Reading(self.path) if why else None
        self._inode: tuple[int, int] | None = None
        self.traits = replace(type(self).traits, read_only=why)
        self.lock_file: Path | None = self.path.with_name(self.path.name + "-shm")
        self.state_dir: Path | None = self.path.with_name(self.path.name + "-workers")
        self._synchronous = synchronous.lower()
        self._sql = schema.statements()
        self._clock = StoreClock(self._sql, clock_ms, host)
        self._clock_ms = self._clock.now_ms
        self._groups = SqliteGroups(self._sql)
        self._batches = SqliteBatches(self._sql)
        self._changes = Writes(self._sql, self._groups, self._batches)
        self._triage = SqliteTriage(self._sql, self._groups, self._batches, self._changes)
        self._damages = Damages(self._sql, self._groups, self._batches)
        self._set_aside: list[Message] = []  # quarantined by other calls; the next exchange reports them
        self._by_lane = ""  # suffix of statements that skip lanes of newer versions, once they are needed
        self.failpoint: Callable[[str], None] = no_failpoint  # tests set one that kills the process or raises
        self._read_lock, self._beside = threading.RLock(), FileReaders(self._connect_reader)
        self._open()
        self.cells: Cells = SqliteCells(
            self._sql, self._read, self._writer.run, self.now_ms, self._clock_ms, self._sweep_cells
        )

    def _open(self) -> None:
        self._writer = FileWriter(self._connect, self._synchronous, lambda point: self.failpoint(point))
        self._reader: sqlite3.Connection | None = None
        try:
            if self._reading is None:
                make_database(self.path, shared=is_shared())
            self._reader = reader = self._connect_reader()
            if self._reading is None:
                self._migrate(reader)
            else:
                require_schema(reader, self.path, self.traits.read_only)
                self._writer.read_only = self.traits.read_only
            self._clock.look(self._read)
        except BaseException as error:
            self._writer.close()
            self._disconnect_reader()
            if isinstance(error, sqlite3.Error):
                raise store_error(error, f"cannot open {self.path}") from error
            if isinstance(error, OSError):
                raise StoreUnavailable(f"cannot make {self.path}: {error.strerror or error}") from error
            raise
        self._writer.begun, self._writer.undone = self._clock.begin, self._clock.undo
        self._wake_folder = wake_dir(self.path)
        self._waker = Waker(self._wake_folder)
        self._waiters: dict[int, SqliteWaiter] = {}
        self._nudges = 0
        self._for_others = False  # True: the last exchange admitted more messages of groups than it claimed
        self._swept_ms = self._cells_swept_ms = self._clock_ms()
        _open_stores.add(self)

    def _before_fork(self) -> None:
        self._writer.lock.acquire()
        self._writer.disconnect()
        self._read_lock.acquire()
        self._disconnect_reader()
        self._beside.hold()

    def _after_fork(self, child: bool) -> None:
        if child:
            self._writer.waiting.clear()
            for waiter in self._waiters.values():
                waiter.leave()
            self._waiters.clear()
        self._nudges += 1  # so that waiters read the data_version of the new connection
        self._beside.release()
        self._read_lock.release()
        self._writer.lock.release()

    def _connect(self) -> sqlite3.Connection:
        if self._reading is not None:
            return self._reading.connect()
        c = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            self._make_wal(c)
            c.execute(f"pragma synchronous={self._synchronous}")
            c.execute("pragma cache_size=-8000")
        except BaseException:
            c.close()
            raise
        return c

    def _connect_reader(self) -> sqlite3.Connection:
        """Open a reading connection for which text that is not UTF-8 is no error: its bytes are escaped."""
        if self._writer.closed:
            raise StoreError("this SQLite store is closed; open another")
        c = self._connect()
        c.text_factory = _lenient
        return c

    def _make_wal(self, c: sqlite3.Connection) -> None:
        """Set WAL mode, trying again on "locked": if several processes open a new file at once, all but one get that
        error at once, whatever the timeout. Raises ConfigError if the mode cannot be set."""
        end_s = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                mode = c.execute("pragma journal_mode=wal").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end_s:
                    raise
            time.sleep(0.005)
        if mode != "wal":
            raise ConfigError(
                f"{self.path}: journal mode is {mode!r}, but redrive needs WAL; is it on a network file system?"
            )

    def _migrate(self, reader: sqlite3.Connection) -> None:
        schema.require_known(reader.execute, self.path)
        if schema.version(reader.execute) < schema.MIGRATIONS[-1]:
            self._writer.run(lambda c: schema.migrate(c, self._sql, self.path))

    def now_ms(self) -> int:
        self._clock.look(self._read)
        return self._clock_ms()

    def _write(self, work: Callable[[sqlite3.Connection], T], seqs: Seqs, *, synced: bool = True) -> T:
        """Like `FileWriter.run`, but if the work fails and rows that `seqs` returns are unreadable, these are
        quarantined, and the work is repeated."""
        try:
            return self._writer.run(work, synced=synced)
        except (StoreError, msgspec.MsgspecError, UnicodeError) as error:
            if isinstance(error, StoreUnavailable | StoreFull | Conflict):
                raise
            damaged = self._writer.run(lambda c: self._damages.set_aside(c, seqs(c), self._clock_ms()))
            if not damaged:
                raise
            self._set_aside = [*self._set_aside, *damaged][:SET_ASIDE_MAX]
        return self._writer.run(work, synced=synced)

    def _of_ids(self, ids: Iterable[str]) -> Seqs:
        listed = text(list(ids))
        sql = "select seq from message where id in (select value from json_each(?))"
        return lambda c: [row[0] for row in c.execute(sql, (listed,))]

    def _read(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        if not self._read_lock.acquire(blocking=self._reading is not None):
            return self._beside.read(sql, args)
        try:
            for left in reversed(range(TRIES)):
                try:
                    self._reader = self._reader or self._connect_reader()
                    rows = self._reader.execute(sql, args).fetchall()
                    if self._reading is None or not self._reading.is_over():
                        return rows
                except sqlite3.Error as error:
                    if self._reading is None or not left or not passes(error):
                        raise store_error(error, "SQLite could not read") from error
                self._disconnect_reader()
            raise StoreUnavailable(f"{self.path} is being written, and was read {TRIES} times in vain; try again")
        finally:
            self._read_lock.release()

    def _disconnect_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _one(self, c: sqlite3.Connection, name: str, *args: Any) -> Any:
        return c.execute(self._sql[name], args).fetchone()[0]

    def _sweep_cells(self, c: sqlite3.Connection, now: int) -> None:
        more = cells.sweep(c, self._sql, now)
        self._cells_swept_ms = now - SWEEP_EVERY_MS if more else now

    def close(self) -> None:
        _open_stores.discard(self)
        for waiter in self._waiters.values():
            waiter.close()
        self._waiters.clear()
        self._writer.close()
        with self._read_lock:
            self._disconnect_reader()
        self._beside.close()
        self._waker.close()


# A forked process does not inherit its parent's file locks, but SQLite in the child assumes so if one connection
# crossed the fork. Then the parent's last close would delete the log that the child commits to. So all connections are
# closed before a fork, and opened again on demand on both sides.
_open_stores: weakref.WeakSet[SqliteFile] = weakref.WeakSet()


_forking: list[SqliteFile] = []


def _before_fork() -> None:
    for store in list(_open_stores):
        store._before_fork()
        _forking.append(store)


def _after_fork(child: bool) -> None:
    while _forking:
        _forking.pop()._after_fork(child)


at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(child=False),
    after_in_child=lambda: _after_fork(child=True),
)


def _lenient(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
