"""What observers are told of a delivery once it is settled."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..decide import is_free
from ..events import Fate
from ..fault import Crash, Fault
from ..message import DAMAGED, Ack, DeadLetter, Message, Quarantine, RetryAt, Settled
from .redrive_outcome import verdict
from .settlement import Outcome

_FREE = {"snooze": "snoozed", "interrupted": "released"}  # the other free waits are held


def fate(o: Outcome, word: Settled, now_ms: int, worker: str) -> Fate:
    """The fate of one settled delivery; `attempt` is what the message has spent, so a free one gives its own back."""
    decision, fault, message = o.settlement.decision, o.settlement.fault, o.delivery.message
    outcome = "done"
    reason: str | None = None
    text: str | None = None
    delay_ms = degraded = None
    died = False
    rare: dict[str, Any] | None = None  # what most fates have not: each field that is named costs, on every message
    free = is_free(decision)
    match decision:
        case RetryAt():
            died = decision.crashed
            outcome = "crashed" if died else _FREE.get(decision.why, "held") if free else "retry"
            delay_ms = max(0, decision.at_ms - now_ms)
            if decision.deferral is not None:
                rare = {"deferral": decision.deferral.why, "by": decision.deferral.by}
        case DeadLetter() | Quarantine():
            died = isinstance(decision, Quarantine) and decision.crashed
            outcome = "dead" if isinstance(decision, DeadLetter) else "quarantined"
            reason, text = decision.reason, decision.why
            if fault is not None:
                rare = {"fingerprint": fault.fingerprint}
        case Ack(why):
            degraded = why
    if message.crashes or (fault is not None and fault.crash is not None):
        crash, causes = _crashes(message, fault, new=not free or died)
        rare = {**(rare or {}), "crash": crash, "causes": () if isinstance(decision, RetryAt) else causes}
    if message.redrives and word is Settled.OK:
        rare = {**(rare or {}), "verdict": verdict(message, decision)}
    if o.duplicate_of is not None:
        rare = {**(rare or {}), "duplicate_of": o.duplicate_of}
    found = Fate(
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
    return found if rare is None else replace(found, **rare)


def _crashes(message: Message, fault: Fault | None, *, new: bool) -> tuple[Crash | None, tuple[str, ...]]:
    """How its process died last, and the causes of all crashes of its life; `new`: the fault's is not counted yet."""
    last = None if fault is None else fault.crash
    known = [f.crash for f in message.faults if f.crash is not None and f.at_ms >= message.life_ms]
    if last is not None:
        known.append(last)
    unknown = message.crashes + (new and last is not None) - len(known)
    return (known[-1] if known else None), (*(crash.cause for crash in known), *[""] * unknown)


def fate_of_crashed(message: Message, fault: Fault, worker: str) -> Fate:
    """The fate of a delivery whose worker's process died while running it, told by `worker`, who takes it back."""
    return replace(
        fate_of_lost(message, fault.at_ms, worker),
        outcome="crashed",
        crashes=message.crashes + 1,
        fault=fault.kind.value,
        error=fault.error,
        text=fault.text,
        crash=fault.crash,
    )


def fate_of_damaged(message: Message, now_ms: int, worker: str) -> Fate:
    """The fate of a message that was set aside unclaimed, since its row cannot be read."""
    return replace(
        fate_of_lost(message, now_ms, worker),
        outcome="quarantined",
        reason=DAMAGED,
        text=None if message.damage is None else message.damage.why,
    )


def fate_of_lost(message: Message, now_ms: int, worker: str) -> Fate:
    """The fate of a delivery whose lease this worker lost while it ran."""
    return Fate(
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
