"""The modelled dependency: how long calls take, how many it bears, and how it fails by itself and in phases."""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import Literal

from msgspec import Struct

from ..fault import Fault, Kind
from ..message import Message
from ..policy import draw

Spread = Literal["fixed", "exponential", "lognormal"]
_SIGMA = 0.5  # the standard deviation of the logarithm of a log-normal duration
_SECOND_MS = 1000


class ServicePhase(Struct, frozen=True):
    """A time in which a dependency behaves otherwise: of the calls that begin from `from_s` until `until_s`, `share`
    fail with a fault of `kind`, asking for a wait of `retry_after_s`. `latency_ms` and `capacity` replace those of the
    service. Seconds count from the start of the scenario."""

    from_s: float
    until_s: float
    share: float = 0.0
    kind: str = "transient"
    retry_after_s: float | None = None
    latency_ms: float | None = None
    capacity: float | None = None


class ModelService(Struct, frozen=True, kw_only=True):
    """A dependency.

    A call takes `latency_ms`, by the distribution `spread`; one that is refused takes `refusal_ms`. `fails` of the
    calls fail with a fault of `kind`, and all calls of `poison` of the messages. It bears `capacity` calls a second.
    Calls above that are refused as throttled with `retry_after_s`; or, with `queue_ms`, they wait for their turn, as
    long as less than `queue_ms` of work waits. A caller gives up after `timeout_ms`; its call is served all the same,
    unless the service `abandons` it. Each call takes `crowd_ms` more for each other one that is under way.
    """

    latency_ms: float = 50.0
    spread: Spread = "fixed"
    refusal_ms: float = 5.0
    fails: float = 0.0
    kind: str = "transient"
    poison: float = 0.0
    capacity: float | None = None
    retry_after_s: float | None = None
    queue_ms: float = 0.0
    timeout_ms: float = 300_000.0
    abandons: bool = False
    crowd_ms: float = 0.0
    phases: tuple[ServicePhase, ...] = ()


class ServiceModel:
    """A service in the course of a scenario that began at `start_ms`."""

    def __init__(self, service: ModelService, start_ms: int, seed: int) -> None:
        self._service, self._start_ms = service, start_ms
        self._random = random.Random(seed)
        self._recent: deque[int] = deque()  # when the calls of the last second began
        self._ends: list[int] = []  # when the calls that are under way end, if that matters
        self._free_ms = 0.0  # when the work that waits will be done
        self._now: tuple[ServicePhase, ...] = ()
        self._next_ms = -1.0  # when the present phases change
        self._faults: dict[tuple[str, float | None], Fault] = {}

    def call(self, message: Message, now_ms: int) -> tuple[int, Fault | None]:
        """Begin a call; return when it ends for the caller, and its fault."""
        s, chance = self._service, self._random.random
        if now_ms >= self._next_ms:
            self._turn(now_ms)
        latency_ms, capacity = s.latency_ms, s.capacity
        for phase in self._now:
            latency_ms = latency_ms if phase.latency_ms is None else phase.latency_ms
            capacity = capacity if phase.capacity is None else phase.capacity
            if phase.share and chance() < phase.share:
                return self._end(now_ms, s.refusal_ms), self._fault(phase.kind, phase.retry_after_s)
        if s.spread == "exponential":
            latency_ms = self._random.expovariate(1 / latency_ms)
        elif s.spread == "lognormal":
            latency_ms *= self._random.lognormvariate(-_SIGMA * _SIGMA / 2, _SIGMA)
        if s.crowd_ms:
            while self._ends and self._ends[0] <= now_ms:
                heapq.heappop(self._ends)
            latency_ms += s.crowd_ms * len(self._ends)
            heapq.heappush(self._ends, now_ms + int(min(latency_ms, s.timeout_ms) if s.abandons else latency_ms))
        if capacity is not None:
            if not s.queue_ms:
                if self._sheds(capacity, now_ms):
                    return self._end(now_ms, s.refusal_ms), self._fault("throttled", s.retry_after_s)
            elif self._free_ms - now_ms > s.queue_ms:
                return self._end(now_ms, s.refusal_ms), self._fault("transient", None)
            else:
                free_ms = max(self._free_ms, now_ms) + _SECOND_MS / capacity
                latency_ms += free_ms - now_ms
                if not (s.abandons and latency_ms > s.timeout_ms):
                    self._free_ms = free_ms
        if latency_ms > s.timeout_ms:
            return self._end(now_ms, s.timeout_ms), self._fault("timeout", None)
        fails = s.fails and chance() < s.fails
        if fails or (s.poison and draw(message.id, 0, 0) < s.poison):
            return self._end(now_ms, latency_ms), self._fault(s.kind, None)
        return self._end(now_ms, latency_ms), None

    def _end(self, now_ms: int, took_ms: float) -> int:
        """Return the end in whole ms, rounded at random, so that short calls take what they take on average."""
        whole = int(took_ms)
        return now_ms + whole + (self._random.random() < took_ms - whole)

    def _turn(self, now_ms: int) -> None:
        at_s = (now_ms - self._start_ms) / 1000
        self._now = tuple(p for p in self._service.phases if p.from_s <= at_s < p.until_s)
        edges = [edge for p in self._service.phases for edge in (p.from_s, p.until_s) if edge > at_s]
        self._next_ms = self._start_ms + min(edges) * 1000 if edges else float("inf")

    def _sheds(self, capacity: float, now_ms: int) -> bool:
        while self._recent and self._recent[0] <= now_ms - _SECOND_MS:
            self._recent.popleft()
        if len(self._recent) >= capacity:
            return True
        self._recent.append(now_ms)
        return False

    def _fault(self, kind: str, retry_after_s: float | None) -> Fault:
        known = self._faults.get((kind, retry_after_s))
        if known is None:
            known = self._faults[kind, retry_after_s] = Fault(
                Kind(kind), "Simulated", f"simulated {kind}", retry_after_s=retry_after_s
            )
        return known
