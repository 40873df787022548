"""Read an SQLite file that this process may not write: another user's, one on a read-only disk, or one whose log cannot
be created.

A reader creates no files: a log, or an index of the log, that another user made would lock the writers out.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from ...errors import SchemaError, StoreUnavailable
from . import schema

TRIES, PAUSE_S = 5, 0.02


def why_read_only(path: Path) -> str:
    """Return why this process may only read the file; empty if it may write."""
    if not path.exists():
        return ""
    if not _may_write(path):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"{path} lies on a file system that is mounted read-only"
        return f"this user may only read {path}"
    log, index = _beside(path)
    for part in (log, index):
        if part.exists() and not _may_write(part):
            return f"this user may write {path} and only read {part}"
    if not (log.exists() and index.exists()) and not _may_write(log.parent):
        return f"this user may write {path}, but cannot make its log in {log.parent}"
    return ""


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _beside(path: Path) -> tuple[Path, Path]:
    """Return the paths of the file's write-ahead log, and of the log's shared index."""
    real = path.resolve()
    return real.with_name(f"{real.name}-wal"), real.with_name(f"{real.name}-shm")


class Reading:
    """Opens a file for reading only. While no process has the file open for writing there is no log, and the file is
    opened as immutable; after each read a check makes sure that it did not change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._still: tuple[int, ...] | None = None  # the file's state when it was opened; None if a writer had it open

    def connect(self) -> sqlite3.Connection:
        """Connect for reading. Raises StoreUnavailable for a log that only a writer can read, sqlite3.Error. Retries
        errors due to a starting writer, which makes the log before its index, or to the last, which removes both."""
        for left in reversed(range(TRIES)):
            opened: sqlite3.Connection | None = None
            try:
                opened = self._open()
                opened.execute("pragma schema_version").fetchone()  # SQLite opens file and log only now
                return opened
            except (sqlite3.Error, StoreUnavailable) as error:
                if opened is not None:
                    opened.close()
                if not left or not passes(error):
                    raise
                time.sleep(PAUSE_S)
        raise AssertionError("unreachable")

    def _open(self) -> sqlite3.Connection:
        log, index = _beside(self._path)
        how = "readonly_shm=1"
        self._still = None
        if not log.exists() or (log.stat().st_size == 0 and not index.exists()):
            how, self._still = "immutable=1", self._seen()
        elif not index.exists():
            raise StoreUnavailable(
                f"{log} holds commits that cannot be read without {index.name}, which a reader does not make; open the "
                "store once as a user who may write"
            )
        uri = f"{self._path.resolve().as_uri()}?mode=ro&{how}"
        return sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)

    def is_over(self) -> bool:
        """True if another process may have written since the file was opened, so that data read may be inconsistent."""
        return self._still is not None and self._still != self._seen()

    def _seen(self) -> tuple[int, ...]:
        file, (log, _) = self._path.stat(), _beside(self._path)
        return file.st_ino, file.st_mtime_ns, file.st_ctime_ns, file.st_size, int(_length(log) > 0)


def passes(error: Exception) -> bool:
    """True if the error may come from a writer that starts or ends, so that another try may succeed."""
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        return name.startswith("SQLITE_READONLY") or name == "SQLITE_CANTOPEN"
    return isinstance(error, StoreUnavailable)


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def require_schema(c: sqlite3.Connection, path: Path, why: str) -> None:
    """Raise SchemaError unless the file can be read without a migration; `why` says why it cannot be migrated."""
    schema.require_known(c.execute, path)
    at, known = schema.version(c.execute), schema.MIGRATIONS[-1]
    if at < known:
        has = f"has schema {at}" if at else "holds nothing of redrive's"
        raise SchemaError(
            f"{path} {has}, this redrive reads {known}, and {why}; let a user who may write run `redrive store upgrade`"
        )
