"""Publish what happened to observers. The engine never waits for an observer and never fails because of one."""

from __future__ import annotations

import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import IO, Protocol

from msgspec import Struct

from .fault import Crash
from .redact import many_lines, redact


class DeliveryEvent(Struct, frozen=True, kw_only=True):
    """The outcome of one delivery. `outcome`: done, retry, crashed, snoozed, released, held, dead, stayed (its retries
    are used up, and it is held for a person), quarantined, cancelled, stale or lost. `crashed` means that the process
    of the run died; `crash` is the evidence."""

    outcome: str
    id: str
    task: str
    queue: str
    attempt: int
    crashes: int = 0
    redrives: int = 0
    verdict: str | None = None  # the message's redrive outcome, done or failed; reported with its first counted run
    correlation_id: str = ""
    worker: str = ""
    at_ms: int = 0
    run_ms: float | None = None  # ms for which the handler ran; None if the handler was not called
    delay_ms: int | None = None  # ms until the message is due again
    age_ms: int = 0  # ms since the present life of the message began
    degraded: str | None = None  # why the result of a done message is partial; None if it is not
    duplicate_of: str | None = None  # the message or call whose stored result was used instead of a run
    fault: str | None = None
    error: str | None = None
    text: str | None = None  # the text of the fault or, without a fault, why the message is dead
    reason: str | None = None  # why the message died, as a fixed word
    fingerprint: str | None = None  # the fingerprint of the fault that was the death of the message
    crash: Crash | None = None  # the evidence of the message's last crash
    causes: tuple[str, ...] = ()  # the causes of all crashes of the message, if its life ends now; "": unknown
    deferral: str | None = None  # why flow control deferred the run: breaker, budget, limit, …
    by: str | None = None  # the dependency, queue or task whose limit deferred the run
    traceback: str | None = None  # the stored traceback of the fault, which may contain secrets


class Notice(Struct, frozen=True, kw_only=True):
    """An event of the worker itself: started, draining, stopped, store_unavailable, store_back, took_back, no_identity,
    presence_failed (of `redrive workers`), worker_hung (the event loop is blocked, or a queue has no free place because
    its runs hang; `about` is the task), worker_back (it works again), no_scheduler (nothing enqueues the app's
    schedules), child_failed (a child process did not start), child_died (a child process died with several suspects),
    …; of flow control: breaker_opened, breaker_half_open, breaker_closed, budget_exhausted, flow_local, …; of redrive
    runs: run_started, run_waiting, run_stopped, run_done, run_failed (a tick raised), runs_unavailable; of
    auto-redrive: auto_isolated, auto_failed; of failure groups: regressed (`about` died after it was resolved); of
    dead-letter queues of SQS: ingested (`count` messages of the queue `about`), ingest_left, ingest_unavailable; of
    billed calls: aws_requests, once a minute for each action (`about`), with the number of requests (`count`)."""

    name: str
    worker: str = ""
    at_ms: int = 0
    text: str = ""
    about: str = ""  # the dependency as NAME or NAME/KEY; the id of a run; the scope of an automatic redrive; …
    count: int = 1  # number of messages or requests


Event = DeliveryEvent | Notice
Observer = Callable[[Sequence[Event]], None]


class Notify(Protocol):
    """Reports a notice, given its name, its text, its subject, and the number of messages."""

    def __call__(self, name: str, text: str, about: str = "", /, count: int = 1) -> None: ...


class LineLog(ABC):
    """Base class of observers that write a line per event to a stream. While one is subscribed, `warn` logs nothing."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    @abstractmethod
    def __call__(self, events: Sequence[Event]) -> None: ...


class Events:
    """Calls the observers with each batch of events, in the order of `emit`, on the thread that calls `emit`."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.died: set[str] = set()  # fingerprints of the latest deaths here, until a service of the worker takes them
        self.notice_observers: list[Observer] = []  # those that get only notices, for which no delivery event is built

    def __bool__(self) -> bool:
        return bool(self.observers or self.notice_observers)

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with every batch from now on; return a function that unsubscribes it. The observer must be
        quick: a worker's store thread calls it. Other threads may call it with notices."""
        self.observers.append(observer)
        return lambda: self.observers.remove(observer)

    def emit(self, events: Sequence[Event]) -> None:
        self._tell(self.observers, events)
        if self.notice_observers and (notices := [event for event in events if isinstance(event, Notice)]):
            self._tell(self.notice_observers, notices)

    def warn(self, text: str) -> None:
        """Log a warning, unless a LineLog is subscribed; a worker inside another program may have no observer."""
        if not any(isinstance(each, LineLog) for each in self.observers):
            import logging  # imported late, as only a warning needs it

            logging.getLogger("redrive.worker").warning("%s", many_lines(redact(text)))

    def _tell(self, observers: Sequence[Observer], events: Sequence[Event]) -> None:
        for observer in observers:
            try:
                observer(events)
            except Exception:  # a bug of an observer must not change what happens to a message
                complain(f"observer {observer!r}")


def complain(what: str) -> None:
    """Print the exception that is being handled, with the name of the operation that failed. Does not raise."""
    text = redact(f"redrive: {what} failed:\n{traceback.format_exc()}")
    print(many_lines(text), file=sys.stderr)
