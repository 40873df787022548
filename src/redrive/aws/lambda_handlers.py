"""Handlers of AWS Lambda: `app.lambda_handler()` makes one that works an SQS queue; `redriver` moves dead messages back
(`Handler: redrive.aws.lambda_handlers.redriver`)."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..events import LineLog
from ..registry import Registry
from .cloudwatch import Emf, redriver_line
from .redriver import (
    FAN_OUT,
    Continuation,
    Known,
    Redriver,
    RedriverReport,
    RedriverSettings,
    SqsCall,
    calls,
    settings_of,
    trigger_of,
)

if TYPE_CHECKING:
    from ..store import Cells
    from .lambda_ import Batches

MARGIN_S = 10.0  # seconds before the end of an invocation in which no new work is started
ALONE_S = 60.0  # seconds allowed for a call without a Lambda context


class LambdaHandler:
    """A Lambda handler, as `app.lambda_handler()` returns it: a function of (event, context). It creates its event loop
    and threads at the first event and keeps them until `close`, which Lambda never calls."""

    def __init__(
        self,
        app: Registry,
        *,
        concurrency: int | None,
        margin_s: float,
        metrics: bool,
        log: Callable[[], LineLog | None],
    ) -> None:
        from .lambda_ import Batches  # imported when Lambda loads the function's module; the re-driver does not need it

        self._make = Batches
        self._app, self._concurrency, self._margin_s, self._metrics = app, concurrency, margin_s, metrics
        self._log, self._ends_log = log, _nothing
        self._lock = threading.Lock()  # Lambda passes one event at a time; the lock protects other callers
        self._batches: Batches | None = None
        self._emf: Emf | None = None

    def __call__(self, event: Any, context: Any) -> dict[str, Any]:
        left_s = _left(context, self._margin_s)
        with self._lock:
            if self._batches is None:
                self._batches = self._make(self._app, self._concurrency)
                self._emf = Emf(self._app, every=None) if self._metrics else None
                self._subscribe_log()
            try:
                return self._batches.handle(event, left_s)
            finally:
                if self._emf is not None:
                    self._emf.flush()

    def _subscribe_log(self) -> None:
        """Subscribe an observer that logs a line per message, unless the app already has one."""
        log = None if any(isinstance(each, LineLog) for each in self._app.events.observers) else self._log()
        if log is not None:
            self._ends_log = self._app.subscribe(log)

    def close(self) -> None:
        """End the handler's threads and event loop."""
        self._ends_log()
        self._ends_log = _nothing
        if self._batches is not None:
            self._batches.close()
        if self._emf is not None:
            self._emf.close()


def _nothing() -> None: ...


def redriver(event: Any, context: Any) -> dict[str, Any]:
    """Redrive the messages of the dead-letter queue `REDRIVE_DLQ_URL`: to `REDRIVE_QUEUE_URL`, and from the sixth death
    on (`REDRIVE_MAX_REDRIVES`) to `REDRIVE_POISON_URL`.

    Called by an alarm's notification, a rule or a schedule of EventBridge, or its own work queue; the end of an alarm
    moves nothing. Works until 10 s before its timeout and then continues through `REDRIVE_WORK_QUEUE_URL`, by which one
    alarm also starts several Lambdas (at most `REDRIVE_FAN_OUT`). Together they move `REDRIVE_RATE` messages (10/s),
    each up to `REDRIVE_JITTER` of its wait (0.2) sooner or later. While the breaker of `REDRIVE_DEPENDENCY` is open, or
    `REDRIVE_HEALTH_URL` answers no 2xx, it moves nothing and is called again later. Returns a report; raises errors of
    SQS, so that Lambda retries.
    """
    chosen = settings_of(os.environ)
    cells = None if chosen.cells is None else _cells(chosen.cells)
    return redrive(event, _call(_region()), chosen, work_of(os.environ), cells, _left(context, MARGIN_S), _now_ms)


def redrive(
    event: Any,
    call: SqsCall,
    settings: RedriverSettings,
    work: Continuation,
    cells: Cells | None,
    left_s: Callable[[], float],
    now_ms: Callable[[], int],
    known: Known | None = None,
) -> dict[str, Any]:
    """Like `redriver`, with these clients, clocks and settings. `known`: the seconds whose rate is used up, if there
    are no cells; None: those that this process knows."""
    trigger = trigger_of(event)
    known = known or _known(settings.dead)
    run = Redriver(call, settings, work, cells, left_s, now_ms, known=known, said=trigger.said)
    try:
        if trigger.acts:
            run.run(trigger=not trigger.work)
    finally:
        _tell(run.carried, settings, now_ms())
    report: dict[str, Any] = {"trigger": trigger.what, **_as_dict(run.carried)}
    return {"batchItemFailures": [], **report} if trigger.work else report


def work_of(environ: Mapping[str, str]) -> Continuation:
    """Return the work queue and its bound, by REDRIVE_WORK_QUEUE_URL and REDRIVE_FAN_OUT. Raises ConfigError."""
    text = environ.get("REDRIVE_FAN_OUT") or str(FAN_OUT)
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise ConfigError(f"REDRIVE_FAN_OUT={text!r}; expected a whole number from 1 to 1000")
    return Continuation(environ.get("REDRIVE_WORK_QUEUE_URL") or None, int(text))


def _tell(carried: RedriverReport, settings: RedriverSettings, now_ms: int) -> None:
    """Print the metrics of a run as an EMF line, and log why the run is incomplete."""
    line = redriver_line(
        settings.queue,
        carried.redriven,
        carried.isolated,
        carried.failed,
        namespace=settings.namespace,
        at_ms=now_ms,
        why=carried.why,
        again_s=carried.again_s,
    )
    sys.stdout.write(line.decode())
    sys.stdout.flush()


def _as_dict(carried: RedriverReport) -> dict[str, Any]:
    return {name: getattr(carried, name) for name in carried.__struct_fields__}


def _left(context: Any, most_s: float) -> Callable[[], float]:
    """Return a function that returns the seconds left for work: all but the last `most_s`, at most a third."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    if ask is None:
        end_s = time.monotonic() + ALONE_S
        return lambda: end_s - time.monotonic()
    margin_s = min(most_s, ask() / 1000 / 3)
    return lambda: ask() / 1000 - margin_s


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


@cache
def _call(region: str) -> SqsCall:
    from ..awsapi.client import client

    return calls(client("sqs", region=region))


@cache
def _known(dead: str) -> Known:
    """Return the used seconds of this dead-letter queue's rate; one object for all invocations in this process."""
    return Known()


@cache
def _cells(url: str) -> Cells:
    from ..stores import open_cells

    return open_cells(url)
