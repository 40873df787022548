"""CloudWatch metrics in the embedded metric format (EMF): a JSON line in the log, from which CloudWatch Logs makes the
metrics. No API call, no permission beyond writing the log, nothing that can fail a message.

`redrive worker --emf` writes them to stdout; in code `Emf(app, sys.stdout)`. Names, by dimension `Queue`, which is the
SQS name without `.fifo`: PREFIX-QUEUE; with `by_task`, by `Queue` and `Task` too:

| metric | unit | says |
|---|---|---|
| `Runs` | Count | runs of handlers that ended, whatever came of them |
| `Failures` | Count | those that failed: retried, dead, quarantined, crashed; the error rate is 100 · Failures / Runs |
| `Done` | Count | messages done |
| `Retries` | Count | retries decided |
| `Crashes` | Count | runs whose process died |
| `Dead`, `Quarantined` | Count | messages that came to rest there |
| `Deferrals` | Count | messages put off by flow control, unrun |
| `RedrivesDone`, `RedrivesFailed` | Count | redriven messages by what their first run came to |
| `RunTime` | Milliseconds | how long handlers ran: all of up to 100 a line, else evenly chosen ones |
| `TimeToDone` | Milliseconds | enqueue (or redrive) to done, likewise |
| `DoneFirstTry`, `DoneAfterRetries` | Count | messages done by their first attempt, and by a later one |
| `TimeToDoneFirstTry`, `TimeToDoneAfterRetries` | Milliseconds | enqueue (or redrive) to done, of each of the two |
| `RetryDelay` | Seconds | how long retries wait, likewise |
| `SuccessfulRedrives` | Count | the re-driver moved back to the queue |
| `PoisonPillsIsolated` | Count | the re-driver moved to the poison queue, after too many redrives |
| `RedriveFailures` | Count | the re-driver could not move; the message stays in the dead-letter queue |

With `detail`, which is the default, two more sets of dimensions of a queue:

| dimensions | metrics | unit | says |
|---|---|---|---|
| `Queue`, `Attempt` | `Done`, `Retries`, `Dead`, `Quarantined`, `Crashes` | Count | attempts 1, 2, 3, 4-5, 6-10, 11+ |
| `Queue`, `Fault` | `Faults` | Count | what failed, by the kind of the fault: transient, timeout, permanent, … |

CloudWatch bills each name and set of values of dimensions as a custom metric, in the hours in which it is written. A
queue has 17 at most; `detail` adds up to 30 by attempt and 11 by kind, though a usual queue writes about ten of them;
`by_task` adds 17 for each task. Limits of the format (100 values a metric, 30 dimensions, a line of 256 KB) hold for
whatever is counted.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from .. import counters
from ..counters import BANDS, FAILED, OTHER, CountKey, band, bounded, counts_of
from ..duration import Duration, seconds
from ..events import DeliveryEvent, Event, Notice
from ..redact import in_json, redact, redact_value
from ..registry import Registry

NAMESPACE = "Redrive"
UNITS = {
    **dict.fromkeys(("Runs", "Failures", "Done", "Retries", "Crashes", "Dead", "Quarantined", "Deferrals"), "Count"),
    **dict.fromkeys(("RedrivesDone", "RedrivesFailed"), "Count"),
    **dict.fromkeys(("SuccessfulRedrives", "PoisonPillsIsolated", "RedriveFailures"), "Count"),
    "RunTime": "Milliseconds",
    "TimeToDone": "Milliseconds",
    "RetryDelay": "Seconds",
    **dict.fromkeys(("DoneFirstTry", "DoneAfterRetries", "Faults"), "Count"),
    **dict.fromkeys(("TimeToDoneFirstTry", "TimeToDoneAfterRetries"), "Milliseconds"),
}
REDRIVER = ("SuccessfulRedrives", "PoisonPillsIsolated", "RedriveFailures")
VALUES_MAX = 100  # most values of one metric in one line
EVERY_S = 10.0
_NAME_MAX = 250  # most characters of a dimension's value
_BY_ATTEMPT: dict[CountKey, str] = {
    (counters.DELIVERIES, "done"): "Done",
    (counters.DELIVERIES, "retry"): "Retries",
    (counters.DELIVERIES, "crashed"): "Crashes",
    (counters.DELIVERIES, "dead"): "Dead",
    (counters.DELIVERIES, "quarantined"): "Quarantined",
}
NAMES: dict[CountKey, tuple[str, ...]] = {
    **{key: (name,) for key, name in _BY_ATTEMPT.items()},
    (counters.DELIVERIES, "held"): ("Deferrals",),
    (counters.REDRIVEN, "done"): ("RedrivesDone",),
    (counters.REDRIVEN, "failed"): ("RedrivesFailed",),
    counters.RUN: ("RunTime",),
    counters.RETRY_DELAY: ("RetryDelay",),
    counters.FIRST_TRY: ("DoneFirstTry", "TimeToDone", "TimeToDoneFirstTry"),
    counters.AFTER_RETRIES: ("DoneAfterRetries", "TimeToDone", "TimeToDoneAfterRetries"),
}
_encode = msgspec.json.Encoder().encode

Values = Mapping[str, float | Sequence[float]]


def line(
    values: Values,
    dimensions: Mapping[str, str],
    *,
    sets: Sequence[Sequence[str]] | None = None,
    namespace: str = NAMESPACE,
    at_ms: int | None = None,
    **properties: object,
) -> bytes:
    """Return one line of EMF, with a line break. `values`: a number, or up to 100 of them, by metric name. `sets`: the
    combinations of dimensions to make metrics of (default: all together). `properties` are in the log only."""
    metadata = {
        "Namespace": namespace,
        "Dimensions": [list(dimensions)] if sets is None else sets,
        "Metrics": [{"Name": name, "Unit": UNITS[name]} for name in values],
    }
    now_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    root: dict[str, Any] = {**redact_value(properties), "_aws": {"Timestamp": now_ms, "CloudWatchMetrics": [metadata]}}
    root |= {name: _value(text) for name, text in dimensions.items()}
    return in_json(_encode(root | dict(values)).decode()).encode() + b"\n"


def redriver_line(queue: str, moved: int, isolated: int, failed: int, **properties: object) -> bytes:
    """Return the EMF line of a re-driver's run. `queue`: name or URL of the SQS queue that it moves messages to."""
    values = dict(zip(REDRIVER, (moved, isolated, failed), strict=True))
    return line(values, {"Queue": dimension(queue)}, **properties)  # type: ignore[arg-type]  # properties only


def dimension(queue: str) -> str:
    """Return the value of the dimension `Queue` for the name or URL of an SQS queue.

    >>> dimension("https://sqs.eu-central-1.amazonaws.com/123456789012/shop-orders.fifo")
    'shop-orders'
    """
    return queue.rpartition("/")[2].removesuffix(".fifo")


class Emf:
    """An observer that counts an app's events, and writes them as EMF every ten seconds while something happens.

    It subscribes itself. `prefix`: PREFIX of `sqs://REGION/PREFIX` (default: that of the app's URL, none on other
    stores). `every=None` writes only when `flush` is called, as a Lambda does at the end of an invocation.
    `detail=False` leaves out the counts by attempt and by kind of fault.
    """

    def __init__(
        self,
        app: Registry,
        stream: IO[str] | None = None,
        *,
        prefix: str | None = None,
        namespace: str = NAMESPACE,
        by_task: bool = False,
        detail: bool = True,
        every: Duration | None = EVERY_S,
    ) -> None:
        self._tasks, self._queues = app.tasks, app.queues
        self._stream = sys.stdout if stream is None else stream
        self._prefix = prefix_of(app.url) if prefix is None else prefix
        self._namespace, self._by_task, self._detail = namespace, by_task, detail
        self._sums: dict[tuple[str, str | None], _Sums] = {}
        self._details: dict[tuple[str, str, str], dict[str, int]] = {}  # by queue, dimension and dimension value
        self._lock = threading.Lock()
        self._some, self._closed = threading.Event(), threading.Event()
        self._every_s = None if every is None else seconds(every)
        self._thread: threading.Thread | None = None
        if every is not None:
            self._thread = threading.Thread(target=self._write_on, name="redrive-emf", daemon=True)
            self._thread.start()
        self._unsubscribe: Callable[[], None] = app.subscribe(self)

    def __call__(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                if isinstance(event, DeliveryEvent):
                    self._count(event)
        if not self._some.is_set():
            self._some.set()
        if any(isinstance(event, Notice) and event.name == "stopped" for event in events):
            self.flush()  # the process may end before the thread writes again

    def flush(self) -> None:
        """Write the counts since the last flush. If the stream is broken, they are lost; no exception is raised."""
        with self._lock:
            sums, self._sums = self._sums, {}
            details, self._details = self._details, {}
        lines = b"".join(
            self._line(queue, {} if task is None else {"Task": task}, of.values()) for (queue, task), of in sums.items()
        )
        lines += b"".join(self._line(queue, {name: value}, of) for (queue, name, value), of in details.items())
        if not lines:
            return
        try:
            self._stream.write(lines.decode())
            self._stream.flush()
        except (OSError, ValueError):  # the reader of the stream has gone
            return

    def close(self) -> None:
        """Stop counting, and write the remaining counts."""
        self._unsubscribe()
        self._closed.set()
        self._some.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _write_on(self) -> None:
        while self._some.wait() and not self._closed.is_set():
            self._some.clear()
            self._closed.wait(self._every_s)
            self.flush()

    def _count(self, fate: DeliveryEvent) -> None:
        self._of(fate.queue, None).add(fate)
        if self._by_task:
            self._of(fate.queue, fate.task if fate.task in self._tasks else OTHER).add(fate)
        if not self._detail:
            return
        name = _BY_ATTEMPT.get((counters.DELIVERIES, fate.outcome))
        if name is not None:
            self._one_more(name, fate.queue, "Attempt", BANDS[band(fate.attempt)])
        if fate.fault is not None and fate.outcome in FAILED:
            self._one_more("Faults", fate.queue, "Fault", bounded((counters.FAULTS, fate.fault))[1])

    def _one_more(self, metric: str, queue: str, dimension: str, value: str) -> None:
        counts = self._details.setdefault((queue, dimension, value), {})
        counts[metric] = counts.get(metric, 0) + 1

    def _of(self, queue: str, task: str | None) -> _Sums:
        sums = self._sums.get((queue, task))
        if sums is None:
            sums = self._sums[queue, task] = _Sums()
        return sums

    def _line(self, queue: str, more: Mapping[str, str], values: Values) -> bytes:
        declared = self._queues.get(queue)
        given = None if declared is None else declared.sqs
        name = dimension((given or f"{self._prefix}-{queue}") if self._prefix else queue)
        return line(values, {"Queue": name, **more}, namespace=self._namespace)


class _Sums:
    """Sums over the delivery events of one queue, or of one task in it, since the last line."""

    def __init__(self) -> None:
        self.counts = {"Runs": 0, "Failures": 0}  # written even if 0, so that their ratio exists
        self.samples = {name: _EmfSample() for name, unit in UNITS.items() if unit != "Count"}

    def add(self, fate: DeliveryEvent) -> None:
        counts = self.counts
        if fate.run_ms is not None or fate.fault == "crashed":
            counts["Runs"] += 1
            counts["Failures"] += fate.outcome in FAILED
        for key, value in counts_of(fate):
            for name in NAMES.get(key, ()):
                if name in self.samples:
                    self.samples[name].add(value / 1000 if name == "RetryDelay" else value)
                else:
                    counts[name] = counts.get(name, 0) + 1

    def values(self) -> Values:
        return self.counts | {name: sample.kept for name, sample in self.samples.items() if sample.kept}


class _EmfSample:
    """A sample of the added values, at most VALUES_MAX: all of them, or every second, fourth, eighth, …"""

    def __init__(self) -> None:
        self.kept: list[float] = []
        self._stride, self._skip = 1, 0

    def add(self, value: float) -> None:
        if self._skip:
            self._skip -= 1
            return
        if len(self.kept) == VALUES_MAX:
            self.kept = self.kept[::2]
            self._stride *= 2
        self.kept.append(value)
        self._skip = self._stride - 1


def prefix_of(url: str | None) -> str:
    """Return the PREFIX of `sqs://REGION/PREFIX?…`; an empty text for other stores.

    >>> prefix_of("sqs://eu-central-1/shop?mode=requeue")
    'shop'
    """
    parts = urlsplit(url or "")
    return parts.path.strip("/") if parts.scheme == "sqs" else ""


def _value(text: str) -> str:
    """Return the text as a valid dimension value: redacted, printable ASCII, not blank, without leading colons."""
    name = "".join(c if " " <= c <= "~" else "?" for c in redact(text)).lstrip(":")[:_NAME_MAX]
    return name if name.strip() else OTHER
