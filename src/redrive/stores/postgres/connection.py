"""Connections to PostgreSQL whose waits end at a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Generator, Iterator
from math import inf
from typing import Any, TypeVar

import psycopg
from psycopg.generators import send
from psycopg.rows import TupleRow

from ...errors import ConfigError, EnqueueError, RedriveError, SchemaError, StoreError, StoreFull, StoreUnavailable

T = TypeVar("T")
_of_the_parent: list[psycopg.Connection[Any]] = []


class Whole(psycopg.Pipeline):
    """A pipeline that sends its statements together, once a result is needed.

    psycopg's pipeline sends each statement when it is executed. If the process is suspended between two of them, the
    server cannot end its transaction, since it does not count time between statements until it gets a Sync. So each
    part here ends with a Sync. A transaction of a stopped process then completes, or is idle, for which there is a
    limit (`idle_in_transaction_session_timeout`).
    """

    def _communicate_gen(self) -> Any:
        return
        yield

    def _fetch_gen(self, *, flush: bool) -> Any:
        if flush and self.result_queue:
            self._enqueue_sync()
        while self.command_queue:
            self.command_queue.popleft()()
        yield from send(self.pgconn)
        yield from super()._fetch_gen(flush=False)

    def _exit_gen(self) -> Any:
        yield from self._sync_gen()


class Connection(psycopg.Connection[TupleRow]):
    """A connection whose waits end at `deadline_s`."""

    deadline_s: float = inf  # when its waits end, by time.monotonic()
    committing = False  # True: the commit was sent, and its outcome is unknown
    commit_sent: psycopg.Cursor[TupleRow] | None = None  # the cursor with the commit's result
    began_ms = 0  # when the transaction began, by the store's clock
    idle_since_s: float = 0.0

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(_bounded(gen, self), *args, **options)

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        if self._pipeline is None:
            self._pipeline = Whole(self)
        with super().pipeline() as pipeline:
            yield pipeline

    @property
    def has_committed(self) -> bool:
        """True if the server has confirmed the commit."""
        result = None if self.commit_sent is None else self.commit_sent.pgresult
        return result is not None and result.command_status == b"COMMIT"

    def is_silent(self) -> bool:
        """True if no data arrived while the connection was idle. Data means that the server closed or lost it."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not self.broken and not poll.poll(0)

    def drop(self) -> None:
        """Close the connection without a request to the server."""
        with contextlib.suppress(Exception):
            self.close()

    def leave_to_parent(self) -> None:
        """In a forked child: forget the parent's connection without a message to the server. The socket is closed below
        libpq, so that the server notices the parent's death; the object is kept, so that no finalizer runs."""
        _of_the_parent.append(self)
        if not self.closed:
            with contextlib.suppress(OSError):
                os.close(self.pgconn.socket)


def _bounded(gen: Generator[Any, Any, T], connection: Connection) -> Generator[Any, Any, T]:
    """Return what `gen` returns, psycopg's generator; raise TooSlow if it still waits at the connection's deadline."""
    try:
        wants = next(gen)
        while True:
            ready = yield wants
            if not ready and time.monotonic() >= connection.deadline_s:
                gen.close()
                raise TooSlow("the server did not answer in time")
            wants = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


LOCKED = "55P03"  # code: a lock was not free within `lock_timeout`
_AGAIN = {"40001", "40P01", LOCKED}  # codes: rolled back, may pass soon, and the connection is usable
# Codes of a server that stops, starts or is no longer the primary: a new connection may reach the new primary.
_ELSEWHERE = {"57P01", "57P02", "57P03", "57P05", "25006", "25P03", "53300"}
_FULL = {"53100", "53200"}
_SCHEMA = {"3F000", "42P01", "42703", "42883"}
_TEXT = {"22021", "22P05"}  # codes: the database's encoding cannot hold a text
_SETTINGS = {"28000", "28P01", "3D000", "42501", "0A000"}
# An error of connecting has no code: these are parts of its message.
_REFUSED = (
    "password authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "authentication method",
    "unsupported startup parameter",
    "no such database",
    "not allowed to connect",
    "is not permitted to log in",
    "invalid connection option",
    "invalid sslmode",
    "could not translate host name",
    "certificate",
)
_NO_ROOM = ("too many clients", "remaining connection slots", "too many connections", "no more connections allowed")


class TooSlow(psycopg.OperationalError):
    """The server did not answer before the connection's deadline."""


class Standby(psycopg.OperationalError):
    """The server is read-only, as a standby is."""


def code_of(error: psycopg.Error) -> str:
    return error.sqlstate or ""


def passes(error: psycopg.Error) -> bool:
    """True if a transaction that failed with this error may succeed when it is repeated soon."""
    code = code_of(error)
    if code == "23505":
        # Two processes gave the same place, or created the same cell, at the same time: one of them repeats.
        return error.diag.constraint_name in ("message_place", "cell_pkey")
    if is_outdated(error):
        return True
    if code:
        return code in _AGAIN or code in _ELSEWHERE or code.startswith("08")
    return isinstance(error, psycopg.OperationalError) and not isinstance(error, TooSlow) and not is_refusal(error)


def is_beyond(error: BaseException) -> bool:
    """True if the error's cause is a number in a row at the end of its range, so that nothing can be added to it."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and code_of(cause) == "22003"


def is_refusal(error: psycopg.Error) -> bool:
    """True if the error means that the server or the name service rejected the settings in the URL."""
    return not error.sqlstate and any(words in str(error) for words in _REFUSED) and "starting up" not in str(error)


def is_outdated(error: psycopg.Error) -> bool:
    """True if a migration has changed the result of the prepared statement: a new connection prepares it again."""
    return code_of(error) == "0A000" and error.diag.source_function == "RevalidateCachedQuery"


def is_lost(error: psycopg.Error) -> bool:
    """True if the connection with this error is unusable, and all older ones too."""
    code = code_of(error)
    return (
        is_outdated(error)
        or code in _ELSEWHERE
        or code.startswith("08")
        or (not code and isinstance(error, psycopg.OperationalError))
    )


def store_error(error: psycopg.Error, what: str, where: str) -> RedriveError:
    """Return the redrive error for an error of psycopg that occurred while doing `what` at `where`."""
    code = code_of(error)
    words = " ".join(str(error).split()) or type(error).__name__
    text = f"{where}: {what}: {words}" + (f" ({code})" if code else "")
    if code in _FULL:
        return StoreFull(f"{text}; nothing was acknowledged")
    if code == "53300" or (not code and any(part in str(error) for part in _NO_ROOM)):
        return StoreUnavailable(
            f"{text}; raise max_connections, lower ?pool= of the store's URL, or put a pooler in front"
        )
    if code == "57014":
        return StoreUnavailable(f"{text}; the statement took too long: raise ?timeout= of the store's URL")
    if code == "23505" and error.diag.constraint_name == "message_id":
        return EnqueueError(
            f"a message with one of these ids is already stored; nothing was written ({where}: {words})"
        )
    if code in _SCHEMA:
        return SchemaError(f"{text}; run `redrive store upgrade`")
    if code == "42501":
        return StoreError(f"{text}; grant this role the rights that stand at the head of `redrive store sql`")
    if code in _TEXT:
        return EnqueueError(f"{text}; nothing was written")
    if code in _AGAIN or code in _ELSEWHERE or code.startswith(("08", "53", "57", "58")):
        return StoreUnavailable(f"{text}; nothing was acknowledged, the same call may work later")
    if not code and isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(f"{text}; nothing was acknowledged, the same call may work later")
    return StoreError(text)


def open_error(error: psycopg.Error, where: str) -> RedriveError:
    """Return the redrive error for an error of the first connection: a refusal then means a wrong setting."""
    if is_refusal(error) or code_of(error) in _SETTINGS or isinstance(error, psycopg.ProgrammingError):
        words = " ".join(str(error).split())
        return ConfigError(f"{where}: {words}; check user, password, host and database of the store's URL")
    return store_error(error, "cannot connect", where)
