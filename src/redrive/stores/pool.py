"""Connections to a server: opened on demand, shared by threads, never by processes.

Our own rather than the drivers': psycopg_pool keeps threads, which a fork loses, and connects in these threads, where a
caller cannot see why connecting fails; redis-py's raises when no connection is free, or waits without regard to the
call's deadline. Here the thread that needs a connection opens it, and every wait ends at the caller's deadline.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ..errors import StoreError, StoreUnavailable
from ..system import at_fork

IDLE_MAX_S = 60.0  # an idle connection is closed after this time


class Pooled(Protocol):
    """The methods that a pool needs of a connection."""

    idle_since_s: float

    @property
    def closed(self) -> bool: ...

    def is_silent(self) -> bool:
        """True if no data arrived while the connection was idle. Data means that the server closed it or is gone."""
        ...

    def drop(self) -> None:
        """Close the connection without a request to the server."""
        ...

    def leave_to_parent(self) -> None:
        """In a forked child: forget the parent's connection without a message to the server."""
        ...


C = TypeVar("C", bound=Pooled)


class ConnectionPool(Generic[C]):
    """At most `size` connections. `connect` opens one, given a deadline; `engine` names the engine in errors."""

    closed: bool

    def __init__(self, engine: str, connect: Callable[[float], C], size: int) -> None:
        self._engine, self._connect, self._size = engine, connect, size
        self.closed = False
        self._renew()
        heirs.add(self)

    def _renew(self) -> None:
        self._free = threading.Condition()
        self._idle: list[C] = []  # a stack: the most recently used connection is taken first
        self._taken: set[C] = set()
        self._out = 0  # connections in use or being opened

    def in_child(self) -> None:
        connections = [*self._idle, *self._taken]
        self._renew()
        for connection in connections:
            connection.leave_to_parent()

    def take(self, deadline_s: float) -> C:
        """Take a connection. Raises StoreUnavailable if none is free by the deadline, StoreError if the pool is closed,
        and the errors of `connect`."""
        with self._free:
            while True:
                if self.closed:
                    raise StoreError(f"this {self._engine} store is closed; open another")
                if self._out < self._size:
                    break
                if not self._free.wait(max(0.0, deadline_s - time.monotonic())):
                    raise StoreUnavailable(
                        f"all {self._size} connections of this process were busy for too long; "
                        "raise ?pool= of the store's URL"
                    )
            self._out += 1
            idle = self._pop_idle()
        try:
            connection = idle or self._connect(deadline_s)
        except BaseException:
            self._left()
            raise
        self._taken.add(connection)
        return connection

    def _pop_idle(self) -> C | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_silent():
                return connection
            connection.drop()
        return None

    def give(self, connection: C) -> None:
        """Return a connection after use, with no request pending, and close connections idle for too long."""
        now_s = connection.idle_since_s = time.monotonic()
        self._taken.discard(connection)
        with self._free:
            if self.closed or connection.closed:
                connection.drop()
            else:
                self._idle.append(connection)
            while self._idle and self._idle[0].idle_since_s < now_s - IDLE_MAX_S:
                self._idle.pop(0).drop()
            self._out -= 1
            self._free.notify()

    def lose(self, connection: C) -> None:
        """Return an unusable connection to the pool, which closes it and frees its place."""
        self._taken.discard(connection)
        connection.drop()
        self._left()

    def _left(self) -> None:
        with self._free:
            self._out -= 1
            self._free.notify()

    def clear(self) -> None:
        """Close the idle connections, for when the server has closed or lost them."""
        with self._free:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.drop()

    def close(self) -> None:
        with self._free:
            self.closed = True
            self._free.notify_all()
        self.clear()


heirs: weakref.WeakSet[Any] = weakref.WeakSet()  # objects whose `in_child` method resets them in the child after a fork


def _in_child() -> None:
    for heir in list(heirs):
        heir.in_child()


at_fork(after_in_child=_in_child)
