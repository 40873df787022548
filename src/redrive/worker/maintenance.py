"""Retention: once a minute a worker removes what its queues do not keep."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from ..policy.retention import Retention
from ..registry import Queue
from ..store import Store

EVERY_S = 60.0
MOST = 1000  # of a lane in one call, as Store.retain says


class Keeper:
    """Removes what the retention of these queues does not keep. `tell(name, text)` tells observers of removals."""

    def __init__(self, queues: Sequence[Queue], store: Store, tell: Callable[[str, str], None]) -> None:
        self._queues = [q for q in queues if q.retention != Retention()]
        self._store, self._tell = store, tell
        self._next_s = 0.0 if self._queues else math.inf

    def look(self) -> None:
        """Once a minute; more often while there is much to remove. Raises StoreError."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        for queue in self._queues:
            done, dead = self._store.retain(queue.name, done=queue.retention.done, dead=queue.retention.dead)
            if max(done, dead) >= MOST:
                self._next_s = now
            if done or dead:
                self._tell("removed", f"{done} done and {dead} dead messages of queue {queue.name}, by its retention")

    def finish(self) -> None:
        """All of it now: it may be long until the next worker starts. Raises StoreError."""
        if self._queues:
            self._next_s = 0.0
        while time.monotonic() >= self._next_s:
            self.look()
