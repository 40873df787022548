"""Connections to Redis: opened when needed, shared by threads, never by processes.

They are redis-py's connections without its pools and clients: all keys of a namespace lie in one slot, so in a cluster
too there is one server to speak to, and what remains of a client is to follow it when it moves (see _redis_link.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import StoreError, StoreUnavailable
from ._redis_url import Address, RedisUrl

IDLE_MAX_S = 60.0  # a connection nobody used for so long is closed
# A peer that is gone without a word is found out after 10 + 3 × 5 s, on a connection that only listens too.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Connection:
    """One connection, connected: raises redis-py's errors. At most `timeout_s` pass in silence."""

    def __init__(self, url: RedisUrl, address: Address | None) -> None:
        self.address = address
        self.sent = False  # whether a command went out whole and was not answered: then nobody knows what became of it
        self.idle_since_s = 0.0
        self._redis = _open(url, address)
        self._redis.connect()

    def run(self, *command: bytes | str | int) -> Any:
        """The reply to one command."""
        self.send(*command)
        return self.read()

    def send(self, *command: bytes | str | int) -> None:
        self._redis.send_command(*command)
        self.sent = True

    def read(self) -> Any:
        try:
            reply = self._redis.read_response()
        except (redis.ResponseError, redis.BusyLoadingError, redis.AuthenticationError):  # answers, all of them
            self.sent = False
            raise
        self.sent = False
        return reply

    def can_read(self) -> bool:
        """Whether something came, or the connection broke: then `read` does not wait."""
        return bool(self._redis.can_read(0))

    def fileno(self) -> int:
        sock: socket.socket | None = self._redis._sock
        return -1 if sock is None else sock.fileno()

    @property
    def closed(self) -> bool:
        return self.fileno() < 0

    def is_silent(self) -> bool:
        """Whether nothing came while it lay idle: else the server has said good-bye, or is gone."""
        if self.closed:
            return False
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return not poll.poll(0)

    def drop(self) -> None:
        """Close it without a word to the server; in a forked child the parent's connection stays as it is."""
        with contextlib.suppress(Exception):
            self._redis.disconnect()


def _open(url: RedisUrl, address: Address | None) -> Any:
    driver: Any = redis  # its connections' constructors have no types
    options: dict[str, Any] = {
        "db": url.db,
        "username": url.username,
        "password": url.password,
        "socket_timeout": url.timeout_s,
        "retry": Retry(NoBackoff(), 0),  # the link does that, by rules that know what may be repeated
        "protocol": 2,
    }
    if address is None:
        return driver.UnixDomainSocketConnection(path=url.path, **options)
    options |= {
        "host": address.host,
        "port": address.port,
        "socket_connect_timeout": url.timeout_s / 2,  # a name may have two addresses
        "socket_keepalive": True,
        "socket_keepalive_options": {
            getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
        },
    }
    return driver.SSLConnection(**options, **url.tls_options) if url.tls else driver.Connection(**options)


class Place(Protocol):
    """Where a call takes its connection from, and leaves it."""

    def take(self, deadline_s: float) -> Connection: ...

    def give(self, connection: Connection) -> None:
        """Back after use."""

    def lose(self, connection: Connection) -> None:
        """Back, and of no more use."""

    def clear(self) -> None:
        """Close what lies idle: where it leads nobody answers any more."""


class Pool:
    """At most `size` connections. `connect` opens one."""

    def __init__(self, connect: Callable[[], Connection], size: int) -> None:
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
            connection.drop()

    def take(self, deadline_s: float) -> Connection:
        """Raises StoreUnavailable if none is free by the deadline, and whatever `connect` raises."""
        with self._free:
            while True:
                if self.closed:
                    raise StoreError("this Redis store is closed; open another")
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
            connection = found or self._connect()
        except BaseException:
            self._left()
            raise
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

    def lose(self, connection: Connection) -> None:
        self._taken.discard(connection)
        connection.drop()
        self._left()

    def _left(self) -> None:
        with self._free:
            self._out -= 1
            self._free.notify()

    def clear(self) -> None:
        with self._free:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.drop()

    def close(self) -> None:
        with self._free:
            self.closed = True
            self._free.notify_all()
        self.clear()


heirs: weakref.WeakSet[Any] = weakref.WeakSet()  # what has a method `in_child` to begin anew in a forked child


def _in_child() -> None:
    for heir in list(heirs):
        heir.in_child()


os.register_at_fork(after_in_child=_in_child)
