"""Serve pages of the demo's store while the demo runs: read-only, until a person redrives in them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

from ..demo.processes import DemoFailed
from ..read_model import ReadModel
from ..store import Store
from ..web import Permission, Site, User
from ..web.serve import PagesServer, listening

STARTED_WITHIN_S = 30.0
# Not to discard or edit: the ledger would have to count a discarded event as lost.
NEWCOMER = User("you", frozenset({Permission.VIEW, Permission.VIEW_BODIES, Permission.RETRY, Permission.REDRIVE}))


class DemoPages:
    """Serves the pages on a free port of this machine, from a thread, until the block ends. `url` is their address."""

    url: str

    def __init__(self, store: Store, shown: str) -> None:
        site = Site(ReadModel(store=store), read_only=True, url=shown, authorize=lambda _: NEWCOMER, hosts=())
        self._site = site
        self._ready = threading.Event()
        self._socket = listening("127.0.0.1", 0)
        self._server = PagesServer(site, self._on_start)
        self._thread = threading.Thread(target=self._serve, name="redrive-demo-pages", daemon=True)
        self.url = ""

    def _on_start(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def _serve(self) -> None:
        with self._socket:
            asyncio.run(self._server.serve([self._socket]))

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(STARTED_WITHIN_S):
            raise DemoFailed("the pages could not be served")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop()
        self._thread.join(STARTED_WITHIN_S)

    def hand_over(self, is_on: bool) -> None:
        """Let the pages redrive, and nothing else that changes the store; or, with False, change nothing."""
        self._site.read_only = not is_on

    def stay(self) -> None:
        """Serve the pages until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(1)
