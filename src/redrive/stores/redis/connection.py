"""Connections to Redis, by redis-py without its pools and clients.

All keys of a namespace are in one slot, so there is one server to contact even in a cluster; session.py follows that
slot when it moves.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .url import Address, RedisUrl

# Notices a peer that disappears silently after 10 + 3 × 5 s, even on a connection that only listens.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Connection:
    """An open connection. Raises redis-py's errors; a read waits at most for the URL's `timeout`."""

    sent: bool

    def __init__(self, url: RedisUrl, address: Address | None) -> None:
        self.address = address
        self.sent = False  # True: a command was sent completely but not answered, so its outcome is unknown
        self.idle_since_s: float = 0.0
        self._redis = _open(url, address)
        self._redis.connect()

    def run(self, *command: bytes | str | int) -> Any:
        """Send a command; returns the reply to it."""
        self.send(*command)
        return self.read()

    def send(self, *command: bytes | str | int) -> None:
        self._redis.send_command(*command)
        self.sent = True

    def read(self) -> Any:
        try:
            reply = self._redis.read_response()
        except (redis.ResponseError, redis.BusyLoadingError, redis.AuthenticationError):  # these are replies
            self.sent = False
            raise
        self.sent = False
        return reply

    def can_read(self) -> bool:
        """True if data has arrived or the connection is broken, so that `read` does not block."""
        return bool(self._redis.can_read(0))

    def fileno(self) -> int:
        sock: socket.socket | None = self._redis._sock
        return -1 if sock is None else sock.fileno()

    @property
    def closed(self) -> bool:
        return self.fileno() < 0

    def is_silent(self) -> bool:
        """True if no data arrived while the connection was idle. Data means that the server closed or lost it."""
        if self.closed:
            return False
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return not poll.poll(0)

    def drop(self) -> None:
        """Close the connection without a request to the server."""
        with contextlib.suppress(Exception):
            self._redis.disconnect()

    def leave_to_parent(self) -> None:
        """In a forked child: close only the child's copy of the socket. redis-py sees the fork, and sends nothing."""
        self.drop()


def _open(url: RedisUrl, address: Address | None) -> Any:
    driver: Any = redis  # `Any`, as redis-py's connection classes lack types
    options: dict[str, Any] = {
        "db": url.db,
        "username": url.username,
        "password": url.password,
        "socket_timeout": url.timeout_s,
        "retry": Retry(NoBackoff(), 0),  # no retries here: the session knows which calls may be repeated
        "protocol": 2,
    }
    if address is None:
        return driver.UnixDomainSocketConnection(path=url.path, **options)
    options |= {
        "host": address.host,
        "port": address.port,
        "socket_connect_timeout": url.timeout_s / 2,  # half the time, as a name may have two addresses to try
        "socket_keepalive": True,
        "socket_keepalive_options": {
            getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)
        },
    }
    return driver.SSLConnection(**options, **url.tls_options) if url.tls else driver.Connection(**options)


class ConnectionSlot(Protocol):
    """A source of connections for calls: the pool, or a waiting thread's own connection."""

    def take(self, deadline_s: float) -> Connection: ...

    def give(self, connection: Connection) -> None:
        """Return a connection to its source after use."""

    def lose(self, connection: Connection) -> None:
        """Return a connection that is unusable; its source closes it."""

    def clear(self) -> None:
        """Close the idle connections, as their server no longer answers."""
