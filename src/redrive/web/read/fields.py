"""Fields that several pages show, named and formatted as in the command line's JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ...counters import FAILED
from ...duration import seconds
from ...errors import ConfigError, Unsupported
from ...history import read_history
from ...history.histogram import Histogram
from ...message import Counts
from ...present.formats import timestamp
from ...present.history import tally_record, tally_row
from ...present.holds import hold_record
from ...present.queues import queue_record
from ...triage.group_states import read_releases
from ..ask import PageRequest, Problem, Record

if TYPE_CHECKING:
    from ...history import History, Point, Tally
    from ...status import Hold

OUTCOMES = ("done", "retry", "dead", "quarantined", "crashed", "stayed")
KEPT_S = 35 * 86_400  # how far back a history goes
SINCE = ("1h", "6h", "24h", "7d", "35d")
AGAINST = ("before", "yesterday", "week", "none")  # what a time can be compared with
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
FINE_MS = DAY_MS  # ms for which a history is kept by the minute
BARS_MAX = 75  # the most bars of a chart of a range, if a step is long enough
RANGE_STEPS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
RELEASES_SHOWN = 8
STEPS = {"1h": "1m", "6h": "5m", "24h": "1h", "7d": "2h", "35d": "12h"}  # of the bars of a chart that fills the page


def queue(ask: PageRequest, name: str, counts: Counts, *, paused: bool, holds: Sequence[Hold]) -> Record:
    """Return a queue as a record; the commands in its holds are for this app or store."""
    return queue_record(name, counts, paused=paused, held=[hold(ask, each) for each in holds])


def hold(ask: PageRequest, each: Hold) -> Record:
    """Return a hold as a record; its command is for this app or store."""
    return hold_record(each, ask.leads)


class ShownTime(NamedTuple):
    """The time that a page shows: the last `back`, or from `from_ms` to `to_ms`; and with which time it is compared."""

    back: str
    from_ms: int
    to_ms: int | None  # None: now
    step_s: float | None
    against: str

    @property
    def is_absolute(self) -> bool:
        return not self.back


def span(ask: PageRequest, default: str = "24h") -> ShownTime:
    """Return the time that the address asks for: `since=6h`, or `from=` and `to=` in RFC 3339, in UTC if they name no
    zone. Raises Problem for other texts, and for a time before the history that is kept."""
    against = ask.text("against", AGAINST[0])
    if against not in AGAINST:
        raise Problem(f"there is no comparison {against!r}", f"expected {', '.join(AGAINST)}", status=422)
    now_ms, begin_ms, end_ms = ask.store.now_ms(), _instant(ask, "from"), _instant(ask, "to")
    if begin_ms is None:
        if end_ms is not None:
            raise Problem("from is missing", "to= needs the time at which the range begins", "add from=", 422)
        back = ask.text("since", default)
        return ShownTime(back, 0, None, seconds(STEPS[back]) if back in STEPS else None, against)
    end_ms = min(now_ms, end_ms or now_ms)
    begin_ms, end_ms = begin_ms - begin_ms % MINUTE_MS, end_ms + -end_ms % MINUTE_MS
    if not begin_ms < end_ms:
        raise Problem("the range is empty", f"from={timestamp(begin_ms)} is not before its end", "mend it", 422)
    if now_ms - begin_ms > KEPT_S * 1000:
        raise Problem(f"from={timestamp(begin_ms)} is too long ago", "history is kept for 35 days", status=422)
    least_s = 3600 if now_ms - begin_ms > FINE_MS else 60
    long_s = (end_ms - begin_ms) / 1000
    step_s = next(s for s in RANGE_STEPS_S if s >= least_s and (long_s / s <= BARS_MAX or s == RANGE_STEPS_S[-1]))
    return ShownTime("", begin_ms - begin_ms % (step_s * 1000), end_ms, step_s, against)


def _instant(ask: PageRequest, name: str) -> int | None:
    """Return the time in the field `name`, in ms; None if it is empty."""
    if not (given := ask.text(name)):
        return None
    try:
        at = datetime.fromisoformat(given)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        why = "expected one such as 2026-11-28T14:00Z"
        raise Problem(f"{name}={given!r} is not a time", why, "write it so", 422) from None


def past(
    ask: PageRequest, queue: str | None = None, task: str | None = None, *, back: str, step: str | None = None
) -> Record:
    """Return totals, percentiles and a series for each outcome in the time `back`, of a queue or a task. If no history
    is kept, `missing` says how to enable it."""
    return _read(ask, queue, task, ShownTime(back, 0, None, None if step is None else seconds(step), AGAINST[0]))


def _read(ask: PageRequest, queue: str | None, task: str | None, wanted: ShownTime) -> Record:
    asked = {"since": wanted.back, "against": wanted.against}
    try:
        if wanted.to_ms is None:
            found = ask.app.history(queue, task, since=wanted.back, step=wanted.step_s)
        else:
            back_s, end_ms = (wanted.to_ms - wanted.from_ms) / 1000, wanted.to_ms
            found = read_history(ask.store, queue, task, back_s, wanted.step_s, until_ms=end_ms)
    except Unsupported as error:
        return {"missing": str(error), **asked, "from": None, "to": None}
    except ConfigError as error:
        raise Problem(str(error), next="choose one of the times above", status=422) from None
    until_ms = found.until_ms if wanted.is_absolute else found.until_ms + 1
    ends = {"from": timestamp(found.since_ms), "to": timestamp(found.until_ms)}
    return {"missing": None, **asked, "absolute": wanted.is_absolute, **ends, **_past(found, until_ms)}


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


def past_and_before(
    ask: PageRequest, wanted: ShownTime, *, queue: str | None = None, task: str | None = None
) -> Record:
    """As `past`, with `before`: the same figures of the time that this one is compared with, if that is kept. And with
    `releases`: which releases of the app a worker first ran in this time."""
    here = _read(ask, queue, task, wanted)
    if here["missing"] is not None:
        return here
    begin_ms, end_ms = _ms(here["from"]), _ms(here["to"])
    first = read_releases(ask.store).items()
    return here | {
        "failures": [sum(here["series"][name][n] for name in FAILED) for n in range(len(here["times"]))],
        "waits": [each["wait_p95_ms"] for each in here["points"] if each["wait_p95_ms"] is not None],
        "before": _before(ask, here, queue, task),
        "releases": [
            {"release": name, "at": timestamp(at)}
            for name, at in sorted(first, key=lambda item: item[1])
            if begin_ms <= at <= end_ms
        ][-RELEASES_SHOWN:],
    }


def _before(ask: PageRequest, here: Record, queue: str | None, task: str | None) -> Record:
    """Return the figures of the time that `here` is compared with. Where only hours are kept, each counts by its part
    in that time, and its runs are spread evenly over its steps."""
    step_ms: int = here["step_s"] * 1000
    begin_ms, end_ms = _ms(here["from"]), _ms(here["to"])
    long_ms = end_ms - begin_ms
    shift_ms = {"before": long_ms - long_ms % step_ms, "yesterday": DAY_MS, "week": 7 * DAY_MS, "none": 0}[
        here["against"]
    ]
    since_ms, until_ms, now_ms = begin_ms - shift_ms, end_ms - shift_ms, ask.store.now_ms()
    points: Sequence[Point] = ()
    read_ms: int = HOUR_MS if now_ms - since_ms > FINE_MS and step_ms % HOUR_MS else step_ms
    if shift_ms and now_ms - since_ms + read_ms <= KEPT_S * 1000:
        back_s = (until_ms - since_ms) / 1000
        points = read_history(ask.store, queue, task, back_s, read_ms / 1000, until_ms=until_ms).points
    parts = {p.at_ms: (min(p.at_ms + read_ms, until_ms) - max(p.at_ms, since_ms)) / read_ms for p in points}
    runs = {p.at_ms: sum(p.tally.outcomes.get(name, 0) for name in OUTCOMES) * step_ms / read_ms for p in points}
    places = [_ms(at) - shift_ms for at in here["times"]]

    def total(of: Callable[[Tally], int]) -> int:
        return round(sum(of(point.tally) * min(1, max(0, parts[point.at_ms])) for point in points))

    return {
        "done": total(lambda tally: tally.done),
        "failed": total(lambda tally: tally.failed),
        "died": total(_died),
        "wait_p95_ms": _merged([point.tally.wait for point in points]).percentile(0.95),
        "runs": [round(runs.get(at - at % read_ms, 0), 1) for at in places] if points else [],
    }


def _ms(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def _died(tally: Tally) -> int:
    return sum(tally.outcomes.get(name, 0) for name in ("dead", "quarantined"))


def _merged(each: Sequence[Histogram]) -> Histogram:
    buckets = Counter[int]()
    for histogram in each:
        buckets.update(histogram.buckets)
    return Histogram(buckets.total(), sum(histogram.sum_ms for histogram in each), buckets)


def _past(found: History, until_ms: int) -> Record:
    step_ms = found.step_ms
    tallies = {point.at_ms: point.tally for point in found.points}
    times = list(range(found.since_ms, until_ms, step_ms))
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
