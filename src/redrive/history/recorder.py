"""Count what one process does, by minute, queue and task, until the writer takes it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ..counters import OTHER, band
from .chunk import MINUTE_MS
from .histogram import bucket_counts
from .tally import (
    AFTER,
    ALL,
    DELAY,
    ENQUEUED,
    FIRST,
    GOOD,
    OUTCOME,
    QUEUE_ALL,
    QUEUE_GOOD,
    RUN,
    WAIT,
    TallyCounts,
    add,
)

VALUES_MAX = 4096  # durations kept one by one before they are folded into buckets; one batch may exceed this
ATTEMPTS = 12  # attempts counted one by one; the last counter has the eleventh and all later ones

SeriesName = tuple[str, str]  # queue and task
Minutes = dict[int, TallyCounts]


class MinuteSeries(Struct, gc=False, eq=False):
    """The counts of one queue and task in the current minute. `done` has a counter per attempt; the lists are durations
    in ms. `within_ms` and `queue_within_ms` are the bounds of the objectives of the task and of the queue, if any."""

    within_ms: float | None = None
    queue_within_ms: float | None = None
    done: list[int] = field(default_factory=lambda: [0] * ATTEMPTS)
    run: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    delay: list[float] = field(default_factory=list)
    counts: TallyCounts = field(default_factory=dict)

    @property
    def judges(self) -> bool:
        """True if the task or the queue has an objective."""
        return self.within_ms is not None or self.queue_within_ms is not None

    def count(self, key: str, more: int = 1) -> None:
        self.counts[key] = self.counts.get(key, 0) + more

    def judge(self, took_ms: float | None) -> None:
        """Count a message for the objectives: it was done `took_ms` after it was due, or is dead (None)."""
        if self.within_ms is not None:
            self.count(ALL)
            self.count(GOOD, took_ms is not None and took_ms <= self.within_ms)
        if self.queue_within_ms is not None:
            self.count(QUEUE_ALL)
            self.count(QUEUE_GOOD, took_ms is not None and took_ms <= self.queue_within_ms)

    def fold(self) -> None:
        """Move the durations in the lists into histogram counts."""
        for letter, values in (
            (RUN, self.run),
            (WAIT, self.wait),
            (FIRST, self.first),
            (AFTER, self.after),
            (DELAY, self.delay),
        ):
            if values:
                self.count(f"{letter}+", round(sum(values)))
                for index, number in bucket_counts(values).items():
                    self.count(f"{letter}{index}", number)
                values.clear()
        for attempt, number in enumerate(self.done):
            if number:
                self.count(f"{OUTCOME}{band(attempt)}done", number)
                self.done[attempt] = 0


class Recorder:
    """The counts of one process that are not written yet. Hold `lock` when calling any method that does not take it
    itself.

    `tasks` and `queues` are those of the app. `of` returns series of the current minute; `turn` begins the next minute.
    """

    lock: threading.Lock

    def __init__(self, tasks: Mapping[str, Any], queues: Mapping[str, Any]) -> None:
        self._tasks, self._queues = tasks, queues
        self.lock = threading.Lock()
        self.series: dict[SeriesName, MinuteSeries] = {}
        self._minute = -1
        self._folded: dict[SeriesName, Minutes] = {}
        self._put: dict[SeriesName, int] = {}

    def turn(self, now_ms: int) -> None:
        """Begin a new minute if `now_ms` is not in the current one."""
        minute = now_ms // MINUTE_MS
        if minute != self._minute:
            self._fold()
            self.series.clear()
            self._minute = minute

    def of(self, queue: str, task: str) -> MinuteSeries:
        """Return the series of a queue and task in the current minute."""
        series = self.series.get((queue, task))
        if series is not None:
            return series
        name = self._name(queue, task)
        series = self.series.get(name)
        if series is None:
            series = self.series[name] = MinuteSeries(
                _within_ms(self._tasks.get(task)), _within_ms(self._queues.get(queue))
            )
        return series

    def _name(self, queue: str, task: str) -> SeriesName:
        return queue, task if task in self._tasks or not self._tasks else OTHER

    def bound(self) -> None:
        """Fold the durations of long series, so that memory stays bounded. Call it after each batch."""
        for series in self.series.values():
            if len(series.run) >= VALUES_MAX:
                series.fold()

    def count_puts(self, names: Mapping[SeriesName, int], now_ms: int) -> None:
        """Count messages that were put, by queue and task. Takes `lock`."""
        with self.lock:
            self.turn(now_ms)
            self.add_enqueued(names)

    def add_enqueued(self, names: Mapping[SeriesName, int]) -> None:
        for (queue, task), count in names.items():
            self.of(queue, task).count(ENQUEUED, count)
            name = self._name(queue, task)
            self._put[name] = self._put.get(name, 0) + count

    def put_in_all(self) -> dict[SeriesName, int]:
        """Return how many messages this process has put so far, by queue and task. Takes `lock`."""
        with self.lock:
            return dict(self._put)

    def take(self) -> dict[SeriesName, Minutes]:
        """Return all counts by queue, task and minute, and clear them. Takes `lock`."""
        with self.lock:
            self._fold()
            taken, self._folded = self._folded, {}
        return taken

    def _fold(self) -> None:
        for name, series in self.series.items():
            series.fold()
            if series.counts:
                add(self._folded.setdefault(name, {}).setdefault(self._minute, {}), series.counts)
                series.counts = {}


def _within_ms(of: Any) -> float | None:
    """Return the bound of the objective of a task or queue, in ms; None if it has no objective."""
    slo = getattr(of, "slo", None)
    return None if slo is None else slo.within_s * 1000
