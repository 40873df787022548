"""Preview what a retry policy does to a message that keeps failing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .backoff import Backoff
from .retry import Chosen, FaultKey, Retry, checked_kind, class_names


@dataclass(frozen=True, slots=True)
class PreviewStep:
    """Retry n of a preview: its delay and its start after the first failure, as least, mean and greatest."""

    n: int
    low_s: float
    mean_s: float
    high_s: float
    at_low_s: float
    at_mean_s: float
    at_high_s: float


@dataclass(frozen=True, slots=True)
class Preview:
    """The retries of a message whose every run fails at once in the same way.

    `retries` counts them at mean delays, `retries_least` with every delay at its greatest, `retries_most` (one step
    each) with every delay at its least. `total_s` is when the last of `retries` starts, `horizon_s` the latest time at
    which a retry can start. `ends` is the reason that ends the retries at mean delays: attempts, elapsed, refused (not
    retried at all), or the preview's own limit.
    """

    chosen: Chosen
    steps: tuple[PreviewStep, ...]
    retries: int
    retries_least: int
    retries_most: int
    total_s: float
    horizon_s: float
    ends: Literal["attempts", "elapsed", "refused", "limit"]


def preview(retry: Retry, *, kind: str = "default", error: FaultKey | None = None, limit: int = 1000) -> Preview:
    """Return the delays of a policy for faults of one kind and, if given, one exception class or qualified name.

    Runs are assumed to take no time, and messages to wait for their delays only. The mean of `decorrelated`
    jitter is an estimate from above once the walk nears its cap. At most `limit` steps are given. Raises ValueError for
    an unknown kind or name.

    >>> from redrive import presets
    >>> shown = preview(presets["standard_api"])
    >>> shown.ends, shown.retries_least, shown.retries_most
    ('elapsed', 10, 11)
    """
    errors = () if error is None else class_names(error)
    chosen = retry._choose(checked_kind(kind), errors)
    bound_s = math.inf if chosen.max_elapsed_s is None else chosen.max_elapsed_s
    steps = _steps(chosen, bound_s, limit)
    retries = sum(step.at_mean_s <= bound_s for step in steps)
    return Preview(
        chosen=chosen,
        steps=steps,
        retries=retries,
        retries_least=sum(step.at_high_s <= bound_s for step in steps),
        retries_most=len(steps),
        total_s=steps[retries - 1].at_mean_s if retries else 0.0,
        horizon_s=min(bound_s, steps[-1].at_high_s) if steps else 0.0,
        ends=_ends(chosen, retries, limit),
    )


def _steps(chosen: Chosen, bound_s: float, limit: int) -> tuple[PreviewStep, ...]:
    steps: list[PreviewStep] = []
    at_low_s = at_mean_s = at_high_s = 0.0
    mean_s = None
    for n in range(min(chosen.max_attempts - 1, limit) if chosen.retryable else 0):
        low_s, high_s = chosen.backoff.range(n)
        mean_s = _mean(chosen.backoff, low_s, high_s, mean_s)
        at_low_s, at_mean_s, at_high_s = at_low_s + low_s, at_mean_s + mean_s, at_high_s + high_s
        if at_low_s > bound_s:
            break
        steps.append(PreviewStep(n, low_s, mean_s, high_s, at_low_s, at_mean_s, at_high_s))
    return tuple(steps)


def _mean(backoff: Backoff, low_s: float, high_s: float, previous_s: float | None) -> float:
    if backoff.jitter != "decorrelated":
        return (low_s + high_s) / 2
    # The exact mean of min(cap, 3 * previous) is at most min(cap, 3 * mean of previous).
    return (low_s + max(low_s, min(backoff.cap, 3 * (low_s if previous_s is None else previous_s)))) / 2


def _ends(chosen: Chosen, retries: int, limit: int) -> Literal["attempts", "elapsed", "refused", "limit"]:
    if not chosen.retryable:
        return "refused"
    if retries == chosen.max_attempts - 1:
        return "attempts"
    return "limit" if retries >= limit else "elapsed"
