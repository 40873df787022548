"""Measure a process cheaply: all of it is taken every few seconds, or once for each batch."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a process that only reads starts faster without
    import asyncio

PROBE_S = 0.5  # how often the event loop's lag is measured
PROBES = 120  # the lag is that of the last minute
TRIPS = 256


class LoopLag:
    """How late an event loop is. `start` and `stop` are called on its thread, `lag_ms` on any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._late_s: deque[float] = deque(maxlen=PROBES)
        self._due_s: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to probe it."""
        self._loop = loop
        self._arm()

    def stop(self) -> None:
        """End that."""
        self._due_s = None
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        self._due_s = self._clock() + PROBE_S
        self._handle = self._loop.call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        if self._due_s is not None:
            self._late_s.append(max(0.0, self._clock() - self._due_s))
            self._arm()

    def lag_ms(self) -> float | None:
        """Its lateness now, if a handler blocks it, or else in 99 of 100 cases of the last minute."""
        due_s = self._due_s
        now_late = [] if due_s is None else [self._clock() - due_s]
        ended_late = percentile(list(self._late_s), 0.99)
        late = [each for each in (ended_late, *now_late) if each is not None and each >= 0]
        return round(max(late) * 1000, 1) if late else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is not less than this share of the values; None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def rss_bytes() -> int | None:
    """The resident memory of this process, where the system has it in a file (Linux)."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class RateMeter:
    """How fast a total has risen since the last call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, begin: float = 0.0) -> None:
        self._clock = clock
        self._last = clock(), begin

    def take(self, total: float, digits: int) -> float | None:
        """Per second; None if no time has passed."""
        (before_s, before), now_s = self._last, self._clock()
        if now_s <= before_s:
            return None
        self._last = now_s, total
        return round((total - before) / (now_s - before_s), digits)
