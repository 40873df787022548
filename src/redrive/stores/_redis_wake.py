"""How an idle worker waits on Redis: until something comes due, or somebody writes to a wake stream it listens to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ._redis_link import Link

Look = Callable[[], tuple[float | None, dict[bytes, bytes]]]
LOOK_EVERY_S = 0.02


class Wake:
    """`look` says in how many seconds something comes due (None: never), and the last id of each stream."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._nudges = 0
        self._seen = threading.local()

    def wait(self, look: Look, timeout_ms: int) -> None:
        end_s = time.monotonic() + timeout_ms / 1000
        before: dict[bytes, bytes] | None = None
        while True:
            due_s, streams = look()
            left_s = end_s - time.monotonic()
            if self._nudged() or left_s <= 0 or (due_s is not None and due_s <= 0):
                return
            if before is not None and streams != before:
                return
            before = streams
            time.sleep(max(0.0, min(left_s, LOOK_EVERY_S, left_s if due_s is None else due_s)))

    def _nudged(self) -> bool:
        seen = getattr(self._seen, "count", 0)
        self._seen.count = self._nudges
        return bool(seen != self._nudges)

    def nudge(self) -> None:
        self._nudges += 1

    def close(self) -> None:
        self.nudge()
