"""Evidence for a breaker: the calls that count for or against the dependency, and not for the messages that call it.

First attempts decide. A message that failed while others succeeded probably has a fault of its own; when it fails
again, that is no evidence about the dependency (`repeats`). Other retries are evidence, but where there are retries
alone nearly all of them must have failed. So the tail of a bulk job, where only what fails by its own nature is left,
does not open the breaker of a healthy dependency.
"""

from __future__ import annotations

from .breaker_rule import Breaker
from .window import CallWindow, sums

FIRSTS_SHARE = 0.25  # share of `min_calls`; with fewer first attempts in the window, only retries count
FORGIVEN = 0.1  # share of the expected successes that may succeed with retries alone: of 50 % expected, 5 %
LATELY_WINDOWS = 6  # a failure is blamed on its message only if the last success is at most so many windows ago


def repeats(failed_ms: int, well_ms: int, closed_ms: int, breaker: Breaker, now_ms: int) -> bool:
    """True if a retry that fails now is no evidence about the dependency: the message first failed at `failed_ms`,
    while the breaker was closed (since `closed_ms`), and calls have succeeded since, the last (`well_ms`) recently."""
    return closed_ms <= failed_ms <= well_ms and now_ms - well_ms <= LATELY_WINDOWS * breaker.window_ms


def opens(firsts: CallWindow, retries: CallWindow, breaker: Breaker) -> bool:
    """True if these calls open the breaker. `firsts` has calls, failures and slow calls of first attempts; `retries`
    has calls, failures, and repeated failures (in neither of the others).

    With fewer first attempts, only retries count: nine tenths of the successes that `failure_rate` expects must be
    missing too.
    """
    calls, failed, slow = sums(firsts)
    again, again_failed, repeated = sums(retries)
    rate = breaker.failure_rate
    if calls < FIRSTS_SHARE * breaker.min_calls:
        rate = 1 - FORGIVEN * (1 - rate)
    elif failed / max(calls, 1) >= rate:
        again, again_failed = again + repeated, again_failed + repeated
    total = calls + again
    if total < breaker.min_calls:
        return False
    too_slow = breaker.slow_rate is not None and slow / total >= breaker.slow_rate
    return too_slow or (failed + again_failed) / total >= rate
