"""Fields that several pages show, named and formatted as in the command line's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, Unsupported
from ...message import Counts
from ...present.formats import timestamp
from ...present.history import tally_record, tally_row
from ...present.holds import hold_record
from ...present.queues import queue_record
from ..ask import PageRequest, Problem, Record

if TYPE_CHECKING:
    from ...history import History, Tally
    from ...status import Hold

OUTCOMES = ("done", "retry", "dead", "quarantined", "crashed")
SINCE = ("1h", "6h", "24h", "7d", "35d")


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
    whole["retry_ratio"] = found.outcomes.get("retry", 0) / ended if ended else None
    return whole
