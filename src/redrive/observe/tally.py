"""Count events: counters and histograms as plain lists of numbers, cheap to count and easy to merge.

`EventCounter` is the observer; `prometheus.py` exports its counts. The values of labels are queues, tasks and a fixed
set of words, never ids or texts, so that the number of series is bounded.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from ..events import DeliveryEvent, Event
from ..fault import Kind
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


# From 1 ms (a handler that does nothing) over 5 min (a task's default timeout) to an hour.
RUN_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
# From 10 ms (an idle worker) to 24 h (the default policy gives up). 30 s is a usual objective.
DONE_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)
# From sub-second backoffs over the caps of presets (10 s to 10 min) and the default policy (1 h) to the longest
# Retry-After (6 h).
DELAY_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0)
# Each number up to five, as most messages succeed by then; then up to the limits of the default policy (25) and of the
# most patient preset (50).
ATTEMPTS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 25.0, 50.0)

_OF = ("queue", "task")
ENQUEUED = Shape("redrive_enqueued", "Messages put by the processes that count here.", _OF)
DELIVERIES = Shape("redrive_deliveries", "Deliveries by what became of them.", (*_OF, "outcome"))
RUN = Shape("redrive_run_seconds", "How long handlers ran, whatever came of it.", _OF, RUN_S)
DONE = Shape(
    "redrive_time_to_done_seconds",
    "From enqueue, or the last redrive, to done; retried is false where the first try did it.",
    (*_OF, "retried"),
    DONE_S,
)
ENDED = Shape(
    "redrive_attempts",
    "Attempts that a message's life took, by how it ended: done, dead, quarantined or cancelled.",
    (*_OF, "outcome"),
    ATTEMPTS,
)
DELAY = Shape("redrive_retry_delay_seconds", "How long retries were told to wait.", _OF, DELAY_S)
FAULTS = Shape("redrive_faults", "Runs that failed, by the kind of fault.", (*_OF, "kind"))
DEAD = Shape("redrive_dead", "Messages that died, by reason.", (*_OF, "reason"))
QUARANTINED = Shape("redrive_quarantined", "Messages put into quarantine, by reason.", (*_OF, "reason"))
DEGRADED = Shape("redrive_degraded", "Done, but in part only.", _OF)
DUPLICATES = Shape("redrive_duplicates", "Done unrun, by the result stored for their idempotency key.", _OF)
REDRIVEN = Shape(
    "redrive_redriven",
    "Redriven messages, by what their first run after it came to: done or failed.",
    (*_OF, "verdict"),
)
ISOLATED = Shape("redrive_isolated", "Dead messages put into quarantine as poison, after too many redrives.", ())
CRASHES = Shape(
    "redrive_crashes",
    "Runs that ended with their process, by its cause; told when the message's life ends.",
    (*_OF, "cause"),
)
DEFERRALS = Shape(
    "redrive_deferral_seconds",
    "How long flow control put messages off, by reason: breaker, cool-down, ramp, budget, limit, concurrency, …",
    (*_OF, "reason"),
    DELAY_S,
)
NOTICES = Shape("redrive_worker_notices", "What workers told of themselves, such as store_unavailable.", ("notice",))
REQUESTS = Shape("redrive_aws_requests", "Requests to AWS, each of them billed, by action.", ("action",))
SHAPES = (
    ENQUEUED,
    DELIVERIES,
    RUN,
    DONE,
    ENDED,
    DELAY,
    FAULTS,
    DEAD,
    QUARANTINED,
    DEGRADED,
    DUPLICATES,
    REDRIVEN,
    ISOLATED,
    CRASHES,
    DEFERRALS,
    NOTICES,
    REQUESTS,
)

REASONS = frozenset(
    (
        "exhausted",
        "permanent",
        "elapsed",
        "deadline",
        "budget",
        "rejected",
        "unreadable",
        "unroutable",
        "crashed",
        "damaged",
    )
)
CAUSES = frozenset(("signal", "exit", "hung", "timeout", "memory", "lease"))
UNKNOWN = "unknown"
DEFERRED_BY = frozenset(("breaker", "cool-down", "ramp", "budget", "limit", "concurrency", "idempotency"))
KINDS = frozenset(kind.value for kind in Kind)
OTHER = "(other)"  # the label of all unregistered tasks, and of reasons that an override returns
_ENDS = frozenset({"done", "dead", "quarantined", "cancelled"})
_AT_ONCE = ("done", "retry", "dead")  # outcomes whose series begin at 0, so that rate() sees the first event


class _Bound(Struct):
    """The numbers to which events of one queue, task and outcome are added."""

    labels: Labels
    total: Numbers
    run: Numbers
    ended: Numbers | None
    delay: Numbers | None
    first: Numbers | None
    retried: Numbers | None


class EventCounter:
    """An observer that counts events. `tasks` has the names that labels may contain; other tasks count as `(other)`.
    `put` returns how many messages this process has put, by queue and task."""

    def __init__(self, tasks: Mapping[str, object], put: Callable[[], Mapping[Labels, int]] = dict) -> None:
        self._tasks, self._put = tasks, put
        self._lock = threading.Lock()
        self._series = empty()
        self._bound: dict[Labels, _Bound] = {}

    def __call__(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                if isinstance(event, DeliveryEvent):
                    self._count(event)
                else:
                    self._add(NOTICES, (event.name,))
                    if event.name == "aws_requests":
                        self._add(REQUESTS, (event.about,), event.count)
                    if event.name == "auto_isolated":
                        self._add(ISOLATED, (), event.count)

    def expect(self, tasks: Iterable[Labels]) -> None:
        """Begin the series of these (queue, task) pairs at 0, if there are none."""
        with self._lock:
            for queue, task in tasks:
                for outcome in _AT_ONCE:
                    self._bind(queue, task, outcome)
            self._numbers(ISOLATED, ())

    def copy(self) -> MetricSeries:
        """Return a copy of the counts, with the messages put."""
        with self._lock:
            series = {name: {labels: list(n) for labels, n in of.items()} for name, of in self._series.items()}
        merge(series, {ENQUEUED.name: {labels: [count] for labels, count in self._put().items()}})
        return series

    def add(self, series: MetricSeries) -> None:
        """Add the counts of an earlier process, so that counters continue from them."""
        with self._lock:
            merge(self._series, series)

    def _count(self, event: DeliveryEvent) -> None:
        bound = self._bound.get((event.queue, event.task, event.outcome))
        if bound is None:
            bound = self._bind(event.queue, event.task, event.outcome)
        bound.total[0] += 1
        if event.run_ms is not None:
            seconds, run = event.run_ms / 1000, bound.run
            run[bisect_left(RUN_S, seconds)] += 1
            run[-1] += seconds
        if bound.ended is not None:
            self._end(event, bound, bound.ended)
        elif bound.delay is not None and event.delay_ms is not None:
            _observe(DELAY_S, bound.delay, event.delay_ms / 1000)
        if event.deferral is not None and event.outcome == "held":
            self._defer(event, event.deferral, bound)
        if event.verdict is not None:
            self._add(REDRIVEN, (*bound.labels, event.verdict))
        if event.fault is not None:
            self._add(FAULTS, (*bound.labels, event.fault if event.fault in KINDS else OTHER))

    def _end(self, event: DeliveryEvent, bound: _Bound, ended: Numbers) -> None:
        ended[bisect_left(ATTEMPTS, event.attempt)] += 1
        ended[-1] += event.attempt
        if bound.first is not None and bound.retried is not None:
            seconds = event.age_ms / 1000
            numbers = bound.first if event.attempt <= 1 and not event.crashes else bound.retried
            numbers[bisect_left(DONE_S, seconds)] += 1
            numbers[-1] += seconds
        if event.degraded is not None:
            self._add(DEGRADED, bound.labels)
        if event.duplicate_of is not None:
            self._add(DUPLICATES, bound.labels)
        for cause in event.causes:
            self._add(CRASHES, (*bound.labels, cause if cause in CAUSES else UNKNOWN))
        if event.reason is not None and event.outcome in ("dead", "quarantined"):
            shape = DEAD if event.outcome == "dead" else QUARANTINED
            self._add(shape, (*bound.labels, event.reason if event.reason in REASONS else OTHER))

    def _defer(self, event: DeliveryEvent, why: str, bound: _Bound) -> None:
        numbers = self._numbers(DEFERRALS, (*bound.labels, why if why in DEFERRED_BY else OTHER))
        _observe(DELAY_S, numbers, (event.delay_ms or 0) / 1000)

    def _bind(self, queue: str, task: str, outcome: str) -> _Bound:
        known = task in self._tasks
        of = (queue, task if known else OTHER)
        done = outcome == "done"
        bound = _Bound(
            of,
            self._numbers(DELIVERIES, (*of, outcome)),
            self._numbers(RUN, of),
            self._numbers(ENDED, (*of, outcome)) if outcome in _ENDS else None,
            self._numbers(DELAY, of) if outcome == "retry" else None,
            self._numbers(DONE, (*of, "false")) if done else None,
            self._numbers(DONE, (*of, "true")) if done else None,
        )
        if known:  # other programs choose unknown names, which would grow the dict without bound
            self._bound[queue, task, outcome] = bound
        return bound

    def _add(self, shape: Shape, labels: Labels, count: float = 1) -> None:
        self._numbers(shape, labels)[0] += count

    def _numbers(self, shape: Shape, labels: Labels) -> Numbers:
        of = self._series[shape.name]
        numbers = of.get(labels)
        if numbers is None:
            numbers = of[labels] = zeros(shape)
        return numbers


def put_by(app: Registry) -> Mapping[Labels, int]:
    """Return how many messages this process has put for the app, by queue and task; empty without a history."""
    return {} if app.flusher is None else {(*name,): count for name, count in app.flusher.recorder.put_in_all().items()}


def empty() -> MetricSeries:
    return {shape.name: {} for shape in SHAPES}


def zeros(shape: Shape) -> Numbers:
    """Return the numbers of a new series of this metric."""
    return [0] * (len(shape.bounds) + 2) if shape.bounds else [0]


def merge(into: MetricSeries, more: MetricSeries) -> None:
    """Add the counts of `more` to those of `into`, except series of another shape, which another version of this
    program wrote."""
    for shape in SHAPES:
        size = len(zeros(shape))
        for labels, numbers in more.get(shape.name, {}).items():
            if len(numbers) == size and len(labels) == len(shape.labels):
                old = into[shape.name].setdefault(labels, zeros(shape))
                old[:] = [a + b for a, b in zip(old, numbers, strict=True)]


def done_by_attempt(series: MetricSeries) -> dict[Labels, float]:
    """Return the number of done messages by queue, task and attempt: 1 to 5, 6-10, 11+."""
    done: dict[Labels, float] = {}
    for (queue, task, outcome), numbers in series[ENDED.name].items():
        if outcome == "done":
            counts = numbers[:-1]
            names = [*map(str, range(1, 6)), "6-10", "11+"]
            for name, count in zip(names, [*counts[:6], sum(counts[6:])], strict=True):
                done[queue, task, name] = count
    return done


def _observe(bounds: tuple[float, ...], numbers: Numbers, value: float) -> None:
    numbers[bisect_left(bounds, value)] += 1
    numbers[-1] += value
