"""Serve a site with uvicorn, on a given socket."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from msgspec.structs import replace

from .connections import ConnectionBounds, Connections, protocol, raise_descriptors
from .site import Site

GRACE_S = 2  # seconds in which answers may be finished when the server stops
ENDED_S = 3.0  # seconds after GRACE_S before the process ends although threads still work


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this host and port; port 0 means any free one. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=2048)


class PagesServer(uvicorn.Server):
    """A server that calls `ready` with the pages' address once it answers, and ends live updates when it stops."""

    should_exit: bool

    def __init__(self, site: Site, ready: Callable[[str], object], bounds: ConnectionBounds | None = None) -> None:
        bounds = bounds or ConnectionBounds()
        gate = Connections(replace(bounds, most=min(bounds.most, raise_descriptors())))
        # Proxies' headers, which any client can send, are left to `access.py`: only for refusals and limits.
        config = uvicorn.Config(
            site, http=protocol(gate), ws="none", proxy_headers=False, log_level="warning", lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
        )  # fmt: skip
        super().__init__(config)
        self._site, self._ready = site, ready
        self._signal: int | None = None  # the one that stops the server

    def stop(self) -> None:
        self.should_exit = True

    def end(self, number: int, *_: object) -> None:
        """Handle a signal: stop soon, and end the process after a grace period even if threads still make answers."""
        self.should_exit = True
        last = threading.Timer(GRACE_S + ENDED_S, partial(_leave, number))
        last.daemon = True
        last.start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal while uvicorn serves: note it for `shutdown`."""
        super().handle_exit(sig, frame)
        self._signal = sig

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        # Started now: with a million messages, the first page would wait for these sums for seconds.
        threading.Thread(target=self._site.begin_sums, daemon=True, name="redrive-sums").start()
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        named = f"[{host}]" if ":" in host else host
        self._ready(f"http://{named}:{port}{self._site.base_path}/")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._signal is not None:
            self.end(self._signal)  # here, as it may be that the reads never end
        await self._site.close()
        await super().shutdown(sockets)
        await self._site.readings.close()  # before the store is closed


def _leave(number: int) -> None:
    """End the process now, with the exit code of the signal `number`, although some threads still work."""
    sys.stdout.flush()
    print(f"redrive web: answers were still being made {GRACE_S + ENDED_S:g} s after the signal", file=sys.stderr)
    sys.stderr.flush()
    os._exit(128 + number)
