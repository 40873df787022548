"""The metrics of `observe.prometheus` as instruments of OpenTelemetry: the same numbers under the same labels.

A name has a dot for its first `_`, and no unit: `redrive_run_seconds` is the histogram `redrive.run` in `s`. A
collector that exports to Prometheus restores the original names, so rules and dashboards work with both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation, get_meter

from ..._version import __version__
from ...counters import OTHER, counts_of
from ...events import DeliveryEvent, Event, Notice
from ..prometheus import Depths, _label
from ..tally import SHAPES, EventCounter, Labels, Shape, done_by_attempt, put_by, series_of

if TYPE_CHECKING:
    from ...registry import Registry

FRESH_S = 0.5  # seconds for which one read of the gauges is reused, so that an export reads once
_SECONDS = "_seconds"


class Instruments:
    """An observer that exports the counts of the app's workers. It makes the instruments when the first worker starts
    in this process: a program that only enqueues exports none, and may set its provider after declaring the app."""

    def __init__(self, app: Registry, provider: Any = None) -> None:
        self._app, self._provider = app, provider
        self._counting = EventCounter(app.tasks, lambda: put_by(app))
        self._depths = Depths(lambda: app.store, app)
        self._histograms: dict[str, Histogram] = {}
        self._attributes: dict[Labels, dict[str, str]] = {}
        self._lock = threading.Lock()
        self._working = 0  # number of the app's workers that run in this process
        self._gauges: tuple[float, Mapping[str, list[Observation]]] = (0.0, {})

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Notice) and event.name in ("started", "stopped"):
                self._count_worker(event.name == "started")
        self._counting(events)
        for event in events:
            if isinstance(event, DeliveryEvent):
                self._record(event)

    def _count_worker(self, started: bool) -> None:
        with self._lock:
            if started and not self._histograms:
                self._make(get_meter("redrive", __version__, self._provider))
            self._working += 1 if started else -1

    def _record(self, event: DeliveryEvent) -> None:
        if not self._histograms:  # the worker started before this observer was added
            self._count_worker(started=True)
        for key, value in counts_of(event):
            shape, labels = series_of(event.queue, event.task, key, self._app.tasks)
            if shape.bounds:
                self._histograms[shape.name].record(value / shape.unit, self._attributes_of(shape, labels))

    def _attributes_of(self, shape: Shape, labels: Labels) -> dict[str, str]:
        key = (shape.name, *labels)
        attributes = self._attributes.get(key)
        if attributes is None:
            attributes = _attributes_of(shape.labels, labels)
            if labels[1] != OTHER:  # other programs choose unknown names, which would grow the dict without bound
                self._attributes[key] = attributes
        return attributes

    def _make(self, meter: Meter) -> None:
        for shape in SHAPES.values():
            name, unit = _name(shape.name), "s" if shape.name.endswith(_SECONDS) else ""
            if shape.bounds:
                bounds = [float(bound) for bound in shape.bounds]
                self._histograms[shape.name] = meter.create_histogram(
                    name, unit, shape.help, explicit_bucket_boundaries_advisory=bounds
                )
            else:
                meter.create_observable_counter(name, [self._count_of(shape)], unit, shape.help)
        text = "Messages done, by the attempt that did it."
        meter.create_observable_counter("redrive.done", [self._done_counts], description=text)
        for family in self._depths.describe():
            unit = "s" if family.name.endswith(_SECONDS) else ""
            meter.create_observable_gauge(_name(family.name), [self._gauge_of(family.name)], unit, family.documentation)

    def _count_of(self, shape: Shape) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            self._counting.expect((task.queue, task.name) for task in list(self._app.tasks.values()))
            of = self._counting.copy()[shape.name]
            return [Observation(numbers[0], _attributes_of(shape.labels, labels)) for labels, numbers in of.items()]

        return read

    def _done_counts(self, _: CallbackOptions) -> Iterable[Observation]:
        counts = done_by_attempt(self._counting.copy())
        return [Observation(n, _attributes_of(("queue", "task", "attempt"), labels)) for labels, n in counts.items()]

    def _gauge_of(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: self._read().get(name, [])

    def _read(self) -> Mapping[str, list[Observation]]:
        """Return the gauges by name, read once for an export; none after the last worker has ended, as the store may be
        closed."""
        with self._lock:
            if not self._working:
                return {}
            until_s, gauges = self._gauges
            if time.monotonic() >= until_s:
                gauges = {
                    family.name: [Observation(sample.value, sample.labels) for sample in family.samples]
                    for family in self._depths.collect()
                }
                self._gauges = (time.monotonic() + FRESH_S, gauges)
            return gauges


def _name(name: str) -> str:
    return name.removesuffix(_SECONDS).replace("_", ".", 1)


def _attributes_of(names: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    return dict(zip(names, map(_label, labels), strict=True))
