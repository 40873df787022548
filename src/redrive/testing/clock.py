"""A clock that moves only when a test advances it."""

from __future__ import annotations

import threading

from ..duration import Duration, milliseconds

START_MS = 1_750_000_000_000  # 15 June 2025, so that times in a failure are recognisable as dates


class ManualClock:
    """A clock that moves only by `advance`, to be passed to a store as its `clock_ms`. Thread-safe.

    >>> clock = ManualClock(0)
    >>> clock.advance("5m")
    300000
    >>> clock()
    300000
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    __call__ = now_ms

    def advance(self, by: Duration) -> int:
        """Move the clock forward by a duration, rounded up to a millisecond; return the new time. Raises ConfigError
        for an invalid duration."""
        with self._lock:
            self._now_ms += milliseconds(by, "advance")
            return self._now_ms
