"""Wait for work: LISTEN on a connection of its own, and a periodic check for work without a notification.

The waiting thread itself sleeps on the connection's socket and on a pipe, so a notification costs no hop between
threads. Of several waiting threads, one reads the connection and wakes the others through their pipes. A notification
that is lost, or impossible (through a pooler, `?listen=off`), costs latency, never work: every waiter checks every
LOOK_EVERY_S seconds, or every POLL_EVERY_S without LISTEN.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable
from math import inf

import psycopg

from ..pool import heirs
from .connection import Connection
from .notifications import read
from .session import Session

LOOK_EVERY_S = 2.0
POLL_EVERY_S = 0.2
CONNECT_AGAIN_S = (0.1, 0.5, 2.0, 10.0)
TEND_EVERY_S = 5.0  # how often notifications are read while no thread waits for them
HEAR_EVERY_S = 0.25  # how often notifications are read after a recent `attend`


class _Waiter:
    """A waiting thread, and the pipe that wakes it."""

    def __init__(self) -> None:
        self.queues: Collection[str] = ()
        self.woken = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def wake(self) -> None:
        self.woken = True
        self.poke()

    def poke(self) -> None:
        """Make the thread check for work, even if there may be none."""
        with contextlib.suppress(OSError):  # the pipe is full of pokes, or closed
            os.write(self._write, b"!")

    def sleep(self, timeout_s: float, socket: int | None) -> bool:
        """Sleep until data arrives, a poke or the timeout; True if data arrived on `socket`."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if socket is not None:
            poll.register(socket, select.POLLIN)
        came = [fd for fd, _ in poll.poll(max(0.0, timeout_s) * 1000)]
        if self._read in came:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)
        return socket in came

    def __del__(self) -> None:
        os.close(self._read)  # closed last: a closed descriptor's number may be reused for another file
        os.close(self._write)


class Listener:
    """Wakes waiting threads of this process when it, or another process, has written due messages.

    `tick_s` is how often a clock that is set by hand is read again.
    """

    def __init__(self, link: Session, *, now_ms: Callable[[], int] | None = None, tick_s: float = inf) -> None:
        self._link, self._now_ms, self._tick_s = link, now_ms or link.now_ms, tick_s
        self._nudges = 0
        self._closed = False
        self._begin()
        link.on_change = self.wake
        heirs.add(self)

    def _begin(self) -> None:
        self._seen = threading.local()  # nudges that each thread has seen
        self._lock = threading.Lock()
        self._lead = threading.Lock()  # held by the thread that reads the connection
        self._ended = threading.Event()
        self._called, self._attended_s = threading.Event(), -inf
        self._keeper = self._new_keeper()
        self._waiting: dict[int, _Waiter] = {}
        self._spare: list[_Waiter] = []
        self._connection: Connection | None = None
        self._failures, self._again_s = 0, 0.0

    def in_child(self) -> None:
        connection = self._connection
        self._begin()
        if connection is not None:
            connection.leave_to_parent()

    # -- waiting

    def wait(self, queues: Collection[str], due: Callable[[], float | None], timeout_ms: int) -> None:
        """Return when one of `queues` is notified, at the time that `due` returns (ms of the store's clock; None:
        never), on a nudge, or after the timeout. `due` is called once listening has begun, so that no message is
        missed, and again periodically; its errors are raised."""
        end_s = time.monotonic() + timeout_ms / 1000
        waiter = self._enter(queues)
        try:
            self._listen(end_s)
            self._catch_up(waiter)
            while not self._is_over(waiter, due(), end_s):
                pass
        finally:
            self._leave(waiter)

    def _enter(self, queues: Collection[str]) -> _Waiter:
        with self._lock:
            waiter = self._spare.pop() if self._spare else _Waiter()
            waiter.queues, waiter.woken = queues, False
            self._waiting[id(waiter)] = waiter
        return waiter

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            self._waiting.pop(id(waiter), None)
            if not self._closed:
                self._spare.append(waiter)
            other = next(iter(self._waiting.values()), None)
        if other is not None:
            other.poke()  # this waiter may have to read the connection now

    def _is_over(self, waiter: _Waiter, due_ms: float | None, end_s: float) -> bool:
        """Sleep; returns True if the wait is over, False if the next check is due."""
        look_s = time.monotonic() + (POLL_EVERY_S if self._connection is None else LOOK_EVERY_S)
        while True:
            if self._was_nudged() or waiter.woken or self._closed:
                return True
            now_s = time.monotonic()
            due_s = inf if due_ms is None else (due_ms - self._now_ms()) / 1000
            if due_s <= 0 or now_s >= end_s:
                return True
            if now_s >= look_s:
                self._listen(end_s)
                return False
            self._sleep(waiter, min(end_s - now_s, due_s, look_s - now_s, self._tick_s))

    def _was_nudged(self) -> bool:
        """True if this thread has not seen the latest nudge; one from before its first wait counts too."""
        if getattr(self._seen, "nudges", 0) == self._nudges:
            return False
        self._seen.nudges = self._nudges
        return True

    def _sleep(self, waiter: _Waiter, timeout_s: float) -> None:
        if not self._lead.acquire(blocking=False):
            waiter.sleep(timeout_s, None)
            return
        try:
            connection = self._connection
            if waiter.sleep(timeout_s, None if connection is None else connection.pgconn.socket) and connection:
                self._hear(connection)
        finally:
            self._lead.release()

    def _catch_up(self, waiter: _Waiter) -> None:
        """Read earlier notifications; the next check sees their messages."""
        self._tend()
        waiter.woken = False

    def _tend(self) -> None:
        if self._lead.acquire(blocking=False):
            try:
                if (connection := self._connection) is not None:
                    self._hear(connection)
            finally:
                self._lead.release()

    # -- being woken

    def nudge(self) -> None:
        """End every wait, or each thread's next one. Never blocks, and uses no network."""
        self._nudges += 1
        for waiter in list(self._waiting.values()):
            waiter.poke()

    def wake(self, queues: Iterable[str]) -> None:
        """Wake this process's waiters for these queues, in which messages are or become due."""
        if self._waiting:
            named = set(queues)
            for waiter in list(self._waiting.values()):
                if not named.isdisjoint(waiter.queues):
                    waiter.wake()

    def _hear(self, connection: Connection) -> None:
        """Read notifications, and wake the threads that wait for them."""
        try:
            connection.pgconn.consume_input()
            while (notify := connection.pgconn.notifies()) is not None:
                origin, queue, spots = read(notify.extra.decode(), self._now_ms)
                if origin != self._link.origin:  # this process wakes its own waiters directly
                    self._link.on_late(queue, spots)
                    self.wake([queue] if queue else [name for w in list(self._waiting.values()) for name in w.queues])
        except psycopg.Error:
            self._connection = None
            connection.drop()
            for waiter in list(self._waiting.values()):
                waiter.wake()  # notifications may have been lost: all threads check

    # -- the connection

    @property
    def listening(self) -> bool:
        return self._connection is not None

    def _listen(self, end_s: float) -> None:
        """Open the connection, if missing and possible; a failure is retried later."""
        if self._connection is not None or not self.wanted or self._closed:
            return
        now_s = time.monotonic()
        if now_s < self._again_s or now_s >= end_s or not self._lead.acquire(blocking=False):
            return
        try:
            if self._connection is None:
                self._connection = self._connect()
                self._failures = 0
                if not self._keeper.is_alive():
                    self._keeper = self._new_keeper()
                    self._keeper.start()
        except psycopg.Error:
            pause_s = CONNECT_AGAIN_S[min(self._failures, len(CONNECT_AGAIN_S) - 1)]
            self._failures, self._again_s = self._failures + 1, time.monotonic() + pause_s
        finally:
            self._lead.release()

    @property
    def wanted(self) -> bool:
        """True if LISTEN is in use: through a pooler no notification arrives, unless the URL names another address."""
        where = self._link.url.listen
        return where != "off" and (bool(where) or not self._link.pooled)

    def _connect(self) -> Connection:
        listen = self._link.url.listen
        connection = self._link.connect(time.monotonic() + self._link.url.timeout_s / 2, listen)
        try:
            connection.execute(f"listen {self._link.channel}")
            return connection
        except BaseException:
            connection.drop()
            raise

    def attend(self) -> None:
        """Read notifications for some seconds from now on, even while no thread waits."""
        new, self._attended_s = not self._attends, time.monotonic()
        if new and self.wanted and not self._closed:
            with self._lock:
                if not self._keeper.is_alive():
                    self._keeper = self._new_keeper()
                    self._keeper.start()
            self._called.set()

    @property
    def _attends(self) -> bool:
        return time.monotonic() - self._attended_s < TEND_EVERY_S

    def _new_keeper(self) -> threading.Thread:
        given = self._ended, self._called
        return threading.Thread(target=self._keep, args=given, name="redrive-listen", daemon=True)

    def _keep(self, ended: threading.Event, called: threading.Event) -> None:
        """Read notifications while no thread waits, since unread ones fill the server's queue and block all
        notifiers."""
        while not ended.is_set():
            if self._attends:
                self._listen(inf)
                ended.wait(HEAR_EVERY_S)
            else:
                called.wait(TEND_EVERY_S)
            called.clear()
            self._tend()

    def close(self) -> None:
        self._closed = True
        self._ended.set()
        self._called.set()
        self.nudge()
        with self._lead:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
        with self._lock:
            self._spare.clear()
