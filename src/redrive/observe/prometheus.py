"""Export Prometheus metrics: call `Metrics(app).register()`, and serve `prometheus_client` as usual.

Names begin with `redrive_`, units are seconds, labels are queue and task and, if they take few values, outcome, reason,
kind, lane or attempt. Deliveries are counted in this process; depths are read from the store at each scrape, by queue.

| metric | labels beside queue, task | meaning |
|---|---|---|
| `redrive_deliveries_total` | outcome | deliveries by outcome, including `stale` and `lost` leases |
| `redrive_done_total` | attempt | success by attempt number: 1 to 5, 6-10, 11+ |
| `redrive_time_to_done_seconds` | retried | enqueue (or redrive) to done: first try against after retries |
| `redrive_retry_delay_seconds` | | how long retries wait |
| `redrive_attempts` | outcome | attempts a message took until it was done, dead, quarantined or cancelled |
| `redrive_faults_total` | kind | runs that failed |
| `redrive_run_seconds` | | how long handlers ran |
| `redrive_dead_total`, `redrive_quarantined_total` | reason | dead and quarantined messages, by reason |
| `redrive_redriven_total` | verdict | redriven messages by the outcome of their first run: done, failed |
| `redrive_isolated_total` | (none) | quarantined as poison, after too many redrives |
| `redrive_degraded_total` | | done in part |
| `redrive_duplicates_total` | | done unrun, by the result stored for their idempotency key |
| `redrive_crashes_total` | cause | runs that ended with their process; counted when the message's life ends |
| `redrive_deferral_seconds` | reason | how often and how long flow control put messages off |
| `redrive_worker_notices_total` | (notice only) | workers started, draining, stopped; store_unavailable, … |
| `redrive_aws_requests_total` | (action) | billed requests to AWS, updated once a minute |
| `redrive_queue_messages` | (queue, lane) | depth: ready, scheduled, parked, leased, dead, quarantine, done |
| `redrive_queue_oldest_age_seconds` | (queue) | how long the first message that has not begun has been due |
| `redrive_queue_oldest_dead_age_seconds` | (queue) | how long the oldest dead message has been dead |
| `redrive_queue_paused` | (queue) | 1 if it is paused |
| `redrive_workers` | (queue, state) | workers of the queue: running, idle, draining, gone (killed lately) |
| `redrive_worker_longest_run_seconds` | (none) | for how long the longest run is under way, over all workers |
| `redrive_worker_clock_ahead_seconds` | (none) | how far the clock is ahead of the store's that is the furthest away |
| `redrive_worker_loop_lag_seconds` | (none) | how late the latest event loop is (99th percentile of a minute) |
| `redrive_worker_hung_seconds` | (none) | for how long the worker that has hung longest has begun nothing; 0: none |
| `redrive_runs` | (status) | redrive runs, open or among the last 200: running, paused, stopped, cancelled, done |
| `redrive_run_messages` | (state) | of the open runs: planned, moved, done, failed, waiting, changed, skipped |
| `redrive_breaker_state` | (dependency) | 0 closed, 1 half-open, 2 open |
| `redrive_budget_left` | (dependency) | retries that are allowed now |
| `redrive_concurrency_limit` | (dependency) | the adaptive limit of concurrent calls for all workers together |
| `redrive_cool_down_seconds` | (dependency) | the rest of its cool-down |
| `redrive_enqueued_total` | (queue, task) | messages put and committed; children of isolated tasks count none |
| `redrive_queue_upcoming_messages` | (queue, kind, within) | scheduled and due within 10m: kind first or retry |
| `redrive_wanted_workers` | (queue) | workers that the queue wants, by its load: a signal for autoscalers |
| `redrive_schedule_late_seconds` | (schedule) | how long its first tick that was not enqueued is overdue |
| `redrive_batches` | (name, state) | batches that are not over: running, filling, or partial with a dead member |
| `redrive_batch_members` | (name, state) | their members: open, dead, quarantine |
| `redrive_batch_unsealed_seconds` | (name) | the longest time without a new member in one that is not sealed |
| `redrive_batches_unread` | (none) | 1 if running or filling batches may be missing: there are more than are read |
| `redrive_slo_objective_ratio` | (kind, name) | the share of messages that is to be good: kind task or queue |
| `redrive_slo_budget_left_ratio` | (kind, name) | the share of the error budget that is left |
| `redrive_slo_burn_rate` | (kind, name, window) | how fast it burns: window 5m, 30m, 1h, 6h, 3d |
| `redrive_store_up` | (none) | 0 while the store cannot be read: then depths are missing, and counters stay |

Several processes on the same store export the same depths and dependencies: take their `max`, not their `sum`. A
dependency that is split by key exports its state without a key only, and without the app no budget, as its rule is
unknown. A task that is not registered is `(other)`, so that a typing error of a producer creates no series.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigError
from ..message import Counts, Filter, Lane
from ..presence import read_workers, with_claimed
from ..redact import one_line, redact
from ..registry import Registry
from ..triage.controls import Control, Controls
from ..triage.redrive.records import RunState, RunStatus, index, read_state, state_cell
from .fleet_gauges import Fleet, fleet_of
from .fleet_gauges import gauges as fleet_gauges
from .signal_gauges import QueueSignals, read_signals
from .signal_gauges import gauges as signal_gauges
from .tally import SHAPES, EventCounter, Labels, MetricSeries, done_by_attempt, empty, put_by

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

    from ..store import Store

LANES = ("ready", "scheduled", "parked", "leased", "dead", "quarantine", "done")
OLDEST_QUEUES = 100  # the most queues whose oldest dead message each scrape reads: those with the most dead messages
FRESH_S = 1.0  # the least seconds for which values read from the store are reused
LOOK_SHARE = 0.05  # the share of time for reads: after one that took 200 ms, the next is 4 s later
_BY_ATTEMPT = ("queue", "task", "attempt")


_BREAKERS = {"closed": 0, "forced_closed": 0, "half_open": 1, "open": 2, "forced_open": 2}
_OF_CONTROLS: tuple[tuple[str, str, Callable[[Control], float | None]], ...] = (
    (
        "redrive_breaker_state",
        "0 closed, 1 half-open, 2 open.",
        lambda c: None if c.breaker is None else _BREAKERS[c.breaker],
    ),
    ("redrive_budget_left", "Retries that could go now.", lambda c: c.budget_left),
    ("redrive_concurrency_limit", "Calls that all workers make at once, where it adapts.", lambda c: c.concurrency),
    ("redrive_cool_down_seconds", "How long it asked to be left alone.", lambda c: c.cool_s),
)


class Metrics:
    """The metrics of an app's workers in this process, and of its store.

    `Metrics(app).register()` puts them into prometheus_client's default registry, or `register(registry)` into
    another. `store=False` leaves the depths out, for all but one of many processes. Raises ModuleNotFoundError if the
    extra is not installed (`pip install 'redrive[prometheus]'`), ValueError if the registry has them already.
    """

    def __init__(self, app: Registry, *, store: bool = True) -> None:
        self._app = app
        self._counting = EventCounter(app.tasks, lambda: put_by(app))
        self._depths = Depths(lambda: app.store, app) if store else None
        self._undo: list[Callable[[], object]] = []

    def register(self, registry: CollectorRegistry | None = None) -> Metrics:
        """Start counting, and export to `registry`. Call it once."""
        if self._undo:
            raise ConfigError("these metrics are registered already; make another Metrics(app) for another registry")
        target = registry if registry is not None else _client().REGISTRY
        target.register(self)
        self._undo = [lambda: target.unregister(self), self._app.subscribe(self._counting)]
        return self

    def unregister(self) -> None:
        """Undo `register`."""
        while self._undo:
            self._undo.pop()()

    def describe(self) -> Iterable[Metric]:
        """Yield the families without samples, as registering must not read the store."""
        yield from families(empty())
        if self._depths is not None:
            yield from self._depths.describe()

    def collect(self) -> Iterable[Metric]:
        """Yield the families with their current samples."""
        self._counting.expect((task.queue, task.name) for task in list(self._app.tasks.values()))
        yield from families(self._counting.copy())
        if self._depths is not None:
            yield from self._depths.collect()


class Counters:
    """A collector of the counts that `read` returns, for a process that exports the counts of other processes."""

    def __init__(self, read: Callable[[], MetricSeries]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Yield the families without samples."""
        return families(empty())

    def collect(self) -> Iterable[Metric]:
        """Yield the families with their current samples."""
        return families(self._read())


class _Look(NamedTuple):
    """Values read from the store, which are exported until `until_s`."""

    until_s: float
    counts: Mapping[str, Counts] | None = None  # None: the store could not be read
    paused: frozenset[str] = frozenset()
    dead_s: Mapping[str, float] = {}  # by queue: seconds for which its oldest dead message has been dead
    runs: Mapping[str, int] = {}  # the number of redrive runs by status
    run_messages: Mapping[str, int] = {}  # the messages of open runs by state
    controls: Sequence[Control] = ()
    fleet: Fleet = Fleet()
    signals: QueueSignals = QueueSignals()


class Depths:
    """A collector of depths and dependencies. It reads the store at most once a second, and for at most a twentieth of
    the time. `store` returns the store, and may raise; `app` has the rules of the dependencies; `clock` returns
    seconds."""

    def __init__(
        self, store: Callable[[], Store], app: Registry | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._app, self._clock = store, app, clock
        self._lock = threading.Lock()
        self._last = _Look(-math.inf)

    def describe(self) -> Iterable[Metric]:
        """Yield the families without samples."""
        return _gauges(_Look(0.0, {}))

    def collect(self) -> Iterable[Metric]:
        """Yield the families with current samples, or with those of the last read if it is recent."""
        with self._lock:  # held during a read, so that concurrent scrapes share it
            if self._clock() >= self._last.until_s:
                self._last = self._look()
            return _gauges(self._last)

    def _look(self) -> _Look:
        began_s = self._clock()
        try:
            store = self._store()
            counts = store.counts_by_queue()
            controls = Controls(store, self._app).list(waiting=False)
            declared = () if self._app is None else [queue.name for queue in self._app.queues_of(None)]
            workers = read_workers(store) if store.traits.cells else ()
            counts = with_claimed(counts, workers)
            fleet = fleet_of(workers, {*counts, *declared}, store.now_ms()) if store.traits.cells else Fleet()
            signals = read_signals(store, self._app, counts, workers)
            look = _Look(
                0.0, counts, store.paused(), _dead_s(store, counts), *_of_runs(store), controls, fleet, signals
            )
        except Exception:  # after any error the counters are exported without depths, as the scrape must not fail
            look = _Look(0.0)
        now_s = self._clock()
        return look._replace(until_s=now_s + max(FRESH_S, (now_s - began_s) / LOOK_SHARE))


def _of_runs(store: Store) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the number of redrive runs by status, and the number of messages of the open runs by outcome."""
    known = index(store)
    ids = (*known.open, *known.over)
    cells = store.cells.read([state_cell(id) for id in ids]) if ids else []
    states = {id: state for id, cell in zip(ids, cells, strict=True) if (state := read_state(cell)) is not None}
    messages: Counter[str] = Counter(dict.fromkeys(RunState().counts, 0))
    for id in known.open:
        messages.update(states[id].counts if id in states else {})
    runs = Counter(str(state.status) for state in states.values())
    return {status: runs[status] for status in RunStatus}, messages


def _dead_s(store: Store, counts: Mapping[str, Counts]) -> dict[str, float]:
    """Return, by queue, for how many seconds its oldest dead message has been dead; for OLDEST_QUEUES at most."""
    most = sorted((name for name in counts if counts[name].dead), key=lambda name: -counts[name].dead)[:OLDEST_QUEUES]
    firsts = {name: store.peek(Lane.DEAD, where=Filter(queue=name), limit=1).messages for name in most}
    now_ms = store.now_ms()
    return {name: max(0, now_ms - (m.rested_ms or now_ms)) / 1000 for name, oldest in firsts.items() for m in oldest}


def families(series: MetricSeries) -> Iterator[Metric]:
    """Yield the counters and histograms of `series` as families of prometheus_client."""
    core = _client().core
    for shape in SHAPES.values():
        of = series[shape.name]
        if shape.bounds:
            family = core.HistogramMetricFamily(shape.name, shape.help, labels=shape.labels)
            for labels, numbers in sorted(of.items()):
                family.add_metric(tuple(map(_label, labels)), _buckets(shape.bounds, numbers), numbers[-1])
            yield family
        else:
            yield _counter(shape.name, shape.help, shape.labels, {labels: n[0] for labels, n in of.items()})
    yield _counter("redrive_done", "Messages done, by the attempt that did it.", _BY_ATTEMPT, done_by_attempt(series))


def _buckets(bounds: Sequence[float], numbers: Sequence[float]) -> list[tuple[str, float]]:
    buckets, sum_ = [], 0.0
    for bound, count in zip((*bounds, math.inf), numbers, strict=False):
        sum_ += count
        buckets.append(("+Inf" if bound == math.inf else repr(bound), sum_))
    return buckets


def _counter(name: str, help: str, labels: Labels, values: dict[Labels, float]) -> Metric:
    family = _client().core.CounterMetricFamily(name, help, labels=labels)
    for of, value in sorted(values.items()):
        family.add_metric(tuple(map(_label, of)), value)
    return family  # type: ignore[no-any-return]


def _gauges(look: _Look) -> Iterator[Metric]:
    family = _client().core.GaugeMetricFamily
    yield family("redrive_store_up", "1 where the store could be read.", value=float(look.counts is not None))
    depth = family("redrive_queue_messages", "Messages by queue and lane.", labels=("queue", "lane"))
    oldest = family(
        "redrive_queue_oldest_age_seconds",
        "How long the first message that has not begun has been due.",
        labels=("queue",),
    )
    paused = family("redrive_queue_paused", "1 where the queue is paused.", labels=("queue",))
    for name, counts in sorted((look.counts or {}).items()):
        for lane in LANES:
            depth.add_metric((_label(name), lane), getattr(counts, lane))
        oldest.add_metric((_label(name),), counts.oldest_age_s)
        paused.add_metric((_label(name),), float(name in look.paused))
    dead = family(
        "redrive_queue_oldest_dead_age_seconds", "How long the longest dead message has been dead.", labels=("queue",)
    )
    for name, age_s in sorted(look.dead_s.items()):
        dead.add_metric((_label(name),), age_s)
    yield from (depth, oldest, dead, paused)
    yield _gauge("redrive_runs", "Redrive runs, open or among the last 200, by status.", "status", look.runs)
    text = "Messages of open redrive runs, by what became of them."
    yield _gauge("redrive_run_messages", text, "state", look.run_messages)
    yield from _controls(look.controls)
    yield from fleet_gauges(look.fleet, family, _label)
    yield from signal_gauges(look.signals, family, _label)


def _gauge(name: str, help: str, label: str, values: Mapping[str, int]) -> Metric:
    family = _client().core.GaugeMetricFamily(name, help, labels=(label,))
    for of, value in values.items():
        family.add_metric((of,), value)
    return family  # type: ignore[no-any-return]


def _controls(controls: Sequence[Control]) -> Iterator[Metric]:
    for name, help, value in _OF_CONTROLS:
        family = _client().core.GaugeMetricFamily(name, help, labels=("dependency",))
        for control in controls:
            number = value(control)
            if number is not None:
                family.add_metric((_label(control.name),), float(number))
        yield family


@lru_cache(maxsize=4096)
def _label(name: str) -> str:
    """Return a name as the value of a label: unique, without secrets, and without control characters."""
    hidden = redact(name)
    if hidden != name:
        hidden += f"~{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"
    return one_line(hidden)


class _Gauge:
    """A gauge family with prometheus_client's interface, for exporters that work without that package."""

    def __init__(self, name: str, documentation: str, value: float | None = None, labels: Sequence[str] = ()) -> None:
        self.name, self.documentation, self._labels = name, documentation, labels
        self.samples = [] if value is None else [_MetricSample(name, {}, value)]

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        self.samples.append(_MetricSample(self.name, dict(zip(self._labels, labels, strict=True)), value))


class _MetricSample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


class _WithoutClient:
    """Replaces the package prometheus_client if it is not installed. It has only gauges."""

    GaugeMetricFamily = _Gauge

    @property
    def core(self) -> _WithoutClient:
        return self

    def __getattr__(self, name: str) -> Any:
        raise ModuleNotFoundError(
            "metrics need prometheus_client: pip install 'redrive[prometheus]'", name="prometheus_client"
        )


def _client() -> Any:
    try:
        import prometheus_client.core
    except ModuleNotFoundError:
        return _WithoutClient()
    return prometheus_client
