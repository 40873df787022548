"""Forecasts as records and in words: the same in command line, pages and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..duration import show
from .formats import number, seconds, share, timestamp

if TYPE_CHECKING:
    from ..simulate import (
        BreakerForecast,
        BreakerReturn,
        PendingForecast,
        PlanForecast,
        QueueForecast,
        Score,
        ScoredForecast,
    )

_LONG = "longer than the 4h that are simulated"


def plan_forecast_record(made: PlanForecast | None) -> dict[str, Any] | None:
    """Return the forecast of a plan as a record, with its sentences; None for none."""
    if made is None:
        return None
    return {
        "made_at": timestamp(made.made_ms),
        "peak_per_s": round(made.peak_per_s, 3),
        "took_per_s": _rounded(made.took_per_s),
        "took_most_per_s": _rounded(made.took_most_per_s),
        "over_s": _rounded(made.over_s, 1),
        "failed": made.failed,
        "stopped": made.stopped or None,
        "fails": round(made.fails, 4),
        "basis": made.basis,
        "like": {
            "runs": made.like, "came_through": made.came_through, "done": made.like_done, "failed": made.like_failed,
        },
        "workers": made.workers,
        "processor": _rounded(made.processor),
        "words": list(plan_words(made)),
    }  # fmt: skip


def plan_words(made: PlanForecast) -> Iterator[str]:
    """Yield what a plan's run will do, as sentences without a full stop."""
    load = f"at most {number(made.peak_per_s)} calls/s more"
    if made.took_per_s is None or made.took_most_per_s is None:
        yield f"{load}; what these tasks made in the last hour is not kept"
    else:
        took = f"these tasks made {number(made.took_per_s)}/s in the last hour, {number(made.took_most_per_s)}/s"
        yield f"{load}; {took} in its busiest minute"
    if made.stopped:
        fails = f"if {share(made.fails)} fail, by {made.basis}"
        yield f"it stops itself after {seconds(made.over_s)}, {fails}: {made.stopped}"
    else:
        lasts = _LONG if made.over_s is None else seconds(made.over_s)
        fails = f"{made.failed:,} of {made.total:,} fail at first ({share(made.fails)}, by {made.basis})"
        yield f"it lasts {lasts}; {fails}"
    if made.like:
        runs = f"{made.came_through} of the last {made.like} runs like it came through"
        yield f"{runs}: {made.like_done:,} done, {made.like_failed:,} failed"
    else:
        yield "no run like it was closed in the last 30 days"
    if made.processor_bound:
        needs = f"at that load a worker needs {number(made.processor)} of a processor, by what messages lately cost it"
        yield f"not comparable with what will come: {needs}; calls that wait for one last longer than foretold"
    if not made.workers:
        yield "no worker runs its queues now: one with 20 places is assumed"


def breaker_forecast_record(made: BreakerForecast | None) -> dict[str, Any] | None:
    """Return what an open breaker will do as a record, with its sentences; None for none."""
    if made is None:
        return None
    return {
        "waiting": made.waiting,
        "in_per_s": _rounded(made.in_per_s),
        "soon": _return(made.soon),
        "first_minute": list(made.first_minute),
        "later": [_return(each) for each in made.later],
        "words": list(breaker_words(made)),
    }


def _return(made: BreakerReturn) -> dict[str, Any]:
    return {
        "open_s": made.open_s, "died": made.died, "peak_per_s": round(made.peak_per_s, 3),
        "gone_s": _rounded(made.gone_s, 1),
    }  # fmt: skip


def breaker_words(made: BreakerForecast) -> Iterator[str]:
    """Yield what an open breaker will do, as sentences without a full stop."""
    soon, first = made.soon, made.first_minute
    calls = [sum(first[:n]) for n in (10, 60)]
    back = f"{calls[0]:,} calls in 10s, {calls[1]:,} in 1m"
    yield f"if the next probes succeed, {made.waiting:,} that wait come back: {back}"
    gone = _LONG if soon.gone_s is None else f"after {seconds(soon.gone_s)}"
    yield f"nothing of that waits any more {gone}, at most {number(soon.peak_per_s)} calls/s"
    died = ", ".join(f"{each.died:,} in {show(each.open_s)}" for each in made.later)
    yield f"if it stays open, of what waits and comes will have died: {died}"


def queue_forecast_record(made: QueueForecast) -> dict[str, Any]:
    """Return when a queue's backlog is gone as a record, with its sentence."""
    return {
        "waiting": made.waiting,
        "in_per_s": _rounded(made.in_per_s),
        "out_per_s": _rounded(made.out_per_s),
        "gone_s": _rounded(made.gone_s, 1),
        "words": queue_words(made),
    }


def queue_words(made: QueueForecast) -> str:
    """Return when a queue's backlog is gone, as a sentence without a full stop."""
    if made.in_per_s is None or made.out_per_s is None:
        return "nothing waits" if not made.waiting else "unknown: nothing was counted in the last 5m"
    rates = f"{number(made.in_per_s)}/s came and {number(made.out_per_s)}/s went in the last 5m"
    if not made.waiting:
        return f"nothing waits; {rates}"
    if made.gone_s is None:
        return f"never at the present rate: {rates}"
    return f"its {made.waiting:,} messages are gone in {seconds(made.gone_s)} at the present rate: {rates}"


def score_record(score: Score) -> dict[str, Any]:
    """Return the score of the last forecasts as a record. `pending` has those whose runs are not over."""
    scored = [
        {
            **_made(each),
            "came_s": round(each.came_s, 1),
            "off": _rounded(each.off, 4),
            "came_failed": each.came_failed,
            "right": each.right,
        }
        for each in score.scored
    ]
    unknown = {"came_s": None, "off": None, "right": None}
    pending = [{**_made(each), **unknown, "came_failed": each.failed_yet} for each in score.pending]
    return {
        "words": score_words(score), "count": score.count, "most": score.most, "within": _rounded(score.within, 4),
        "forecasts": scored, "pending": pending,
    }  # fmt: skip


def _made(each: ScoredForecast | PendingForecast) -> dict[str, Any]:
    return {
        "run": each.run, "made_at": timestamp(each.made_ms), "total": each.total, "over_s": _rounded(each.over_s, 1),
        "failed": each.failed, "state": each.status,
    }  # fmt: skip


def score_words(score: Score) -> str:
    """Return the score as a sentence without a full stop."""
    if not score.count:
        return "no forecast can be scored yet: none was kept of a run that is over"
    if score.within is None:
        return f"of the last {score.count}, none was near"
    return f"of the last {score.count}, {score.most} within {share(score.within)}"


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
