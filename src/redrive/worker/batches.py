"""Every few seconds, put the callbacks of batches that a killed worker or a person left due."""

from __future__ import annotations

import time

from ..batch import BatchApp, Complain, follow
from ..chance import uniform
from .services import Service

EVERY_S = (2.5, 5.0)  # the shortest and the longest pause between two looks, in seconds
PAGE = 1000


class BatchSweep(Service):
    """Looks for batches whose counts changed without a worker's exchange: a cancel, a discard, retention, or an
    exchange whose worker was killed right after it."""

    def __init__(self, app: BatchApp, complain: Complain) -> None:
        self._app, self._complain = app, complain
        self._due_s = 0.0

    def look(self, *, now: bool = False) -> None:
        """Put what is due. Raises StoreError."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + uniform(*EVERY_S)
        after = ""
        while ids := self._app.store.changed_batches(after=after, limit=PAGE):
            follow(self._app, ids, self._complain)
            if len(ids) < PAGE:
                return
            after = ids[-1]

    def finish(self) -> None:
        self._due_s = 0.0
        self.look()
