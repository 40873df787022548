"""The state changes of a message, as pure functions that return the message after the change.

Used by stores that keep whole messages. The SQL stores and Redis implement the same rules in statements and scripts.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..fault import Fault, Kind
from ..message import (
    AFTER,
    DEGRADED,
    FAULTS_KEPT_EACH_END,
    Ack,
    Before,
    ClaimRequest,
    DeadLetter,
    Decision,
    Draft,
    Edit,
    Filter,
    Handle,
    Isolate,
    Lane,
    Message,
    Quarantine,
    Redrive,
    RetryAt,
    WaitFields,
)

WAITING = ("ready", "scheduled")  # the states of a message that waits, as `PutResult` names them


def later(now_ms: int, delay_ms: int) -> int:
    """When a delay ends, in ms. Adds 1 ms, as the current one has partly passed and no message may be early."""
    return now_ms + delay_ms + (delay_ms > 0)


def enqueued(draft: Draft, id: str, now_ms: int) -> Message:
    return Message(
        id=id,
        task=draft.task,
        queue=draft.queue,
        body=draft.body,
        content=draft.content,
        priority=draft.priority,
        due_ms=later(now_ms, draft.delay_ms) if draft.due_ms is None else draft.due_ms,
        enqueued_ms=now_ms,
        life_ms=now_ms,
        deadline_ms=draft.deadline_ms,
        version=draft.version,
        key=draft.key,
        group=draft.group,
        headers=dict(draft.headers or {}),
        correlation_id=draft.correlation_id or id,
        causation_id=draft.causation_id,
        producer=draft.producer,
        traceparent=draft.traceparent,
        keep_ms=draft.keep_ms,
        batch=draft.batch,
    )


def may_replace(message: Message, draft: Draft) -> bool:
    """Return True if a draft may give a message that waits its content. One that a group, a batch or a redrive run
    follows, and one of another queue, stays as it is."""
    followed = message.group is not None or message.batch is not None or message.redrives > 0
    return not followed and message.queue == draft.queue


def replaced(message: Message, draft: Draft, now_ms: int) -> Message:
    """The waiting message with the content of a draft, as if it had never run. It keeps its id, the time of its first
    enqueue, and its fence."""
    fresh = enqueued(draft, message.id, now_ms)
    return replace(fresh, enqueued_ms=message.enqueued_ms, fence=message.fence)


def leased(message: Message, ask: ClaimRequest, alone: bool, now_ms: int) -> Message:
    """The message as claimed. A lease that ran out counts as a crash (`alone`: it ran alone), not as an attempt."""
    ran_out = message.lane is Lane.LEASED
    return replace(
        message,
        lane=Lane.LEASED,
        due_ms=now_ms + ask.lease_ms,
        fence=message.fence + 1,
        attempt=message.attempt + (not ran_out),
        crashes=message.crashes + ran_out,
        crashes_alone=message.crashes_alone + (ran_out and alone),
        suspect=message.suspect or ran_out,
        worker=ask.worker,
    )


def lapsed(message: Message, fault: Fault | None, now_ms: int) -> Message:
    """The message after its lease ended early, without a worker, so that a second reclaim does not count the message as
    never started. It is due before messages enqueued after it, so that a backlog does not delay it."""
    faults = _history(message.faults, fault)
    return replace(message, due_ms=min(now_ms, message.life_ms), worker=None, faults=faults)


def given_back(message: Message, now_ms: int) -> Message:
    """The message, leased but never started, ready again and due before messages enqueued after it."""
    return replace(message, lane=Lane.READY, due_ms=min(now_ms, message.life_ms), attempt=message.attempt - 1)


def decided(message: Message, decision: Decision, fault: Fault | None, now_ms: int) -> Message:
    """Return the message after any decision except an ack. A cancelled message becomes done, whatever the decision."""
    match decision:
        case RetryAt():
            moved, counts = _again(message, decision, now_ms), decision.counts and not decision.crashed
        case DeadLetter(reason=reason, counts=counts):
            moved = rested(message, Lane.DEAD, reason, now_ms)
        case Quarantine(reason=reason, counts=counts, crashed=died):
            moved, counts = rested(_crashed(message, decision), Lane.QUARANTINE, reason, now_ms), counts and not died
        case Ack():
            raise TypeError("an acked message is removed, not changed")
    attempt = message.attempt - (not counts)
    suspect = moved.suspect and not counts
    moved = replace(moved, attempt=attempt, suspect=suspect, faults=_history(message.faults, fault))
    return cancelled(moved, now_ms) if message.cancel else moved


def _again(message: Message, retry: RetryAt, now_ms: int) -> Message:
    return replace(
        _crashed(message, retry),
        lane=Lane.READY,
        due_ms=retry.at_ms,
        held_ms=message.held_ms + (max(0, retry.at_ms - now_ms) if retry.held else 0),
        deferral=retry.deferral,
    )


def _crashed(message: Message, decision: RetryAt | Quarantine) -> Message:
    """Count a crash, as for a lost lease, if the decision says that the run's process died."""
    if not decision.crashed:
        return message
    alone = message.crashes_alone + (not decision.in_company)
    return replace(message, crashes=message.crashes + 1, crashes_alone=alone, suspect=True)


def done(message: Message, ack: Ack, result: bytes | None, now_ms: int) -> Message:
    """Return the message after an ack that keeps it in the done lane."""
    kept = replace(message, lane=Lane.DONE, due_ms=None, rested_ms=now_ms, result=result, deferral=None)
    return replace(kept, reason=None if ack.degraded is None else DEGRADED)


def rested(message: Message, lane: Lane, reason: str, now_ms: int) -> Message:
    return replace(message, lane=lane, due_ms=None, reason=reason, rested_ms=now_ms, deferral=None)


def isolated(message: Message, verdict: Isolate, now_ms: int) -> Message:
    return rested(message, Lane.QUARANTINE, verdict.why, now_ms)


def cancelled(message: Message, now_ms: int) -> Message:
    return rested(message, Lane.DONE, "cancelled", now_ms)


def redriven(message: Message, verdict: Redrive, delay_ms: int, now_ms: int) -> Message:
    """The message in a fresh life, with its id, first enqueue, history and, unless it was done, checkpoint and
    batch."""
    if message.lane is Lane.DONE:
        message = replace(message, result=None, progress=None, batch=None)
    return replace(
        message,
        lane=Lane.READY,
        due_ms=later(now_ms, delay_ms),
        queue=verdict.to_queue or message.queue,
        redrives=message.redrives + 1,
        attempt=0,
        crashes=0,
        crashes_alone=0,
        suspect=False,
        cancel=False,
        life_ms=now_ms,
        held_ms=0,
        attempts_allowed=verdict.attempts,
        run=verdict.run,
        deadline_ms=message.deadline_ms if verdict.keep_deadline else None,
        reason=None,
        rested_ms=None,
    )


def may_edit(message: Message, verdict: Edit, to: WaitFields) -> bool:
    """Return whether an Edit is for the message, apart from its unique key."""
    if message.lane is not verdict.lane or (verdict.back and message.run_id != verdict.run):
        return False
    if verdict.lane is Lane.DONE:
        return message.reason == "cancelled" and message.group is None and message.batch is None
    return message.group is None or to.suits_groups


def edited(message: Message, verdict: Edit, to: WaitFields, now_ms: int) -> Message:
    """The waiting message with these fields, or cancelled; or, by the undo of a cancel, waiting again."""
    message = replace(message, run=None if verdict.back else moved_by(verdict.run, message.attempt))
    if verdict.cancel and not verdict.back:
        return cancelled(message, now_ms)
    return replace(
        message,
        lane=Lane.READY,
        reason=None,
        rested_ms=None,
        queue=message.queue if to.queue is None else to.queue,
        priority=message.priority if to.priority is None else to.priority,
        due_ms=message.due_ms if to.due_ms is None else to.due_ms,
        deadline_ms=message.deadline_ms if to.deadline_ms is None else to.deadline_ms or None,
    )


def as_seen(message: Message, handle: Handle) -> bool:
    """Return whether the message is still as its handle says."""
    if (message.redrives, message.lane) != (handle.redrives, handle.lane):
        return False
    if handle.fence not in (None, message.fence) or handle.due_ms not in (None, message.due_ms):
        return False
    if (wait := handle.wait) is None:
        return True
    known = (message.queue, message.priority, message.deadline_ms or 0)
    return all(seen in (None, now) for seen, now in zip(wait[:3], known, strict=True))


def moved_by(run: str, attempt: int) -> str:
    """Return the field `run` of a waiting message with these attempts that the run gave another due time."""
    return f"{run}{AFTER}{attempt}" if attempt else run


def before(message: Message, fault: Fault | None, blocked: bool, expires_ms: int | None) -> Before:
    """Return what `returned` and `readmitted` need of the message before a verdict; `fault`: its cause of death."""
    done = message.lane is Lane.DONE
    return Before(
        lane=message.lane,
        redrives=message.redrives,
        queue=message.queue,
        reason=message.reason,
        rested_ms=message.rested_ms,
        attempt=message.attempt,
        crashes=message.crashes,
        crashes_alone=message.crashes_alone,
        suspect=message.suspect,
        life_ms=message.life_ms,
        held_ms=message.held_ms,
        deadline_ms=message.deadline_ms,
        attempts_allowed=message.attempts_allowed,
        fingerprint=fault.fingerprint if fault else None,
        error=fault.error if fault else None,
        run=message.run,
        blocked=blocked,
        expires_ms=expires_ms,
        progress=message.progress if done else None,
        result=message.result,
    )


def returned(message: Message, before: Before) -> Message:
    """Return the message as it was before its redrive, except for its fence and history."""
    return replace(
        message,
        lane=before.lane,
        due_ms=None,
        redrives=before.redrives,
        queue=before.queue,
        reason=before.reason,
        rested_ms=before.rested_ms,
        attempt=before.attempt,
        crashes=before.crashes,
        crashes_alone=before.crashes_alone,
        suspect=before.suspect,
        life_ms=before.life_ms,
        held_ms=before.held_ms,
        deadline_ms=before.deadline_ms,
        attempts_allowed=before.attempts_allowed,
        run=before.run,
        progress=before.progress if before.lane is Lane.DONE else message.progress,
        result=before.result,
        deferral=None,
    )


def readmitted(message: Message, before: Before | None) -> Message:
    """A quarantined message in the dead lane. One that a verdict isolated gets its earlier reason back."""
    isolated = before is not None and before.redrives == message.redrives
    return replace(message, lane=Lane.DEAD, reason=before.reason if before is not None and isolated else message.reason)


def restored(message: Message, now_ms: int) -> Message:
    """Return the message as an import stores it: at rest, without the fields that an import drops."""
    return replace(
        message,
        due_ms=None,
        cancel=False,
        run=None,
        rested_ms=now_ms if message.rested_ms is None else message.rested_ms,
        result=None,
        deferral=None,
        parked=False,
        in_line=False,
    )


def died_of(faults: Sequence[Fault], fingerprint: str | None, error: str | None) -> Fault | None:
    """Return the fault in the history by which the message is indexed as dead; None if it did not die of a fault."""
    if fingerprint is None:
        return None
    names = fingerprint, error or ""
    unknown = Fault(Kind.DEFAULT, names[1], fingerprint=fingerprint)  # for a fault dropped from a long history
    return next((fault for fault in reversed(faults) if (fault.fingerprint, fault.error) == names), unknown)


def matches(message: Message, fault: Fault | None, where: Filter) -> bool:
    """True if a message with `fault` as its cause of death matches the filter."""
    at_ms = message.enqueued_ms if message.rested_ms is None else message.rested_ms
    return (
        fits(where.queue, message.queue)
        and fits(where.task, message.task)
        and fits(where.reason, message.reason)
        and fits(where.fingerprint, fault.fingerprint if fault else None)
        and fits(where.batch, message.batch)
        and fits(where.error, fault.error if fault else None)
        and where.redrives in (None, message.redrives)
        and where.run in (None, message.run)
        and (where.ids is None or message.id in where.ids)
        and (where.since_ms is None or at_ms >= where.since_ms)
        and (where.until_ms is None or at_ms < where.until_ms)
    )


def fits(wanted: str | tuple[str, ...] | None, value: str | None) -> bool:
    """True if the value is allowed by this field of a filter: None allows all, a text itself, a tuple its members."""
    return wanted is None or (value in wanted if isinstance(wanted, tuple) else wanted == value)


def _history(faults: tuple[Fault, ...], fault: Fault | None) -> tuple[Fault, ...]:
    """Return the history with the new fault: the first ten and the last ten are kept."""
    if fault is None:
        return faults
    kept = FAULTS_KEPT_EACH_END
    return (*faults[:kept], *faults[kept:][1 - kept :], fault)
