"""Wait for work: LISTEN on a connection of its own, and a periodic check for work without a notification.

The waiting thread itself sleeps on the connection's socket and on a pipe, so a notification costs no hop between
threads. Of several waiting threads, one reads the connection and wakes the others through their pipes. A notification
that is lost, or impossible (through a pooler, `?listen=off`), costs latency, never work: every waiter checks for work
every LOOK_EVERY_S seconds, or every POLL_EVERY_S without LISTEN.
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
HEAR_EVERY_S = 0.25  # how often notifications are read for some seconds after `attend`


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
        """Make the waiting thread check if it must go on, even if there is nothing for it."""
        with contextlib.suppress(OSError):  # the pipe is full, so the thread wakes anyway, or it is closed
            os.write(self._write, b"!")

    def sleep(self, timeout_s: float, socket: int | None) -> bool:
        """Sleep until data arrives on `socket`, a poke or the timeout; True if data arrived on `socket`."""
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
        os.close(self._read)  # last: other threads reuse the number of a closed descriptor
        os.close(self._write)


class Listener:
    """Wakes waiting threads of this process when this or another process has written due messages.

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
        self._seen = threading.local()  # by thread: how many nudges it has seen
        self._lock = threading.Lock()
        self._lead = threading.Lock()  # held by the thread that reads the connection now
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
            other.poke()  # the thread that wakes may have to read the connection from now on

    def _is_over(self, waiter: _Waiter, due_ms: float | None, end_s: float) -> bool:
        """Sleep until the wait is over, or the next check is due; returns True if the wait is over."""
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
        """True if there was a nudge that this thread has not seen, even before its first wait; marks all as seen."""
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
        """Read the notifications that arrived before the wait; the check that follows finds their messages."""
        self._tend()
        waiter.woken = False

    def _tend(self) -> None:
        if self._lead.acquire(blocking=False):
            try:
                if (connection := self._connection) is not None:
                    self._hear(connection)
            finally:
                self._lead.release()

    # -- waking threads

    def nudge(self) -> None:
        """End every wait in progress, and the next wait of each other thread. Never blocks, and uses no network."""
        self._nudges += 1
        for waiter in list(self._waiting.values()):
            waiter.poke()

    def wake(self, queues: Iterable[str]) -> None:
        """Wake the threads of this process that wait for these queues, in which messages are or become due."""
        if self._waiting:
            named = set(queues)
            for waiter in list(self._waiting.values()):
                if not named.isdisjoint(waiter.queues):
                    waiter.wake()

    def _hear(self, connection: Connection) -> None:
        """Read the notifications that have arrived, and wake the threads that wait for their queues."""
        try:
            connection.pgconn.consume_input()
            while (notify := connection.pgconn.notifies()) is not None:
                origin, queue, spots = read(notify.extra.decode(), self._now_ms)
                if origin != self._link.origin:  # this process has woken its own waiters already
                    self._link.on_late(queue, spots)
                    self.wake([queue] if queue else [name for w in list(self._waiting.values()) for name in w.queues])
        except psycopg.Error:
            self._connection = None
            connection.drop()
            for waiter in list(self._waiting.values()):
                waiter.wake()  # notifications may have been lost, so every thread checks

    # -- the connection

    @property
    def listening(self) -> bool:
        return self._connection is not None

    def _listen(self, end_s: float) -> None:
        """Open the listening connection, if it is missing and wanted; after a failure a later call tries again."""
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
        """True if LISTEN is in use. No notification passes a pooler, unless the URL has an address to listen at."""
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
        """Read notifications for some seconds from now on, on a thread, even while no thread waits."""
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
        """On a thread: read notifications while no other does, as unread ones fill the server's queue and block every
        sender."""
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
