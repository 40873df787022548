"""Connections to Redis: redis-py's, without its pools and clients.

All keys of a namespace lie in one slot, so in a cluster too there is one server to speak to, and what remains of a
client is to follow it when it moves (see session.py).
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

# A peer that is gone without a word is noticed after 10 + 3 × 5 s, on a connection that only listens too.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Connection:
    """One connection, connected: raises redis-py's errors. At most `timeout_s` pass in silence."""

    def __init__(self, url: RedisUrl, address: Address | None) -> None:
        self.address = address
        self.sent = False  # whether a command was sent whole and not answered: then its outcome is unknown
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
        """Whether nothing arrived while it was idle: else the server has closed it, or is gone."""
        if self.closed:
            return False
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return not poll.poll(0)

    def drop(self) -> None:
        """Close it without a word to the server."""
        with contextlib.suppress(Exception):
            self._redis.disconnect()

    def leave_to_parent(self) -> None:
        """In a forked child: redis-py sees that it is one, and closes no more than its copy of the socket."""
        self.drop()


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


class ConnectionSlot(Protocol):
    """Where a call takes its connection from, and leaves it."""

    def take(self, deadline_s: float) -> Connection: ...

    def give(self, connection: Connection) -> None:
        """Back after use."""

    def lose(self, connection: Connection) -> None:
        """Back, and of no more use."""

    def clear(self) -> None:
        """Close idle connections: their server answers no more."""
