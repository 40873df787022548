"""What counts as evidence for a breaker: it judges the dependency, not the messages that call it.

First attempts decide. A message that failed while others succeeded probably has a fault of its own; when it fails
again, that is no evidence about the dependency (`repeats`). Other retries are evidence, but where there are
retries alone nearly all of them must have failed. So the tail of a bulk job, where only what fails by its own nature is
left, does not open the breaker of a healthy dependency.
"""

from __future__ import annotations

from .breaker_rule import Breaker
from .window import CallWindow, sums

FIRSTS_SHARE = 0.25  # of `min_calls`: with fewer first attempts in the window, only retries count
FORGIVEN = 0.1  # of the successes that a rate asks for: with retries alone, 95 % must have failed where 50 % open it
LATELY_WINDOWS = 6  # how long after the last success of any call a message's old failure is its own


def repeats(failed_ms: int, well_ms: int, closed_ms: int, breaker: Breaker, now_ms: int) -> bool:
    """Whether a retry that fails now is no evidence about the dependency: its message first failed at
    `failed_ms`, while the breaker was closed (since `closed_ms`), calls have succeeded since, and the last one did
    lately."""
    return closed_ms <= failed_ms <= well_ms and now_ms - well_ms <= LATELY_WINDOWS * breaker.window_ms


def opens(firsts: CallWindow, retries: CallWindow, breaker: Breaker) -> bool:
    """Whether these calls open it. Of first attempts the window has calls, failures and slow calls; of retries it has
    calls, failures, and failures that repeat, which are in neither.

    - With a quarter of `min_calls` first attempts or more, `failure_rate` is asked of them and the retries together;
      repeated failures count too if first attempts fail at that rate.
    - With fewer, only retries count: of ten successes that `failure_rate` would ask for nine must be missing too.
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
