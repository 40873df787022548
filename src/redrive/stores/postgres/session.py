"""A session with the PostgreSQL server: transactions in one round trip if possible, repeated after temporary errors,
each no longer than the URL's `timeout`; and the server's clock, estimated without requests."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, TypeVar

import psycopg
from msgspec import Struct

from ...chance import uniform
from ...errors import ConfigError, ReadOnly, StoreError, StoreUnavailable
from ...urls import shown
from ..clock import Clock
from ..pool import ConnectionPool
from .connection import (
    LOCKED,
    Connection,
    Standby,
    TooSlow,
    code_of,
    is_beyond,
    is_lost,
    open_error,
    passes,
    store_error,
)
from .notifications import SLACK_MS, DueSpan, named, payload, spots_of
from .url import OPTIONS, PostgresUrl

T = TypeVar("T")
RETRY_FOR_S = 2.0  # how long a transaction is repeated, once at least: shorter than a worker's own patience
BACKOFF_S = (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.4, 0.4, 0.4, 0.4)
CANCEL_S = 0.5
IDLE_MAX_S = 1.5  # longest pause in a transaction: its process may be suspended while it holds locks
# Every statement of the hot path walks an index, a few rows at a time. The planner's statistics of a queue may be
# outdated: for a queue that was empty a minute ago it would sort all messages. These settings prevent that.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
_log = logging.getLogger("redrive.stores")
_BEGIN = "begin isolation level read committed read write"


class PostgresServer(Struct, frozen=True):
    """Facts about the server, read when a connection opens."""

    pooled: bool  # True if a pooler is between this process and the server
    now_ms: int
    standby: bool
    version: int  # the server's version: 150004 means 15.4
    encoding: str


class Session:
    """Runs transactions on the server of a URL. Thread-safe, even after a fork. Connects at first use.

    Raises the errors of errors.py: StoreUnavailable when the server is unreachable, too slow or stopping; StoreFull
    when the server has no space. Errors of `work` itself pass through, and then nothing was written.
    """

    pooled: bool
    url: PostgresUrl
    schema: str
    where: str

    def __init__(self, url: PostgresUrl, *, failpoint: Callable[[str], None] = lambda point: None) -> None:
        _admit(url)
        self.url, self.schema, self.where = url, url.schema, url.shown
        self.channel: str = f"redrive_{hashlib.blake2b(url.schema.encode(), digest_size=6).hexdigest()}"
        self.origin: str = secrets.token_hex(4)  # marks notifications of this process, so that it ignores them
        self.read_only = ""  # why writes are impossible; empty if they are possible
        self.pooled = False  # True: a pooler is in between, so session settings cannot be kept
        self.on_change: Callable[[Iterable[str]], None] = lambda queues: None  # set by the listener
        # Set by the floors, to know where in the due index messages may have appeared.
        self.on_late: Callable[[str, Sequence[DueSpan]], None] = lambda queue, spots: None
        self.store_ms: Callable[[], int] = self.now_ms  # the store's clock, which tests set by hand
        # Quarantines messages that have a number at the end of its range, after a statement failed for one; returns
        # True if there were any.
        self.mend: Callable[[], bool] = lambda: False
        self._failpoint, self._clock, self._opening = failpoint, Clock(), Lock()
        self.saw_clock: Callable[[int, float], None] = self._clock.saw
        self._silent = False  # True: a notification was refused once, and this was logged
        self._first: PostgresServer | None = None
        self._identity: tuple[str, str] | None = None
        self._pool = ConnectionPool("PostgreSQL", self._connect, url.pool)

    # -- transactions

    def run(self, work: Callable[[Connection], T], *, wake: Collection[str] = (), again: bool = True) -> T:
        """Run `work` in a transaction; returns the value of `work` after the commit. After a temporary error or a lost
        connection the transaction is repeated; with `again=False`, not once the commit was sent.

        `wake` names the queues whose waiters are woken after the commit; `work` may fill it. `work` must not use the
        session itself.
        """

        def do(c: Connection) -> T:
            self._begin(c)
            value = work(c)
            with self._committed(c), c.pipeline():
                self._commit(c, wake)
            if wake:
                self._tell_of(c, wake)
            return value

        return self._transact(do, wake, again)

    def pipeline(
        self,
        work: Callable[[Connection, psycopg.Pipeline], T],
        *,
        wake: Collection[str] = (),
        again: bool = True,
        locked: bool = True,
    ) -> T:
        """Like `run`, in pipeline mode: begin, statements and commit are one round trip, unless `work` fetches results.
        Cursors that `work` returns can be read afterwards. With `locked=False`, a lock timeout is raised at once."""

        def do(c: Connection) -> T:
            with self._committed(c), c.pipeline() as pipeline:
                try:
                    self._begin(c)
                    value = work(c, pipeline)
                    self._commit(c, wake)
                except psycopg.Error as error:
                    if is_lost(error):
                        self._stop(c, error)
                        c.drop()  # leaving the pipeline would wait for replies that never come
                    raise
            if wake:
                self._tell_of(c, wake)
            return value

        return self._transact(do, wake, again, locked)

    def look(self, sql: str, params: Sequence[Any] | dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of one statement that only reads."""
        return self._attempt(lambda c: c.execute(sql, params).fetchall(), True)

    def read(self, do: Callable[[Connection], T]) -> T:
        """Return the value of `do`, which only reads; each of its statements is a transaction of its own."""
        return self._attempt(do, True)

    def _transact(self, do: Callable[[Connection], T], wake: Collection[str], again: bool, locked: bool = True) -> T:
        if self.read_only:
            raise ReadOnly(f"{self.where}: {self.read_only}; nothing was changed")
        try:
            value = self._attempt(do, again, locked)
        except StoreError as error:
            if not (is_beyond(error) and self.mend()):
                raise
            value = self._attempt(do, again, locked)
        self._failpoint("committed")
        if wake:
            self.on_change(wake)
        return value

    def _begin(self, c: Connection) -> None:
        c.began_ms = self.store_ms()
        c.execute(_BEGIN)
        if self.pooled:  # for this transaction only, as another client may get the connection next
            c.execute(self._settings("true"))

    def _commit(self, c: Connection, wake: Collection[str]) -> None:
        """Send the commit, and after it the notifications, as a transaction that does not wait for the disk: since
        notifications lock the whole database, a slow flush would delay every commit."""
        self._failpoint("commit")
        c.committing = True
        c.commit_sent = c.execute("commit")
        for queue in named(wake) if wake else ():
            c.execute(
                "select set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)",
                (self.channel, payload(self.origin, queue, c.began_ms, spots_of(wake, queue))),
            )

    def _tell_of(self, c: Connection, wake: Collection[str]) -> None:
        """Report the commit and its past due times to the floors of this process."""
        for queue in named(wake):
            self.on_late(queue, [(c.began_ms - SLACK_MS, self.store_ms()), *spots_of(wake, queue)])

    @contextlib.contextmanager
    def _committed(self, c: Connection) -> Iterator[None]:
        """Ignore an error of the notification after a commit: that commit must be neither undone nor repeated, and
        waiters check for work periodically."""
        try:
            yield
        except psycopg.Error as error:
            if is_lost(error) or not c.has_committed:
                raise
            if not self._silent:
                self._silent = True
                _log.warning("%s: idle workers cannot be told of work: %s", self.where, " ".join(str(error).split()))

    # -- repetition

    def _attempt(self, do: Callable[[Connection], T], again: bool, locked: bool = True) -> T:
        start_s = time.monotonic()
        deadline_s = start_s + self.url.timeout_s
        for nth, delay_s in enumerate((*BACKOFF_S, None)):
            c: Connection | None = None
            try:
                c = self._pool.take(deadline_s)
                c.deadline_s, c.committing, c.commit_sent = deadline_s, False, None
                value = do(c)
            except psycopg.Error as error:
                sent = c is not None and c.committing
                self._put_back(c, error)
                now_s = time.monotonic()
                # If the process stood still, the server ended the first attempt: its time says nothing of the second.
                late = (nth > 0 and now_s - start_s > RETRY_FOR_S) or now_s > deadline_s
                late = late or (code_of(error) == LOCKED and not locked)
                if delay_s is None or late or not passes(error) or (sent and not again):
                    raise self._typed(error, sent and not again) from error
                time.sleep(uniform(delay_s / 2, delay_s))
            except BaseException as error:
                self._put_back(c, error)
                raise
            else:
                self._pool.give(c)
                return value
        raise AssertionError("unreachable")

    def _put_back(self, c: Connection | None, error: BaseException) -> None:
        if isinstance(error, psycopg.Error) and is_lost(error):
            self._pool.clear()
        if c is None:
            return
        self._stop(c, error)
        try:
            lost = isinstance(error, psycopg.Error) and is_lost(error)
            if not c.closed and not lost and isinstance(error, Exception):
                c.rollback()
                return self._pool.give(c)
        except psycopg.Error:
            pass
        self._pool.lose(c)

    def _stop(self, c: Connection, error: BaseException) -> None:
        """Cancel the statement that the server still executes after a timeout; the cancel request may be lost."""
        if isinstance(error, TooSlow) and not c.closed:
            with contextlib.suppress(psycopg.Error):
                c.cancel_safe(timeout=CANCEL_S)

    def _typed(self, error: psycopg.Error, unknown: bool) -> Exception:
        if unknown:
            return StoreUnavailable(f"{self.where}: the connection broke during the commit: it may have taken place")
        if isinstance(error, TooSlow):
            return StoreUnavailable(
                f"{self.where}: no answer within {self.url.timeout_s:g} s (?timeout=); nothing was acknowledged"
            )
        return store_error(error, "PostgreSQL refused" if error.sqlstate else "the connection failed", self.where)

    # -- connecting

    def open(self) -> PostgresServer:
        """The facts about the server, once reached. Raises ConfigError if the server rejects the URL's settings."""
        if self._first is None:
            with self._opening:
                if self._first is None:
                    try:
                        self._pool.give(self._pool.take(time.monotonic() + self.url.timeout_s))
                    except psycopg.Error as error:
                        raise open_error(error, self.where) from error
        assert self._first is not None
        return self._first

    def _connect(self, deadline_s: float) -> Connection:
        """Open a connection for the pool."""
        c, server = self._reach(deadline_s, self.url.conninfo)
        self._first = self._first or server
        self.pooled = server.pooled
        return c

    def connect(self, deadline_s: float, conninfo: str = "") -> Connection:
        """Open a connection outside the pool, to this server or that of `conninfo`. Raises psycopg's errors."""
        return self._reach(deadline_s, conninfo or self.url.conninfo)[0]

    def _reach(self, deadline_s: float, conninfo: str) -> tuple[Connection, PostgresServer]:
        left_s = deadline_s - time.monotonic()
        c = Connection.connect(conninfo, autocommit=True, **self._defaults(conninfo, left_s))
        try:
            c.deadline_s = deadline_s
            return c, self._set_up(c)
        except BaseException:
            c.drop()
            raise

    def _defaults(self, conninfo: str, left_s: float) -> dict[str, Any]:
        """Options for a connection, unless the URL sets them, that limit how long a dead network can block it."""
        said = psycopg.conninfo.conninfo_to_dict(conninfo)
        defaults: dict[str, Any] = {
            "connect_timeout": max(2, int(min(left_s, self.url.timeout_s / 2))),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": int(self.url.timeout_s * 1000),
            "client_encoding": "utf8",
            "fallback_application_name": "redrive",
        }
        return {name: value for name, value in defaults.items() if name not in said}

    def _set_up(self, c: Connection) -> PostgresServer:
        """Read the facts about the server, and set up the session, except through a pooler, which shares sessions. A
        pooler gives its clients other process ids than the server's, by which it is noticed."""
        sent_s = time.monotonic()
        row = c.execute(
            "select pg_backend_pid() <> %(key)s, floor(extract(epoch from clock_timestamp()) * 1000)::bigint, "
            "pg_is_in_recovery(), current_setting('server_version_num')::int, current_setting('server_encoding'), "
            f"case when pg_backend_pid() = %(key)s then ({self._settings('false')}) end",
            {"key": c.pgconn.backend_pid},
        ).fetchone()
        assert row is not None
        server = PostgresServer(*row[:5])
        self.saw_clock(server.now_ms, sent_s)
        prepares = self.url.prepare == "on" or (self.url.prepare == "auto" and not server.pooled)
        c.prepare_threshold = 2 if prepares else None
        if server.standby:
            raise Standby("the server is a standby, which only reads; add target_session_attrs=read-write to the URL")
        return server

    def _settings(self, local: str) -> str:
        """Return SQL that sets the session's settings. They end the transaction of a suspended process, and make
        commits wait for the disk unless the URL says otherwise."""
        wait_ms = int(self.url.timeout_s * 1000)
        idle_ms = min(wait_ms, int(IDLE_MAX_S * 1000))
        commit = "current_setting('synchronous_commit')"
        settings = {
            **{name: f"'{value}'" for name, value in PLANS.items()},
            "idle_in_transaction_session_timeout": f"'{idle_ms}'",
            "statement_timeout": f"'{wait_ms}'",
            "synchronous_commit": f"'{self.url.synchronous_commit}'"
            if self.url.synchronous_commit
            else f"case {commit} when 'off' then 'on' else {commit} end",
        }
        return "select " + " || ".join(f"set_config('{name}', {value}, {local})" for name, value in settings.items())

    def identity(self) -> tuple[str, str]:
        """The identity of the server's data, and the database: the same for all writers, by any address."""
        if self._identity is None:
            rows = self.look("select system_identifier::text, current_database()::text from pg_control_system()")
            self._identity = (rows[0][0], rows[0][1])
        return self._identity

    def forget_identity(self) -> None:
        self._identity = None

    # -- the clock

    def now_ms(self) -> int:
        """Return the server's estimated time in ms. Contacts the server only before the first estimate."""
        now = self._clock.now_ms()
        if now is None:
            self.open()
            now = self._clock.now_ms()
        assert now is not None
        return now

    def close(self) -> None:
        self._pool.close()


_UNKNOWN = re.compile(r'query parameter: "([A-Za-z_][A-Za-z0-9_]*)"')  # libpq's other messages may quote a password


def _admit(url: PostgresUrl) -> None:
    """Raise ConfigError for a URL that libpq cannot parse, without libpq's message, which may quote the password."""
    for conninfo in {url.conninfo, url.listen} - {"", "off"}:
        try:
            psycopg.conninfo.conninfo_to_dict(conninfo)
        except psycopg.Error as error:
            unknown = _UNKNOWN.search(str(error))
            why = f"invalid URI query parameter {unknown[1]!r}" if unknown else "it cannot be read"
            raise ConfigError(
                f"store URL {shown(conninfo)!r}: {why}; known: {', '.join(OPTIONS)}, and libpq's connection parameters"
            ) from None
