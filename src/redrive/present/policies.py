"""Retry policies and their delays as records."""

from __future__ import annotations

from typing import Any

from ..duration import show
from ..policy import Backoff, Preview, PreviewStep


def policy_summary(name: str, shown: Preview) -> dict[str, Any]:
    """Return the summary of a retry policy as a row."""
    return {
        "name": name,
        "max_attempts": shown.chosen.max_attempts,
        "max_elapsed_s": shown.chosen.max_elapsed_s,
        "backoff": _words(shown.chosen.backoff),
        "ends": shown.ends,
        "retries": shown.retries,
        "retries_least": shown.retries_least,
        "retries_most": shown.retries_most,
        "total_s": _plain(shown.total_s),
        "horizon_s": _plain(shown.horizon_s),
        "why": shown.chosen.why,
        "on_exhausted": shown.chosen.on_exhausted,
    }


def _words(backoff: Backoff) -> str:
    share = f" {backoff.share:.0%}" if backoff.jitter in ("additive", "symmetric") else ""
    jitter = "no jitter" if backoff.jitter == "none" else f"{backoff.jitter} jitter{share}"
    cap = f", cap {show(backoff.cap)}"
    if backoff.fn is not None:
        return f"{getattr(backoff.fn, '__name__', 'a function')}(n){cap}, {jitter}"
    if backoff.step is not None:
        return f"{show(backoff.base)} + {show(backoff.step)}·n{cap}, {jitter}"
    if backoff.factor == 1:
        return f"{show(backoff.base)} each, {jitter}"
    return f"{show(backoff.base)} × {backoff.factor:g}^n{cap}, {jitter}"


def step_record(step: PreviewStep) -> dict[str, Any]:
    """Return one retry of a policy as a row."""
    return {
        "retry": step.n + 1,
        "low_s": _plain(step.low_s),
        "mean_s": _plain(step.mean_s),
        "high_s": _plain(step.high_s),
        "at_low_s": _plain(step.at_low_s),
        "at_mean_s": _plain(step.at_mean_s),
        "at_high_s": _plain(step.at_high_s),
    }


def _plain(value_s: float) -> float:
    """Return seconds rounded to a microsecond, as a sum of floats may be 27.299999999999997."""
    return round(value_s, 6)
