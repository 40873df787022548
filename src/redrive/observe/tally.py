"""Count events: counters and histograms as plain lists of numbers, cheap to count and easy to merge.

`EventCounter` is the observer; `prometheus.py` exports its counts. The values of labels are queues, tasks and a fixed
set of words, never ids or texts, so that the number of series is bounded.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from .. import counters
from ..counters import OTHER, CountKey, bounded, counts_of
from ..events import DeliveryEvent, Event, Notice
from ..registry import Registry

Labels = tuple[str, ...]
Numbers = list[float]  # of a counter: [n]; of a histogram: the count of each bucket, the last unbounded, and the sum
MetricSeries = dict[str, dict[Labels, Numbers]]  # by metric, then by the values of its labels


class Shape(NamedTuple):
    """A metric: name, description, labels, and the upper bounds of a histogram's buckets (empty for a counter)."""

    name: str
    help: str
    labels: Labels
    bounds: tuple[float, ...] = ()

    @property
    def unit(self) -> float:
        """Return the divisor of a count of `counters`, whose times are in ms."""
        return 1000 if self.name.endswith("_seconds") else 1


_Bound = tuple[Numbers, tuple[float, ...], float]  # numbers, bounds and unit of one series
ENQUEUED, ISOLATED, NOTICES, REQUESTS = "enqueued", "isolated", "notices", "requests"  # not counts of deliveries

# From 1 ms (a handler that does nothing) over 5 min (a task's default timeout) to an hour.
RUN_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
# From 10 ms (an idle worker) to 24 h (the default policy gives up). 30 s is a usual objective.
DONE_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)
# From sub-second backoffs over the caps of presets (10 s to 10 min) and the default policy (1 h) to the longest
# Retry-After (6 h).
DELAY_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0)
# Each number up to five, as most messages succeed by then; then up to the limits of the default policy (25) and of the
# most patient preset (50).
ATTEMPT_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 25.0, 50.0)

_OF = ("queue", "task")
SHAPES = {
    ENQUEUED: Shape("redrive_enqueued", "Messages put by the processes that count here.", _OF),
    counters.DELIVERIES: Shape("redrive_deliveries", "Deliveries by what became of them.", (*_OF, "outcome")),
    counters.RUN_MS: Shape("redrive_run_seconds", "How long handlers ran, whatever came of it.", _OF, RUN_S),
    counters.TIME_TO_DONE_MS: Shape(
        "redrive_time_to_done_seconds",
        "From enqueue, or the last redrive, to done; retried is false where the first try did it.",
        (*_OF, "retried"),
        DONE_S,
    ),
    counters.ATTEMPTS: Shape(
        "redrive_attempts",
        "Attempts that a message's life took, by how it ended: done, dead, quarantined or cancelled.",
        (*_OF, "outcome"),
        ATTEMPT_BOUNDS,
    ),
    counters.RETRY_DELAY_MS: Shape("redrive_retry_delay_seconds", "How long retries were told to wait.", _OF, DELAY_S),
    counters.FAULTS: Shape("redrive_faults", "Runs that failed, by the kind of fault.", (*_OF, "kind")),
    counters.DEAD: Shape("redrive_dead", "Messages that died, by reason.", (*_OF, "reason")),
    counters.QUARANTINED: Shape("redrive_quarantined", "Messages put into quarantine, by reason.", (*_OF, "reason")),
    counters.DEGRADED: Shape("redrive_degraded", "Done, but in part only.", _OF),
    counters.DUPLICATES: Shape(
        "redrive_duplicates", "Done unrun, by the result stored for their idempotency key.", _OF
    ),
    counters.REDRIVEN: Shape(
        "redrive_redriven",
        "Redriven messages, by what their first run after it came to: done or failed.",
        (*_OF, "verdict"),
    ),
    ISOLATED: Shape("redrive_isolated", "Dead messages put into quarantine as poison, after too many redrives.", ()),
    counters.CRASHES: Shape(
        "redrive_crashes",
        "Runs that ended with their process, by its cause; told when the message's life ends.",
        (*_OF, "cause"),
    ),
    counters.DEFERRAL_MS: Shape(
        "redrive_deferral_seconds",
        "How long flow control put messages off, by reason: breaker, cool-down, ramp, budget, limit, concurrency, …",
        (*_OF, "reason"),
        DELAY_S,
    ),
    NOTICES: Shape(
        "redrive_worker_notices", "What workers told of themselves, such as store_unavailable.", ("notice",)
    ),
    REQUESTS: Shape("redrive_aws_requests", "Requests to AWS, each of them billed, by action.", ("action",)),
}

# Series that begin at 0 with the first delivery of an outcome, so that rate() sees the first event.
_ZEROS: dict[str, tuple[CountKey, ...]] = {
    "done": (counters.ATTEMPTS_TO_DONE, counters.FIRST_TRY, counters.AFTER_RETRIES),
    "retry": (counters.RETRY_DELAY,),
    "dead": ((counters.ATTEMPTS, "dead"),),
}


class EventCounter:
    """An observer that counts events. `tasks` has the names that labels may contain; other tasks count as `(other)`.
    `put` returns how many messages this process has put, by queue and task."""

    def __init__(self, tasks: Mapping[str, object], put: Callable[[], Mapping[Labels, int]] = dict) -> None:
        self._tasks, self._put = tasks, put
        self._lock = threading.Lock()
        self._series = empty()
        self._bound: dict[tuple[str, str], dict[CountKey, _Bound]] = {}  # by queue and task

    def __call__(self, events: Sequence[Event]) -> None:
        queue = task = None
        with self._lock:
            for event in events:  # this runs once per message, so it is kept lean
                if not isinstance(event, DeliveryEvent):
                    self._count_notice(event)
                    continue
                if event.task != task or event.queue != queue:  # most batches have one task
                    queue, task = event.queue, event.task
                    bound = self._bound.get((queue, task), {})
                for key, value in counts_of(event):
                    try:
                        numbers, bounds, unit = bound[key]
                    except KeyError:
                        numbers, bounds, unit = self._bind(event.queue, event.task, key)
                    if bounds:
                        value /= unit
                        numbers[bisect_left(bounds, value)] += 1
                        numbers[-1] += value
                    else:
                        numbers[0] += 1

    def expect(self, tasks: Iterable[Labels]) -> None:
        """Begin the series of these (queue, task) pairs at 0, if there are none."""
        with self._lock:
            for queue, task in tasks:
                for outcome in _ZEROS:
                    self._bind(queue, task, (counters.DELIVERIES, outcome))
            self._numbers(ISOLATED, ())

    def copy(self) -> MetricSeries:
        """Return a copy of the counts, with the messages put."""
        with self._lock:
            series = {name: {labels: list(n) for labels, n in of.items()} for name, of in self._series.items()}
        merge(series, {SHAPES[ENQUEUED].name: {labels: [count] for labels, count in self._put().items()}})
        return series

    def add(self, series: MetricSeries) -> None:
        """Add the counts of an earlier process, so that counters continue from them."""
        with self._lock:
            merge(self._series, series)

    # -- with the lock held

    def _count_notice(self, notice: Notice) -> None:
        self._numbers(NOTICES, (notice.name,))[0] += 1
        if notice.name == "aws_requests":
            self._numbers(REQUESTS, (notice.about,))[0] += notice.count
        if notice.name == "auto_isolated":
            self._numbers(ISOLATED, ())[0] += notice.count

    def _bind(self, queue: str, task: str, key: CountKey) -> _Bound:
        shape, labels = series_of(queue, task, key, self._tasks)
        bound = self._numbers(key[0], labels), shape.bounds, shape.unit
        if key[0] == counters.DELIVERIES:
            for other in (counters.RUN, *_ZEROS.get(key[1], ())):
                self._bind(queue, task, other)
        if task in self._tasks and bounded(key) == key:  # words from outside would grow the dict without bound
            self._bound.setdefault((queue, task), {})[key] = bound
        return bound

    def _numbers(self, counter: str, labels: Labels) -> Numbers:
        shape = SHAPES[counter]
        of = self._series[shape.name]
        numbers = of.get(labels)
        if numbers is None:
            numbers = of[labels] = zeros(shape)
        return numbers


def series_of(queue: str, task: str, key: CountKey, tasks: Container[str]) -> tuple[Shape, Labels]:
    """Return the metric of a count of `counters`, and its labels. A task that is not one of `tasks` is `(other)`."""
    shape = SHAPES[key[0]]
    return shape, (queue, task if task in tasks else OTHER, bounded(key)[1])[: len(shape.labels)]


def put_by(app: Registry) -> Mapping[Labels, int]:
    """Return how many messages this process has put for the app, by queue and task; empty without a history."""
    return {} if app.flusher is None else {(*name,): count for name, count in app.flusher.recorder.put_in_all().items()}


def empty() -> MetricSeries:
    return {shape.name: {} for shape in SHAPES.values()}


def zeros(shape: Shape) -> Numbers:
    """Return the numbers of a new series of this metric."""
    return [0] * (len(shape.bounds) + 2) if shape.bounds else [0]


def merge(into: MetricSeries, more: MetricSeries) -> None:
    """Add the counts of `more` to those of `into`, except series of another shape, which another version of this
    program wrote."""
    for shape in SHAPES.values():
        size = len(zeros(shape))
        for labels, numbers in more.get(shape.name, {}).items():
            if len(numbers) == size and len(labels) == len(shape.labels):
                old = into[shape.name].setdefault(labels, zeros(shape))
                old[:] = [a + b for a, b in zip(old, numbers, strict=True)]


def done_by_attempt(series: MetricSeries) -> dict[Labels, float]:
    """Return the number of done messages by queue, task and attempt: 1 to 5, 6-10, 11+."""
    done: dict[Labels, float] = {}
    for (queue, task, outcome), numbers in series[SHAPES[counters.ATTEMPTS].name].items():
        if outcome == "done":
            counts = numbers[:-1]
            names = [*map(str, range(1, 6)), "6-10", "11+"]
            for name, count in zip(names, [*counts[:6], sum(counts[6:])], strict=True):
                done[queue, task, name] = count
    return done
