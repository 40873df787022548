"""A redrive run in a simulated world: the pace, canary, stop rule and breaker gate of the product, tick by tick."""

from __future__ import annotations

import math

from ..message import Message
from ..triage.redrive import pacing
from ..triage.redrive.gates import held
from ..triage.redrive.plan import fitted
from ..triage.redrive.records import RedriveSettings
from ..triage.redrive.runner import BATCH, IDLE_S, QUIET_MAX, ROOM_S, SETTLING_S
from .world import QUEUE, TASK, World

RUN = "simulated"
#: The start of a run wakes idle workers; they looked less than a second ago, so they sleep for another second.
LOOK_MS = 1000


class Carrier:
    """Moves `total` dead messages into the world from `at_ms` on, as a plan with these settings does.

    `over_ms` is when the run was over (None: not yet), `why` says why it stopped itself. `moved`, `done` and `failed`
    count its messages as a run does: by their first execution.
    """

    why: str
    total: int
    moved: int
    done: int
    failed: int

    def __init__(self, world: World, total: int, settings: RedriveSettings, at_ms: int, seed: int = 0) -> None:
        self._world, self.total, self._seed = world, total, seed
        self._settings = fitted(settings, total)
        self._stop = pacing.StopRule.parse(settings.stop_if) if settings.stop_if else None
        self._gated = settings.gates is None or settings.gates.breaker
        self.moved = self.done = self.failed = 0
        self.over_ms: int | None = None
        self.why = ""
        self._seen = (0, 0)  # done and failed at the last tick
        self._canary_over = not self._settings.canary
        self._speed: pacing.Speed | None = None
        self._still_ms = 0
        self._quiet = 0
        world.on_first = self._ended
        world.awaits = True
        world.at(at_ms + LOOK_MS, self._tick)

    def _ended(self, done: bool) -> None:
        self.done += done
        self.failed += not done

    @property
    def _waiting(self) -> int:
        return self.moved - self.done - self.failed

    def _tick(self) -> None:
        now_ms, settings = self._world.now_ms, self._settings
        news = (self.done - self._seen[0], self.failed - self._seen[1])
        self._seen = (self.done, self.failed)
        self.why = self._why_stop(now_ms) or ""
        if self.why or (self.moved == self.total and not self._waiting):
            self.over_ms, self._world.awaits = now_ms, False
            return
        if self._speed is None:
            self._speed = pacing.begin(settings.rate, settings.slow_start and not settings.canary, now_ms)
        self._wait_for_breaker(now_ms)
        moved = 0
        if not self._still_ms:
            halve = settings.halve_on_failures
            self._speed = pacing.with_outcomes(self._speed, settings.rate, *news, now_ms, halve)
            self._speed, moved = pacing.grant(self._speed, settings.rate, now_ms, self._wanted())
            for _ in range(moved):
                self._move(now_ms)
        self._quiet = 0 if moved or any(news) else self._quiet + 1
        self._world.at(now_ms + math.ceil(self._pause_s(now_ms) * 1000), self._tick)

    def _why_stop(self, now_ms: int) -> str | None:
        if not self._canary_over:
            if self._waiting or (self.moved < self.total and self.moved < self._settings.canary):
                return None
            self._canary_over = True
            word = pacing.canary(self.moved, self._stop, self.done, self.failed)
            if word != pacing.GO_ON:
                return word
            self._speed = pacing.begin(self._settings.rate, self._settings.slow_start, now_ms)
        return None if self._stop is None else self._stop.says(self.done, self.failed, self.total)

    def _wait_for_breaker(self, now_ms: int) -> None:
        d = self._world.d
        closed = self._gated and d is not None and self.moved < self.total
        still = closed and d is not None and held(self._world.state, d, d.name, now_ms) is not None
        if self._still_ms and not still and self._speed is not None:
            self._speed = pacing.rested(self._speed, now_ms - self._still_ms, now_ms)
        self._still_ms = (self._still_ms or now_ms) if still else 0

    def _wanted(self) -> int:
        wanted = min(self.total - self.moved, BATCH)
        if not self._canary_over:
            wanted = min(wanted, max(0, self._settings.canary - self.moved))
        if self._settings.at_once is not None:
            wanted = min(wanted, self._settings.at_once - self._waiting)
        return max(0, wanted)

    def _move(self, now_ms: int) -> None:
        s = self._settings
        id = f"{self._seed}-r{self.moved}"
        self.moved += 1
        self._world.put(
            Message(
                id, TASK, QUEUE, b"", id, redrives=1, run=RUN, life_ms=now_ms, enqueued_ms=now_ms,
                due_ms=now_ms + s.delay_ms, attempts_allowed=s.attempts,
            )
        )  # fmt: skip

    def _pause_s(self, now_ms: int) -> float:
        """Return the seconds until the next tick, as the product's runner paces them."""
        s, speed = self._settings, self._speed
        if self._still_ms:
            return IDLE_S
        tick_s = SETTLING_S if self._waiting and self._quiet < QUIET_MAX else IDLE_S
        if self.moved >= self.total or speed is None:
            return tick_s
        if s.at_once is not None and self._waiting >= s.at_once:
            return min(max(s.at_once / (s.rate or pacing.MAX_PER_S) / 2, ROOM_S), tick_s)
        return min(max(pacing.next_ms(speed, s.rate, now_ms) - now_ms, 10) / 1000, tick_s)
