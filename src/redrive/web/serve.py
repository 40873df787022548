"""Serve a site by uvicorn, on a socket of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import uvicorn

from .site import Site

GRACE_S = 2  # for answers that are under way when the server is asked to stop


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0: on a free one. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=2048)


class Server(uvicorn.Server):
    """Call `ready` with the address of the pages once requests are answered; end live updates when it stops."""

    def __init__(self, site: Site, ready: Callable[[str], object]) -> None:
        super().__init__(uvicorn.Config(site, log_level="warning", lifespan="off", timeout_graceful_shutdown=GRACE_S))
        self._site, self._ready = site, ready

    def stop(self, *_: object) -> None:
        """Stop soon. A handler of signals."""
        self.should_exit = True

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
