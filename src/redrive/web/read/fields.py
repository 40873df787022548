"""Fields that several pages show, named and formatted as in the command line's JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...counters import FAILED
from ...duration import seconds
from ...errors import ConfigError, Unsupported
from ...history.histogram import Histogram
from ...message import Counts
from ...present.formats import timestamp
from ...present.history import tally_record, tally_row
from ...present.holds import hold_record
from ...present.queues import queue_record
from ..ask import PageRequest, Problem, Record

if TYPE_CHECKING:
    from ...history import History, Tally
    from ...status import Hold

OUTCOMES = ("done", "retry", "dead", "quarantined", "crashed", "stayed")
KEPT_S = 35 * 86_400  # how far back a history goes
SINCE = ("1h", "6h", "24h", "7d", "35d")
STEPS = {"1h": "1m", "6h": "5m", "24h": "1h", "7d": "2h", "35d": "12h"}  # of the bars of a chart that fills the page


def queue(ask: PageRequest, name: str, counts: Counts, *, paused: bool, holds: Sequence[Hold]) -> Record:
    """Return a queue as a record; the commands in its holds are for this app or store."""
    return queue_record(name, counts, paused=paused, held=[hold(ask, each) for each in holds])


def hold(ask: PageRequest, each: Hold) -> Record:
    """Return a hold as a record; its command is for this app or store."""
    return hold_record(each, ask.leads)


def since(ask: PageRequest, default: str = "24h") -> str:
    """Return how far back the page goes, such as 24h."""
    return ask.text("since", default)


def past(
    ask: PageRequest, queue: str | None = None, task: str | None = None, *, back: str, step: str | None = None
) -> Record:
    """Return totals, percentiles and a series for each outcome in the time `back`, of a queue or a task. If no history
    is kept, `missing` says how to enable it."""
    try:
        found = ask.app.history(queue, task, since=back, step=step)
    except Unsupported as error:
        return {"missing": str(error), "since": back}
    except ConfigError as error:
        raise Problem(str(error), next="choose one of the times above", status=422) from None
    return {"missing": None, "since": back, **_past(found)}


def objectives(ask: PageRequest) -> list[Record]:
    """Return the objectives of the app's tasks and queues; none if no history is kept."""
    from ...present.objectives import objective_record

    try:
        return [objective_record(each) for each in ask.app.slo()]
    except Unsupported:
        return []


def runs_of(past: Record) -> list[int]:
    """Return the runs by step, whatever their outcome, of what `past` returned."""
    return [sum(at) for at in zip(*past["series"].values(), strict=True)]


def past_and_before(ask: PageRequest, *, task: str | None = None, back: str) -> Record:
    """As `past`, with `before`: the same figures of as long a time before, if that is kept."""
    here = past(ask, task=task, back=back, step=STEPS.get(back))
    if here["missing"] is not None:
        return here
    back_s, step_s = seconds(back), here["step_s"]
    # Up to the first step shown, which is partial and has its counterpart in the last one.
    until_s = max(0, back_s - step_s)
    kept = 2 * back_s <= KEPT_S
    found = ask.app.history(task=task, since=2 * back_s, step=step_s, until=until_s).points if kept else ()
    runs = {
        timestamp(point.at_ms + round(back_s * 1000)): sum(point.tally.outcomes.get(name, 0) for name in OUTCOMES)
        for point in found
    }
    points = [point for point in found if timestamp(point.at_ms) < here["times"][0]]
    return here | {
        "failures": [sum(here["series"][name][n] for name in FAILED) for n in range(len(here["times"]))],
        "waits": [each["wait_p95_ms"] for each in here["points"] if each["wait_p95_ms"] is not None],
        "before": {
            "done": sum(point.tally.done for point in points),
            "failed": sum(point.tally.failed for point in points),
            "died": sum(map(_died, (point.tally for point in points))),
            "wait_p95_ms": _merged([point.tally.wait for point in points]).percentile(0.95),
            "runs": [runs.get(at, 0) for at in here["times"]] if points else [],
        },
    }


def _died(tally: Tally) -> int:
    return sum(tally.outcomes.get(name, 0) for name in ("dead", "quarantined"))


def _merged(each: Sequence[Histogram]) -> Histogram:
    buckets = Counter[int]()
    for histogram in each:
        buckets.update(histogram.buckets)
    return Histogram(buckets.total(), sum(histogram.sum_ms for histogram in each), buckets)


def _past(found: History) -> Record:
    step_ms = found.step_ms
    tallies = {point.at_ms: point.tally for point in found.points}
    times = list(range(found.since_ms, found.until_ms + 1, step_ms))
    return {
        "step_s": step_ms // 1000,
        "total": totals(found.total),
        "times": [timestamp(at_ms) for at_ms in times],
        "series": {
            name: [tallies[at].outcomes.get(name, 0) if at in tallies else 0 for at in times] for name in OUTCOMES
        },
        "enqueued": [tallies[at].enqueued if at in tallies else 0 for at in times],
        "points": [{"at": timestamp(point.at_ms), **tally_row(point.tally)} for point in found.points],
    }


def totals(found: Tally) -> dict[str, Any]:
    """Return the totals of a history, with rates and the ratio of retries."""
    whole = tally_record(found)
    ended = found.done + found.failed
    whole["done"], whole["failed"] = found.done, found.failed
    whole["died"] = _died(found)
    whole["retry_ratio"] = found.outcomes.get("retry", 0) / ended if ended else None
    return whole
