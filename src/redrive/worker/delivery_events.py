"""Report deliveries and notices to observers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..decide import is_free
from ..events import DeliveryEvent, Events, Notice, Observer
from ..fault import Crash, Fault, Kind
from ..history import Flusher
from ..message import DAMAGED, HELD, Ack, DeadLetter, Message, Quarantine, RetryAt, Settled
from ..store import Store
from .fault_log import LEVELS, log_faults
from .redrive_outcome import first_outcome
from .settlement import Outcome
from .telemetry.history import Counted

CAUSES_MAX = 100  # unknown causes of crashes that are listed for one message; a damaged row may claim any number
DIED_MAX = 1000  # fingerprints of deaths that are kept for the service that takes them
_AT_REST = ("dead", "stayed")
_HELD = {
    "parked": "it waits for a worker that can run it",
    "newer": "a worker of another release knows it, and it is left to that one",
    "asked": "the other side asked it to wait (Retry-After)",
    "cancelled": "it is cancelled",
}
_FREE = {"snooze": "snoozed", "interrupted": "released"}  # outcomes of free deliveries; all other reasons are `held`


class Reporter:
    """Reports the events of one worker to the app's observers, and logs faults. Without observers, a done message costs
    nothing."""

    observers: list[Observer]
    worker: str

    def __init__(self, events: Events, store: Store, worker: str, flusher: Flusher | None = None) -> None:
        self._events, self._store, self.worker = events, store, worker
        self.observers = events.observers
        self.history: Counted | None = None if flusher is None else Counted(flusher, worker)

    def notice(self, name: str, text: str, about: str = "", count: int = 1) -> None:
        """Report a notice about the worker."""
        if self._events:
            now_ms = self._store.now_ms()
            event = Notice(name=name, worker=self.worker, at_ms=now_ms, text=text, about=about, count=count)
            self._events.emit([event])

    def warn(self, name: str, text: str, about: str = "") -> None:
        """Report a notice about the worker; if no observer writes lines, log it as a warning, too."""
        self.notice(name, text, about)
        self._events.warn(f"worker {self.worker}: {text}")

    def settled(self, outcomes: Sequence[Outcome], answers: Sequence[Settled]) -> None:
        """Report these outcomes to observers and the history, given the store's answer to each settlement."""
        now_ms, every, ok = self._store.now_ms(), bool(self.observers), Settled.OK
        events = [
            None if o.plain and answer is ok and not every else fate(o, answer, now_ms, self.worker)
            for o, answer in zip(outcomes, answers, strict=True)
        ]
        if self.history is not None:
            self.history.settled(outcomes, events, now_ms)
        if reported := [event for event in events if event is not None]:
            self._emit(reported)

    def _emit(self, fates: Sequence[DeliveryEvent]) -> None:
        self._events.emit(fates)
        if len(self._events.died) < DIED_MAX:
            self._events.died |= {each.fingerprint for each in fates if each.fingerprint and each.outcome in _AT_REST}
        log_faults([each for each in fates if each.outcome in LEVELS], self._events)

    def crashed(self, messages: Sequence[Message], fault: Fault) -> None:
        """Report deliveries whose process crashed while it ran them, and which this worker recovers."""
        self._unsettled([_crashed(message, fault, self.worker) for message in messages])

    def set_aside(self, messages: Sequence[Message]) -> None:
        """Report messages that were quarantined unclaimed, because their rows cannot be read."""
        now_ms = self._store.now_ms()
        self._unsettled([_damaged(message, now_ms, self.worker) for message in messages])

    def lost(self, message: Message) -> None:
        """Report that this worker lost the lease of a running message."""
        lost = [_lost(message, self._store.now_ms(), self.worker)]
        if self.history is not None:
            self.history.count_unsettled(lost, self._store.now_ms())
        if self.observers:
            self._events.emit(lost)

    def _unsettled(self, fates: Sequence[DeliveryEvent]) -> None:
        if self.history is not None:
            self.history.count_unsettled(fates, self._store.now_ms())
        self._emit(fates)


def _why_held(message: Message, decision: RetryAt) -> str:
    """Return why the message is deferred, as a text; a parked message has the reason in its last fault."""
    last = message.faults[-1] if message.faults else None
    parked = decision.why in ("parked", "newer") and last is not None and last.kind is Kind.UNROUTABLE
    if parked and last is not None:
        return last.text
    return _HELD.get(decision.why, decision.why)


def fate(o: Outcome, word: Settled, now_ms: int, worker: str) -> DeliveryEvent:
    """Return the event of one delivery. `word` is the store's answer to its settlement. If the delivery was free, the
    event's `attempt` does not count it."""
    decision, fault, message = o.settlement.decision, o.settlement.fault, o.delivery.message
    outcome = "done"
    reason: str | None = None
    text: str | None = None
    delay_ms = degraded = None
    died = False
    rare: dict[str, Any] | None = None  # fields that few events have: passing all of them would slow down every message
    free = is_free(decision)
    match decision:
        case Ack():  # first, as most messages are done
            degraded = decision.degraded
        case RetryAt():
            died = decision.crashed
            outcome = "crashed" if died else _FREE.get(decision.why, "held") if free else "retry"
            delay_ms = max(0, decision.at_ms - now_ms)
            if decision.deferral is not None:
                rare = {"deferral": decision.deferral.why, "by": decision.deferral.by}
            if fault is not None:
                rare = {**(rare or {}), "traceback": fault.traceback or None}
            elif outcome == "held" and decision.deferral is None:
                text = _why_held(message, decision)
        case DeadLetter() | Quarantine():
            died = isinstance(decision, Quarantine) and decision.crashed
            reason, text = decision.reason, decision.why
            outcome = "quarantined" if isinstance(decision, Quarantine) else "stayed" if reason == HELD else "dead"
            if fault is not None:
                rare = {"fingerprint": fault.fingerprint, "traceback": fault.traceback or None}
    if message.crashes or (fault is not None and fault.crash is not None):
        crash, causes = _crashes(message, fault, new=not free or died)
        ends = word is Settled.CANCELLED or (word is Settled.OK and not isinstance(decision, RetryAt))
        rare = {**(rare or {}), "crash": crash, "causes": causes if ends else ()}
    if message.redrives and message.attempt <= 1 and word is Settled.OK:
        rare = {**(rare or {}), "verdict": first_outcome(message, decision)}
    if o.duplicate_of is not None:
        rare = {**(rare or {}), "duplicate_of": o.duplicate_of}
    event = DeliveryEvent(
        outcome=outcome if word is Settled.OK else word.value,
        id=message.id,
        task=message.task,
        queue=message.queue,
        attempt=message.attempt - free,
        crashes=message.crashes + died,
        redrives=message.redrives,
        correlation_id=message.correlation_id,
        worker=worker,
        at_ms=now_ms,
        run_ms=None if o.run_s is None else round(o.run_s * 1000, 3),
        delay_ms=delay_ms,
        age_ms=max(0, now_ms - message.life_ms),
        degraded=degraded,
        fault=None if fault is None else fault.kind.value,
        error=None if fault is None else fault.error,
        text=(text or None) if fault is None else fault.text,
        reason=reason,
    )
    return event if rare is None else replace(event, **rare)


def _crashes(message: Message, fault: Fault | None, *, new: bool) -> tuple[Crash | None, tuple[str, ...]]:
    """Return the last known crash and the causes of all crashes of this life. `new`: `fault` is not yet counted in the
    message."""
    last = None if fault is None else fault.crash
    known = [f.crash for f in message.faults if f.crash is not None and f.at_ms >= message.life_ms]
    if last is not None:
        known.append(last)
    unknown = message.crashes + (new and last is not None) - len(known)
    causes = (*(crash.cause for crash in known), *[""] * min(unknown, CAUSES_MAX))
    return (known[-1] if known else None), causes


def _crashed(message: Message, fault: Fault, worker: str) -> DeliveryEvent:
    return replace(
        _lost(message, fault.at_ms, worker),
        outcome="crashed",
        crashes=message.crashes + 1,
        fault=fault.kind.value,
        error=fault.error,
        text=fault.text,
        crash=fault.crash,
    )


def _damaged(message: Message, now_ms: int, worker: str) -> DeliveryEvent:
    text = None if message.damage is None else message.damage.why
    return replace(_lost(message, now_ms, worker), outcome="quarantined", reason=DAMAGED, text=text)


def _lost(message: Message, now_ms: int, worker: str) -> DeliveryEvent:
    return DeliveryEvent(
        outcome="lost",
        id=message.id,
        task=message.task,
        queue=message.queue,
        attempt=message.attempt,
        crashes=message.crashes,
        redrives=message.redrives,
        correlation_id=message.correlation_id,
        worker=worker,
        at_ms=now_ms,
    )
