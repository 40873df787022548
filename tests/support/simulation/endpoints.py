"""Endpoints that are called: what they bear, and how they fail."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from redrive.fault import Fault, Kind

REFUSED = Fault(Kind.TRANSIENT, "builtins.ConnectionRefusedError", "connection refused")
UNAVAILABLE = Fault(Kind.TRANSIENT, "httpx.HTTPStatusError", "503 Service Unavailable")
TOO_MANY = Fault(Kind.THROTTLED, "httpx.HTTPStatusError", "429 Too Many Requests")
TIMED_OUT = Fault(Kind.TIMEOUT, "TimeoutError", "no answer in time")


@dataclass(slots=True)
class Log:
    """What reached an endpoint, and what it answered."""

    firsts: list[int] = field(default_factory=list)  # times in ms
    retries: list[int] = field(default_factory=list)
    served: list[int] = field(default_factory=list)

    def arrived(self, now_ms: int, first: bool) -> None:
        (self.firsts if first else self.retries).append(now_ms)


@dataclass(slots=True)
class Fragile:
    """Bears `capacity` calls in any second; answers those above it with `shed`, and falls over at a tenth more: then
    it refuses all for `down_ms`. It is out for good in `outages`."""

    capacity: float
    latency_ms: int = 20
    shed: Fault = UNAVAILABLE
    down_ms: int = 60_000
    outages: tuple[tuple[int, int], ...] = ()
    log: Log = field(default_factory=Log)
    falls: list[int] = field(default_factory=list)
    peak: int = 0  # calls in any second, while it was up or had fallen over
    _until_ms: int = 0
    _second: deque[int] = field(default_factory=deque)

    def call(self, now_ms: int, first: bool) -> tuple[int, Fault | None]:
        self.log.arrived(now_ms, first)
        if any(since <= now_ms < until for since, until in self.outages):
            return now_ms + 5, REFUSED
        while self._second and self._second[0] <= now_ms - 1000:
            self._second.popleft()
        self._second.append(now_ms)
        calls = len(self._second)
        self.peak = max(self.peak, calls)
        if now_ms < self._until_ms:
            return now_ms + 5, REFUSED
        if calls > 1.1 * self.capacity:
            self.falls.append(now_ms)
            self._until_ms = now_ms + self.down_ms
            return now_ms + 5, REFUSED
        if calls > self.capacity:
            return now_ms + 5, self.shed
        self.log.served.append(now_ms)
        return now_ms + self.latency_ms, None


@dataclass(slots=True)
class Queueing:
    """Serves `capacity` calls a second, one after another, and lets `queue_ms` of work wait. Callers give up after
    `timeout_ms`; it does not notice, and serves them all the same: that is what makes a collapse last."""

    capacity: float
    latency_ms: int = 20
    timeout_ms: int = 2_000
    queue_ms: int = 4_000
    log: Log = field(default_factory=Log)
    _free_ms: float = 0.0

    def call(self, now_ms: int, first: bool) -> tuple[int, Fault | None]:
        self.log.arrived(now_ms, first)
        if self._free_ms - now_ms > self.queue_ms:
            return now_ms + 5, UNAVAILABLE
        self._free_ms = max(self._free_ms, now_ms) + 1000 / self.capacity
        end_ms = round(self._free_ms) + self.latency_ms
        if end_ms - now_ms > self.timeout_ms:
            return now_ms + self.timeout_ms, TIMED_OUT
        self.log.served.append(end_ms)
        return end_ms, None
