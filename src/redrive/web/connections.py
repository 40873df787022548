"""Keep a server reachable: limit the time for a request to arrive, and the number of connections without a request.

A client that opens connections and sends little or nothing would hold all descriptors of the process. So each request
has to arrive within a time, and if there are too many connections, the one that has waited longest for a request is
closed. A client whose request arrives at once is always served.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..system import POSIX

DESCRIPTORS_WANTED, DESCRIPTORS_OWN = 16_384, 200  # wanted by the process; kept for uses other than connections


class ConnectionBounds(Struct, frozen=True, kw_only=True):
    """Limits of a server: `most` connections; `waiting_of_one` connections of one address without a request; seconds
    for the head (`head_s`) and the body (`body_s`) of a request to arrive, and for an answer without progress
    (`taken_s`)."""

    most: int = 2_000
    waiting_of_one: int = 200
    head_s: float = 10.0
    body_s: float = 30.0
    taken_s: float = 30.0


def raise_descriptors() -> int:
    """Raise the process's limit of descriptors as far as possible; return how many connections it then allows."""
    if not POSIX:
        return ConnectionBounds().most
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if wanted > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except ValueError:  # the limit of macOS is smaller than it reports
            pass
    return soft - DESCRIPTORS_OWN


class Connections:
    """The connections of one server. Used on its event loop alone."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self.bounds = bounds
        self._count = 0
        self._waiting: dict[
            str, dict[BoundedConnections, None]
        ] = {}  # by address, its connections in the order in which they began to wait

    def open(self, one: BoundedConnections) -> bool:
        """Count a new connection; if there are too many, close the one that waits longest. Returns False if
        none waits."""
        self._count += 1
        if self._count <= self.bounds.most:
            return True
        crowd = max(self._waiting.values(), key=len, default={})
        if not crowd:
            self._count -= 1
            return False
        next(iter(crowd)).give_way()
        return True

    def wait(self, one: BoundedConnections) -> None:
        """Note that a connection waits for a request or the rest of one; close the oldest such connection of its
        address if they are too many."""
        crowd = self._waiting.setdefault(one.address, {})
        crowd[one] = None
        if len(crowd) > self.bounds.waiting_of_one:
            next(iter(crowd)).give_way()

    def work(self, one: BoundedConnections) -> None:
        """Note that a connection does not wait any more, as its request has arrived."""
        crowd = self._waiting.get(one.address)
        if crowd is not None:
            crowd.pop(one, None)
            if not crowd:
                del self._waiting[one.address]

    def close(self, one: BoundedConnections) -> None:
        self._count -= 1
        self.work(one)


class BoundedConnections(H11Protocol):
    """A connection of uvicorn that can be closed to make room for another. `gate`: all connections of its server."""

    address: str
    gate: Connections

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.address = ""
        self._counted, self._state, self._left = False, "", 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        super().connection_made(transport)
        self._counted = self.gate.open(self)
        if self._counted:
            self._look()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._counted:
            self._counted = False
            self.gate.close(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._state:
            self._start(self.gate.bounds.taken_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._state:
            self._stop()

    def give_way(self) -> None:
        """Close this connection at once, as it is too slow, or another one needs its place."""
        self.gate.work(self)
        self.transport.abort()

    def _look(self) -> None:
        """Start the timer for the head or body that is missing, unless it runs; stop the timer when the request is
        complete."""
        cycle: Any = self.cycle  # None until the first request
        if cycle is None or (cycle.response_complete and not cycle.more_body):
            state = "head"
        else:
            state = "body" if cycle.more_body else ""
        if state == self._state or self.transport.is_closing():
            return
        self._stop()
        self._state = state
        if not state:
            self.gate.work(self)
            return
        self.gate.wait(self)
        self._start(self.gate.bounds.head_s if state == "head" else self.gate.bounds.body_s)

    def _start(self, within_s: float) -> None:
        self._stop()
        self._left = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(within_s, self._late, within_s)

    def _late(self, within_s: float) -> None:
        """Close the connection at the end of its time, unless the client has read more of an answer since; then wait
        again."""
        if 0 < self.transport.get_write_buffer_size() < self._left:
            self._start(within_s)
        else:
            self.give_way()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def protocol(gate: Connections) -> type[BoundedConnections]:
    """Return the class of connections for the server of this gate."""
    return type("Bounded", (BoundedConnections,), {"gate": gate})
