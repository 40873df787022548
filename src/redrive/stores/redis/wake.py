"""Wait for work on Redis, subscribed to a channel per queue, on which scripts announce that messages may be due.

Not a blocking read of a stream: a thread that waits in one must be freed by a second connection at each nudge, and
every put would write to disk and to memory for a possible waiter. A subscription can be awaited together with a nudge
and a timeout, and costs a put nothing while no worker waits. The subscription exists before the waiter checks for due
messages, so every later put is noticed. If it breaks, the wait ends, and the next wait checks again.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Set
from typing import Any

import redis

from ...errors import StoreError
from ..pool import heirs
from .connection import Connection
from .session import Session

DueLook = Callable[[], float | None]


class Wake:
    """The waits of one store object. Each waiting thread has a connection of its own.

    `look_every_s` is how often a wait checks for due messages by a clock that Redis does not have.
    """

    nudges: int

    def __init__(self, link: Session, *, look_every_s: float = math.inf) -> None:
        self._link, self._look_every_s = link, look_every_s
        self.nudges = 0  # number of nudges so far
        self._closed = False
        self._begin()
        heirs.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._own = threading.local()  # per thread: its waiter, which ends with the thread
        self._waiters: weakref.WeakSet[RedisWaiter] = weakref.WeakSet()

    def in_child(self) -> None:
        waiters = list(self._waiters)
        self._begin()
        for waiter in waiters:
            waiter.close()

    def wait(self, queues: Iterable[str], look: DueLook, timeout_ms: int) -> None:
        """Return when a script announces messages in one of the queues, when a message in one becomes due, on a nudge
        or after `timeout_ms`.

        `look` returns the seconds until a message is due: 0 or less for now, None for never. It is not called without
        queues. Raises StoreUnavailable as a call does.
        """
        end_s = time.monotonic() + timeout_ms / 1000
        waiter = self._waiter()
        channels = {self._link.root + b"x:" + queue.encode() for queue in queues}
        while not waiter.nudged(self):
            due_s = math.inf
            if channels:
                waiter.listen(channels)
                due = look()
                due_s = math.inf if due is None else due
            left_s = min(end_s - time.monotonic(), due_s)
            if left_s <= 0 or waiter.hears(channels, min(left_s, self._look_every_s)) or left_s <= self._look_every_s:
                waiter.nudged(self)
                return

    def busy(self) -> None:
        """Unsubscribe the calling thread, which has found work, until it waits again."""
        waiter: RedisWaiter | None = getattr(self._own, "waiter", None)
        if waiter is not None:
            waiter.leave()

    def nudge(self) -> None:
        """End every wait in progress, and the next wait of each other thread. Uses no network."""
        with self._lock:
            self.nudges += 1
            for waiter in self._waiters:
                waiter.wake()

    def _waiter(self) -> RedisWaiter:
        waiter: RedisWaiter | None = getattr(self._own, "waiter", None)
        if waiter is None:
            with self._lock:
                if self._closed:
                    raise StoreError("this Redis store is closed; open another")
                waiter = self._own.waiter = RedisWaiter(self._link)
                self._waiters.add(waiter)
        return waiter

    def close(self) -> None:
        self.nudge()
        with self._lock:
            self._closed = True
            self._own = threading.local()  # drops the waiters: each ends when no thread uses it any more


class RedisWaiter:
    """One thread's connection for waiting, and the socket to which a nudge writes."""

    def __init__(self, link: Session) -> None:
        self._link = link
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._nudges = 0
        self._connection: Connection | None = None
        self._channels: set[bytes] = set()  # the channels to which the connection is subscribed
        self._sharded = True

    # -- nudges

    def nudged(self, wake: Wake) -> bool:
        """True if there were nudges since the last call by this waiter. Empties its socket."""
        with contextlib.suppress(OSError):  # the socket is empty
            while self._near.recv(64):
                pass
        # Read after the socket is emptied: a nudge in between is then seen twice, not missed.
        before, self._nudges = self._nudges, wake.nudges
        return before != self._nudges

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # the socket is full, so the thread wakes anyway, or it is closed
            self._far.send(b"!")

    # -- listening

    def listen(self, channels: set[bytes]) -> None:
        """Subscribe to those of these channels that are not subscribed; returns when the server has confirmed."""
        c = self._connection
        if c is not None and (c.closed or c.address != self._link.at):
            self.clear()
        self._spoken(keep=channels)
        if not channels <= self._channels:
            self._link.attempt(lambda c: self._subscribe(c, channels), place=self)

    def _subscribe(self, c: Connection, channels: set[bytes]) -> None:
        try:
            c.send("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", *sorted(channels - self._channels))
            while not channels <= self._channels:
                self._take_in(c.read())
        except redis.ResponseError as error:
            if not self._sharded or "unknown command" not in str(error):
                raise
            self._sharded = False  # before version 7, Redis has no SSUBSCRIBE, and scripts PUBLISH
            self._subscribe(c, channels)

    def _take_in(self, message: Any) -> bytes | None:
        """Take in one message of the server; returns the channel if the message announces work, else None."""
        kind, channel = message[0], message[1]
        if kind in (b"ssubscribe", b"subscribe"):
            self._channels.add(channel)
        elif kind in (b"smessage", b"message"):
            return bytes(channel)
        elif kind == b"sunsubscribe" and channel in self._channels:
            raise redis.ConnectionError("the slot of this channel went to another node")
        return None

    def hears(self, channels: set[bytes], timeout_s: float) -> bool:
        """Wait up to `timeout_s`; True if a channel got a message, the connection broke, or a nudge came."""
        end_s = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._near, select.POLLIN)
        if self._connection is not None:
            poll.register(self._connection.fileno(), select.POLLIN)
        while (left_s := end_s - time.monotonic()) > 0:
            ready = dict(poll.poll(math.ceil(min(left_s, 86_400) * 1000)))
            if self._near.fileno() in ready:
                return True
            if ready and ((spoken := self._spoken()) is None or spoken & channels):
                return True
        return False

    def _spoken(self, keep: Set[bytes] = frozenset()) -> Set[bytes] | None:
        """Read the messages that have arrived; returns their channels. Unsubscribes from those not in `keep`, as one
        message is enough. None if the connection broke."""
        spoken: set[bytes] = set()
        c = self._connection
        if c is None:
            return spoken
        try:
            while c.can_read():
                if (channel := self._take_in(c.read())) is not None:
                    spoken.add(channel)
            self._unsubscribe((spoken & self._channels) - keep)
        except redis.RedisError:
            self.clear()
            return None
        return spoken

    def _unsubscribe(self, channels: set[bytes]) -> None:
        """Send the unsubscription; the server's confirmation is read with later messages."""
        if channels and self._connection is not None:
            self._channels -= channels
            self._connection.send("SUNSUBSCRIBE" if self._sharded else "UNSUBSCRIBE", *sorted(channels))

    def leave(self) -> None:
        try:
            self._unsubscribe(set(self._channels))
        except redis.RedisError:
            self.clear()

    # -- the methods of a ConnectionSlot with one connection

    def take(self, deadline_s: float) -> Connection:
        if self._connection is None:
            self._connection = self._link.connect()
        return self._connection

    def give(self, connection: Connection) -> None:
        return

    def lose(self, connection: Connection) -> None:
        self.clear()

    def clear(self) -> None:
        self._channels = set()
        if self._connection is not None:
            self._connection.drop()
            self._connection = None

    def close(self) -> None:
        self.clear()
        self._near.close()
        self._far.close()

    def __del__(self) -> None:
        self.close()
