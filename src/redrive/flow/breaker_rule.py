"""The declared rule of a circuit breaker, and the words for the results of calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..duration import Duration
from ..errors import ConfigError
from .rules import number, put, span_s, whole

GROWTH = 1.5  # factor by which each further opening in a row is longer
SPREAD = 0.2  # an opening is up to this share shorter or longer, by jitter
DAY_S = 86_400.0


class Call(StrEnum):
    """The result of a call. `slow` succeeded, slowly. `ignored` is no evidence of the dependency's health, such as a
    permanent fault; `throttled` is none either, but makes a ramp fall back. Both count as success of a probe, since the
    dependency answered."""

    SUCCESS = "success"
    FAILURE = "failure"
    SLOW = "slow"
    SLOW_FAILURE = "slow_failure"
    IGNORED = "ignored"
    THROTTLED = "throttled"


FAILED = (Call.FAILURE, Call.SLOW_FAILURE)
SLOW = (Call.SLOW, Call.SLOW_FAILURE)


@dataclass(frozen=True, slots=True, init=False)
class Breaker:
    """When to stop calling a dependency, and how to start again. Durations are kept as float seconds.

    - It opens when at least `failure_rate` of the calls in the last `window` (ten buckets) failed, or at least
      `slow_rate` took longer than `slow_call`, and there were `min_calls`. Permanent and throttled faults are not
      counted. `slow_rate` defaults to `failure_rate`.
    - It judges the dependency, not the messages. A retry that fails is no evidence if its message failed first while
      the breaker was closed, something has succeeded since, and the last success is no more than six windows old. With
      fewer first attempts in the window than a quarter of `min_calls`, nearly all calls must have failed: all but a
      tenth of the share that may fail otherwise, 95 % for a rate of 50 %.
    - It stays open for min(max_open, open_for·1.5^k) ± 20 %, where k counts the openings in a row, without it having
      been closed for a window in between: 5, 7.5, 11.25 s, … by default. While it is open nothing is called, and no
      message loses an attempt.
    - Then `probes` calls are allowed. One that does not end within `probe_lease` counts as failed. It opens again once
      `failure_rate` of the probes failed, or of those that ended, if none is in progress. It closes once all have
      ended, and fewer than `slow_rate` were slow.
    - After that, waiting messages start at `probes` a second, doubling every 10 s, and at half the rate after a second
      with more failures than a tenth of `failure_rate`.

    Rates are from 0.001 to 1, durations up to a day. Raises ConfigError, ValueError or TypeError.

    >>> Breaker(open_for="2s").open_ms(opened=1, u=0.5)
    3000
    """

    failure_rate: float
    window: float
    min_calls: int
    open_for: float
    max_open: float
    probes: int
    probe_lease: float
    slow_call: float | None
    slow_rate: float | None

    def __init__(
        self,
        failure_rate: float = 0.5,
        window: Duration = "10s",
        min_calls: int = 20,
        open_for: Duration = "5s",
        max_open: Duration = "120s",
        probes: int = 3,
        probe_lease: Duration = "30s",
        slow_call: Duration | None = None,
        slow_rate: float | None = None,
    ) -> None:
        if slow_rate is not None and slow_call is None:
            raise ConfigError(
                f"breaker slow_rate {slow_rate!r} is refused without slow_call: expected how long a slow call takes"
            )
        if slow_call is not None and slow_rate is None:
            slow_rate = failure_rate
        put(
            self,
            failure_rate=number(failure_rate, "breaker failure_rate", 0.001, 1),
            window=span_s(window, "breaker window", 0.01, DAY_S),
            min_calls=whole(min_calls, "breaker min_calls", 1, 1_000_000),
            open_for=span_s(open_for, "breaker open_for", 0.001, DAY_S),
            max_open=span_s(max_open, "breaker max_open", 0.001, DAY_S),
            probes=whole(probes, "breaker probes", 1, 1_000),
            probe_lease=span_s(probe_lease, "breaker probe_lease", 0.001, DAY_S),
            slow_call=None if slow_call is None else span_s(slow_call, "breaker slow_call", 0.001, DAY_S),
            slow_rate=None if slow_rate is None else number(slow_rate, "breaker slow_rate", 0.001, 1),
        )
        if self.max_open < self.open_for:
            raise ConfigError(f"breaker max_open {max_open!r} is refused: expected no less than open_for {open_for!r}")

    @property
    def window_ms(self) -> int:
        """`window` in whole milliseconds."""
        return round(self.window * 1000)

    def open_ms(self, opened: int, u: float) -> int:
        """Return the length of an opening in ms, if `opened` others precede it in a row, for the draw u in [0, 1)."""
        term_s = min(self.max_open, self.open_for * GROWTH ** min(opened, 100))
        return max(1, round(term_s * 1000 * (1 + SPREAD * (2 * u - 1))))
