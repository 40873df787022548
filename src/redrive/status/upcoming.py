"""Count upcoming messages: those due in the next minutes, hour and day."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..message import DueCount
from ..store import Store

TEN_S, MINUTE_S, HOUR_S = 10, 60, 3600
_SPANS = ((TEN_S, 60), (MINUTE_S, 60), (HOUR_S, 24))
_AHEAD_S = sorted({step_s * n for step_s, count in _SPANS for n in range(count + 1)})


class Wave(Struct, frozen=True):
    """The messages that become due in a span of time: `first` have not run yet, `retries` have failed before."""

    first: int = 0
    retries: int = 0
    exact: bool = True  # False: estimated, as counting would take too long

    @property
    def all(self) -> int:
        return self.first + self.retries


class Upcoming(Struct, frozen=True, kw_only=True):
    """The messages of a queue, or of all (None), that become due after `at_ms`: in each of the next 60 tens of seconds,
    60 minutes and 24 hours. Due and running messages are left out. PostgreSQL estimates large counts further ahead;
    each `Wave` says whether it is `exact`."""

    queue: str | None
    at_ms: int
    tens: tuple[Wave, ...]
    minutes: tuple[Wave, ...]
    hours: tuple[Wave, ...]

    def within(self, seconds: float) -> int:
        """Return how many messages become due within so many seconds, rounded down to tens of seconds up to 10 minutes,
        to minutes up to an hour, and then to hours."""
        for waves, step_s in ((self.tens, TEN_S), (self.minutes, MINUTE_S), (self.hours, HOUR_S)):
            if seconds <= step_s * len(waves):
                break
        return sum(wave.all for wave in waves[: int(seconds // step_s)])


def read_upcoming(store: Store, queue: str | None = None) -> Upcoming:
    """Return the upcoming messages of a queue, or of all queues. Raises StoreError; Unsupported if the store cannot
    count them (SQS)."""
    now_ms = store.now_ms()
    bounds_ms = [now_ms + ahead_s * 1000 for ahead_s in _AHEAD_S]
    sums = [DueCount(0, 0)] * (len(bounds_ms) - 1)
    for name in [queue] if queue is not None else store.queues() or [""]:
        counts = store.due_counts(name, bounds_ms)
        sums = [DueCount(a + c, b + d, e and f) for (a, b, e), (c, d, f) in zip(sums, counts, strict=True)]
    tens, minutes, hours = (_waves(sums, step_s, count) for step_s, count in _SPANS)
    return Upcoming(queue=queue, at_ms=now_ms, tens=tens, minutes=minutes, hours=hours)


def _waves(sums: Sequence[DueCount], step_s: int, count: int) -> tuple[Wave, ...]:
    """Return the counts between the bounds added up to `count` waves of `step_s` seconds."""
    waves = [Wave()] * count
    for ahead_s, (every, retries, exact) in zip(_AHEAD_S[1:], sums, strict=True):
        at = (ahead_s - 1) // step_s
        if at < count:
            was = waves[at]
            waves[at] = Wave(was.first + max(0, every - retries), was.retries + retries, was.exact and exact)
    return tuple(waves)
