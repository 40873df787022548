"""Renew the record of a process on a thread of its own, so that a hung store or event loop does not make the process
look dead, and presence does not delay the work."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from .._version import __version__
from ..config import settings
from ..errors import StoreError
from ..events import Notify
from ..store import Store
from ..system import host
from .directory import RENEW_S, ProcessCell
from .figures import TRIPS, RateMeter, percentile, rss_bytes
from .record import WorkerInfo

SECOND_S = 1.0  # seconds until the second record, as a worker writes the first before it claims anything
CLOSE_S = 1.0  # seconds for which the end of a process waits for its last write


def is_on(store: Store) -> bool:
    """Return True if this process reports itself: the store keeps cells, and the setting `telemetry` is on."""
    return store.traits.cells and not store.traits.read_only and settings().telemetry


class Keeper:
    """Writes the record that `sample` returns, with the fields that all kinds of process share, every RENEW_S until
    `close`. After an error of the store, the next write is at its usual time. `trips` has the durations of the last
    exchanges with the store in seconds: a worker adds its own; with `counts_trips`, the keeper adds those of its
    writes. `drain` is called once, when a person requests it in the record; `renewed` is called after each write, on
    the keeper's thread."""

    def __init__(
        self,
        store: Store,
        sample: Callable[[], WorkerInfo],
        notice: Notify,
        *,
        counts_trips: bool = True,
        drain: Callable[[], None] | None = None,
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._sample, self._notice = store, sample, notice
        self._entry = ProcessCell(store)
        self.trips: deque[float] = deque(maxlen=TRIPS)
        self._drain, self._renewed = drain, renewed
        self._counts_trips, self._cpu = counts_trips, RateMeter(begin=time.process_time())
        self._wake, self._over = threading.Event(), False
        self._started_ms = 0
        self._failed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if telemetry is on."""
        if is_on(self._store):
            self._thread = threading.Thread(target=self._run, name="redrive-presence", daemon=True)
            self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def soon(self) -> None:
        """Write the record soon, because something in it changed. Thread-safe."""
        self._wake.set()

    def close(self) -> None:
        """Stop writing, and remove the process from the list if the store answers within CLOSE_S."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        wait_s = SECOND_S
        while not self._over:
            self._try(self.renew)
            self._wake.wait(wait_s)
            self._wake.clear()
            wait_s = RENEW_S
        self._try(self._entry.remove)

    def renew(self) -> None:
        """Write the record once, and call `drain` if a person requested that. Raises StoreError."""
        before_s = time.monotonic()
        asked = self._entry.write(self.record())
        if self._counts_trips:
            self.trips.append(time.monotonic() - before_s)
        if asked and self._drain is not None:
            drain, self._drain = self._drain, None
            drain()
        self._renewed()

    def record(self) -> WorkerInfo:
        now_ms, trips = self._store.now_ms(), list(self.trips)
        self._started_ms = self._started_ms or now_ms
        return replace(
            self._sample(),
            host=host(),
            pid=os.getpid(),
            version=__version__,
            started_ms=self._started_ms,
            seen_ms=now_ms,
            cpu_share=self._cpu.take(time.process_time(), 3),
            rss_bytes=rss_bytes(),
            store_p50_ms=_ms(percentile(trips, 0.5)),
            store_p99_ms=_ms(percentile(trips, 0.99)),
            clock_ahead_ms=time.time_ns() // 1_000_000 - now_ms,
        )

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except StoreError:
            pass  # the worker itself reports an outage of the store
        except Exception:  # a bug, or the store was closed meanwhile; the work must continue in either case
            if not self._failed and not self._over:
                self._failed = True
                self._notice("presence_failed", traceback.format_exc(limit=-3), "")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
