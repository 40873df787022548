"""Once a minute, apply retention, and report the billed requests of the store."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ..events import Notify
from ..policy import Retention
from ..registry import Queue
from ..store import Store
from .services import Service

EVERY_S = 60.0
MOST = 1000  # the most messages of a lane that one call of Store.retain deletes
NOTICE = "aws_requests"


class RetentionSweep(Service):
    """Deletes messages beyond the retention of these queues, and reports how many by `notice(name, text)`."""

    def __init__(self, queues: Sequence[Queue], store: Store, notice: Callable[[str, str], None]) -> None:
        self._queues = [q for q in queues if q.retention != Retention()]
        self._store, self._notice = store, notice
        self._next_s = 0.0 if self._queues else math.inf

    def look(self, *, now: bool = False) -> None:
        """Delete messages once a minute; at the next call if there are more. Raises StoreError."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        for queue in self._queues:
            done, dead = self._store.retain(queue.name, done=queue.retention.done, dead=queue.retention.dead)
            if max(done, dead) >= MOST:
                self._next_s = now_s
            if done or dead:
                self._notice("removed", f"{done} done and {dead} dead messages of queue {queue.name}, by its retention")

    def finish(self) -> None:
        """Delete all messages beyond their retention now, as the next worker may start much later. Raises
        StoreError."""
        if self._queues:
            self._next_s = 0.0
        while time.monotonic() >= self._next_s:
            self.look()


class RequestMeter(Service):
    """Reports by how much `store.usage()` rose; does nothing if the store counts no usage."""

    def __init__(self, store: Store, notice: Notify) -> None:
        self._store, self._notice = store, notice
        self._reported: Counter[str] = Counter()
        self._processed = 0
        self._next_s = math.inf if store.usage() is None else -math.inf

    def look(self, *, now: bool = False) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self.close()

    def close(self) -> None:
        """Report by how much the usage rose since the last report."""
        usage = self._store.usage()
        if usage is None:
            return
        requests, processed = Counter(usage.requests), usage.processed
        rose, self._reported = requests - self._reported, requests
        more, self._processed = processed - self._processed, processed
        each = f", {rose.total() / more:.2f} in all for each of {more} messages" if more else ""
        for action, count in sorted(rose.items()):
            self._notice(NOTICE, f"{count} requests{each}", action, count=count)
