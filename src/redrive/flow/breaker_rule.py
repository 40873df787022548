"""The rule of a circuit breaker, as it is declared, and the words for how a call ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..duration import Duration, seconds

GROWTH = 1.5  # each opening in a row lasts so much longer
SPREAD = 0.2  # ± of an opening's length


class Call(StrEnum):
    """How a call ended. `slow` succeeded, slowly. `ignored` says nothing of the dependency's health, such as a
    permanent fault; `throttled` neither, but a ramp falls back on it. Both end a probe as a success: it answers."""

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
    """When to stop calling a dependency, and how to begin again. Durations are kept as float seconds.

    - It opens when of the calls of the last `window` (ten buckets) at least `failure_rate` failed, or at least
      `slow_rate` took longer than `slow_call`, and there were `min_calls`. Faults that are permanent or throttled are
      no calls to it. `slow_rate` is `failure_rate` unless it is given.
    - It stays open for min(max_open, open_for·1.5^k) ± 20 %, where k counts the openings in a row, without it having
      been closed for a window in between: 5, 7.5, 11.25 s, … by default. While it is open nothing is called, and no
      message loses an attempt.
    - Then `probes` calls are let through. All must succeed within `probe_lease` each, and fewer than `slow_rate` of
      them may be slow; then it closes. One that fails, or does not end in time, opens it again.
    - What has waited is let go from `probes` a second on, doubling every 10 s, and at half the rate after a second with
      more failures than a tenth of `failure_rate`.

    Raises ValueError or TypeError.

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
            raise ValueError(
                f"slow_rate {slow_rate!r} is refused without slow_call: expected how long a slow call takes"
            )
        if slow_call is not None and slow_rate is None:
            slow_rate = failure_rate
        values = {
            "failure_rate": _share(failure_rate, "failure_rate"),
            "window": _span(window, "window", 0.01),
            "min_calls": _count(min_calls, "min_calls"),
            "open_for": _span(open_for, "open_for", 0.001),
            "max_open": _span(max_open, "max_open", 0.001),
            "probes": _count(probes, "probes"),
            "probe_lease": _span(probe_lease, "probe_lease", 0.001),
            "slow_call": None if slow_call is None else _span(slow_call, "slow_call", 0.001),
            "slow_rate": None if slow_rate is None else _share(slow_rate, "slow_rate"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.max_open < self.open_for:
            raise ValueError(f"breaker max_open {max_open!r} is refused: expected no less than open_for {open_for!r}")

    @property
    def window_ms(self) -> int:
        """`window` in whole ms."""
        return round(self.window * 1000)

    def open_ms(self, opened: int, u: float) -> int:
        """How long it stays open after `opened` openings in a row, for the draw u in [0, 1)."""
        term_s = min(self.max_open, self.open_for * GROWTH ** min(opened, 100))
        return max(1, round(term_s * 1000 * (1 + SPREAD * (2 * u - 1))))

    def call(self, *, failed: bool, run_s: float | None = None) -> Call:
        """The word for a call that took `run_s` seconds (None: not known)."""
        slow = self.slow_call is not None and run_s is not None and run_s > self.slow_call
        if failed:
            return Call.SLOW_FAILURE if slow else Call.FAILURE
        return Call.SLOW if slow else Call.SUCCESS


def _share(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"breaker {what} {value!r} is refused: expected a share above 0 and up to 1")
    if not 0 < value <= 1:
        raise ValueError(f"breaker {what} {value!r} is refused: expected a share above 0 and up to 1")
    return float(value)


def _count(value: int, what: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"breaker {what} {value!r} is refused: expected a whole number from 1 up")
    return value


def _span(value: Duration, what: str, least_s: float) -> float:
    span_s = seconds(value, f"breaker {what}")
    if span_s < least_s:
        raise ValueError(f"breaker {what} {value!r} is refused: expected at least {least_s:g} s")
    return span_s
