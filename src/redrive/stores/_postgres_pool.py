"""Connections to PostgreSQL: opened when needed, shared by threads, never by processes.

Our own rather than psycopg_pool: that one keeps threads, which a fork loses, and connects in them, where a caller
cannot see why it fails. Here whoever needs a connection opens it, and every wait ends at the caller's deadline.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Generator
from math import inf
from typing import Any, TypeVar

import psycopg
from psycopg.rows import TupleRow

from ..errors import StoreError, StoreUnavailable
from ._postgres_errors import TooSlow

T = TypeVar("T")
IDLE_MAX_S = 60.0  # a connection nobody used for so long is closed


class Connection(psycopg.Connection[TupleRow]):
    """A connection on which no wait outlasts `deadline_s`."""

    deadline_s: float = inf  # by time.monotonic()
    committing = False  # whether the commit was sent: then nobody knows whether it took place
    idle_since_s = 0.0

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(_bounded(gen, self), *args, **options)

    def is_silent(self) -> bool:
        """Whether nothing came while it lay idle: else the server has said good-bye, or is gone."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not self.broken and not poll.poll(0)

    def drop(self) -> None:
        """Close it without asking the server anything."""
        with contextlib.suppress(Exception):
            self.close()


def _bounded(gen: Generator[Any, Any, T], connection: Connection) -> Generator[Any, Any, T]:
    """The generator, ended by TooSlow when it still waits at the deadline."""
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


class Pool:
    """At most `size` connections. `connect` opens one, by a deadline."""

    def __init__(self, connect: Callable[[float], Connection], size: int) -> None:
        self._connect, self._size = connect, size
        self.closed = False
        self._renew()
        heirs.add(self)

    def _renew(self) -> None:
        self._free = threading.Condition()
        self._idle: list[Connection] = []  # the last one used comes first again
        self._taken: set[Connection] = set()
        self._out = 0  # those taken, and those being opened

    def in_child(self) -> None:
        connections = [*self._idle, *self._taken]
        self._renew()
        for connection in connections:
            leave_to_parent(connection)

    def take(self, deadline_s: float) -> Connection:
        """Raises StoreUnavailable if none is free by the deadline, and whatever `connect` raises."""
        with self._free:
            while True:
                if self.closed:
                    raise StoreError("this PostgreSQL store is closed; open another")
                if self._out < self._size:
                    break
                if not self._free.wait(max(0.0, deadline_s - time.monotonic())):
                    raise StoreUnavailable(
                        f"all {self._size} connections of this process were busy for too long; "
                        "raise ?pool= of the store's URL"
                    )
            self._out += 1
            found = self._pop_idle()
        try:
            connection = found or self._connect(deadline_s)
        except BaseException:
            self._left()
            raise
        connection.deadline_s, connection.committing = deadline_s, False
        self._taken.add(connection)
        return connection

    def _pop_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_silent():
                return connection
            connection.drop()
        return None

    def give(self, connection: Connection) -> None:
        """Back after use; the connection is outside any transaction."""
        now_s = connection.idle_since_s = time.monotonic()
        self._taken.discard(connection)
        with self._free:
            if self.closed or connection.closed:
                connection.drop()
            else:
                self._idle.append(connection)
            while self._idle and self._idle[0].idle_since_s < now_s - IDLE_MAX_S:
                self._idle.pop(0).drop()
        self._left()

    def lose(self, connection: Connection) -> None:
        """Back, and of no more use."""
        self._taken.discard(connection)
        connection.drop()
        self._left()

    def _left(self) -> None:
        with self._free:
            self._out -= 1
            self._free.notify()

    def clear(self) -> None:
        """Close what lies idle: the server it leads to is gone."""
        with self._free:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.drop()

    def close(self) -> None:
        with self._free:
            self.closed = True
            self._free.notify_all()
        self.clear()


# A child must not speak on its parent's connections, not even to say good-bye. Its copies of the sockets are closed
# below libpq, so that the server sees when the parent dies; the objects are kept, so that nothing ever finishes them.
heirs: weakref.WeakSet[Any] = weakref.WeakSet()  # what has a method `in_child` to begin anew in one
_of_the_parent: list[psycopg.Connection[Any]] = []


def leave_to_parent(connection: psycopg.Connection[Any]) -> None:
    """In a forked child: forget a connection without a word to the server."""
    _of_the_parent.append(connection)
    if not connection.closed:
        with contextlib.suppress(OSError):
            os.close(connection.pgconn.socket)


def _in_child() -> None:
    for heir in list(heirs):
        heir.in_child()


os.register_at_fork(after_in_child=_in_child)
