"""Serve a site by uvicorn, on a socket of its own."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial

import uvicorn
from msgspec.structs import replace

from .connections import ConnectionBounds, Connections, protocol, raise_descriptors
from .site import Site

GRACE_S = 2  # for answers that are under way when the server is asked to stop
ENDED_S = 3.0  # beyond that, until threads that still work for an answer are left to the end of the process


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0: on a free one. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=2048)


class PagesServer(uvicorn.Server):
    """Call `ready` with the address of the pages once requests are answered; end live updates when it stops."""

    def __init__(self, site: Site, ready: Callable[[str], object], bounds: ConnectionBounds | None = None) -> None:
        bounds = bounds or ConnectionBounds()
        gate = Connections(replace(bounds, most=min(bounds.most, raise_descriptors())))
        # Whom a proxy names is looked at in `access.py`, which knows what to believe of it.
        config = uvicorn.Config(
            site, http=protocol(gate), ws="none", proxy_headers=False, log_level="warning", lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
        )  # fmt: skip
        super().__init__(config)
        self._site, self._ready = site, ready

    def stop(self) -> None:
        """Stop soon."""
        self.should_exit = True

    def end(self, number: int, *_: object) -> None:
        """Stop soon, and end the process within a grace, whatever the threads of answers do: it would wait for them. A
        handler of signals."""
        self.should_exit = True
        last = threading.Timer(GRACE_S + ENDED_S, partial(_leave, number))
        last.daemon = True
        last.start()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        # Among a million messages the first page would wait for these sums for seconds.
        threading.Thread(target=self._site.begin_sums, daemon=True, name="redrive-sums").start()
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        named = f"[{host}]" if ":" in host else host
        self._ready(f"http://{named}:{port}{self._site.base_path}/")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._site.close()
        await super().shutdown(sockets)


def _leave(number: int) -> None:
    """End the process now, as by the signal, though some of its threads do not end."""
    sys.stdout.flush()
    print(f"redrive web: answers were still being made {GRACE_S + ENDED_S:g} s after the signal", file=sys.stderr)
    sys.stderr.flush()
    os._exit(128 + number)
