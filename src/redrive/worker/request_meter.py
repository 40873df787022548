"""The request meter: what the store asked of a service that bills by the request, told once a minute."""

from __future__ import annotations

import math
import time
from collections import Counter

from ..events import Notify
from ..store import Store

EVERY_S = 60.0
NOTICE = "aws_requests"


class Meter:
    """Tells what `store.requests` and `store.cells.requests` (Counters by action) rose by since the last time; nothing
    for a store without."""

    def __init__(self, store: Store, tell: Notify) -> None:
        self._store, self._tell = store, tell
        self._told: Counter[str] = Counter()
        self._processed = 0
        self._next_s = -math.inf if hasattr(store, "requests") else math.inf

    def look(self) -> None:
        """Once a minute."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self.finish()

    def finish(self) -> None:
        """What has not been told yet."""
        requests: Counter[str] = Counter()
        for of in (self._store, self._store.cells):
            requests.update(getattr(of, "requests", {}))
        processed = int(getattr(self._store, "processed", 0))
        rose, self._told = requests - self._told, requests
        more, self._processed = processed - self._processed, processed
        each = f", {rose.total() / more:.2f} in all for each of {more} messages" if more else ""
        for action, count in sorted(rose.items()):
            self._tell(NOTICE, f"{count} requests{each}", action, count=count)
