"""Measure the load of a process cheaply, every few seconds or once a batch."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not imported at run time, as a process that only reads then starts faster
    import asyncio

PROBE_S = 0.5  # seconds between two probes of the event loop
PROBES = 120  # probes that are kept: those of the last minute
TRIPS = 256


class LoopLag:
    """Measures how late an event loop runs its callbacks. Call `start` and `stop` on its thread; `lag_ms` on any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._late_s: deque[float] = deque(maxlen=PROBES)
        self._due_s: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to probe this loop."""
        self._loop = loop
        self._arm()

    def stop(self) -> None:
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
        """Return how late callbacks are, in ms: the 99th percentile of the last minute, or the present lateness if that
        is worse; None if unknown."""
        due_s = self._due_s
        now_late = [] if due_s is None else [self._clock() - due_s]
        ended_late = percentile(list(self._late_s), 0.99)
        late = [each for each in (ended_late, *now_late) if each is not None and each >= 0]
        return round(max(late) * 1000, 1) if late else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that has this share of the values below it; None if there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def rss_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None on systems without /proc."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class RateMeter:
    """Measures how fast a total rises between calls of `take`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, begin: float = 0.0) -> None:
        self._clock = clock
        self._last = clock(), begin

    def take(self, total: float, digits: int) -> float | None:
        """Return by how much the total rose per second since the last call, rounded to `digits`; None if no time has
        passed."""
        (before_s, before), now_s = self._last, self._clock()
        if now_s <= before_s:
            return None
        self._last = now_s, total
        return round((total - before) / (now_s - before_s), digits)
