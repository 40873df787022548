"""Counts and percentiles of the past as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ..history import Histogram, Tally


_HISTOGRAMS = ("run", "wait", "first_try", "after_retries", "retry_delay")


def tally_row(tally: Tally) -> dict[str, Any]:
    """Return the most important counts and durations of a span of time as a row."""
    return {
        "enqueued": tally.enqueued,
        "done": tally.done,
        "retried": tally.outcomes.get("retry", 0),
        "dead": tally.outcomes.get("dead", 0) + tally.outcomes.get("quarantined", 0),
        "error_rate": tally.error_rate,
        "run_p50_ms": tally.run.percentile(0.5),
        **{f"{name}_p95_ms": getattr(tally, name).percentile(0.95) for name in _HISTOGRAMS[:4]},
    }


def tally_record(tally: Tally) -> dict[str, Any]:
    """Return all counts of a span of time as a record, with percentiles in ms."""
    counts = {name: value for name, value in msgspec.to_builtins(tally).items() if name not in _HISTOGRAMS}
    counts["deferrals"] = {why: {"count": n, "ms": long_ms} for why, (n, long_ms) in tally.deferrals.items()}
    return {
        **counts,
        "error_rate": tally.error_rate,
        **{name: _durations(getattr(tally, name)) for name in _HISTOGRAMS},
    }


def _durations(histogram: Histogram) -> dict[str, Any]:
    shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99}
    percentiles = {name: histogram.percentile(share) for name, share in shares.items()}
    return {"count": histogram.count, "sum_ms": histogram.sum_ms, **percentiles}
