"""Messages and settlements as rows: what the SQLite store writes, and what it reads back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from ...fault import Fault
from ...message import (
    DEGRADED,
    Ack,
    DeadLetter,
    Draft,
    Lane,
    Message,
    Quarantine,
    Receipt,
    RetryAt,
    Settlement,
)
from ..meta import NO_META, meta_of, read_deferral, read_meta, text

HOT = """seq id task queue lane priority due_ms fence attempt enqueued_ms life_ms worker producer
 grp held_ms hex(body)""".split()  # noqa: SIM905 - a list of names reads best as text
# An empty blob is not none, but hex() of both is the empty text.
COLD = [
    *"""crashes crashes_alone redrives suspect cancel deadline_ms attempts_allowed version key run reason
     rested_ms wake_ms meta faults deferral""".split(),  # noqa: SIM905
    "iif(progress is null, null, hex(progress))",
    "iif(result is null, null, hex(result))",
]
# Most messages of a healthy queue are at the default in every cold column: then those are neither written to JSON nor
# read from it.
COLUMNS = f"""{", ".join(HOT)}, case when crashes + crashes_alone + redrives + suspect + cancel
 + (version <> 1) or coalesce(deadline_ms, attempts_allowed, key, run, reason, rested_ms, wake_ms, meta, faults,
 deferral, progress, result) is not null then json_array({", ".join(COLD)}) end"""


# What a version of ours writes; anything else is damage, and is found while a row is read.
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Fence = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Priority = Annotated[int, msgspec.Meta(ge=0, le=3)]


class _Cold(msgspec.Struct, array_like=True, gc=False):
    """The cold columns, in that order."""

    crashes: _Count
    crashes_alone: _Count
    redrives: _Count
    suspect: _Count
    cancel: _Count
    deadline_ms: int | None
    attempts_allowed: _Count | None
    version: int
    key: str | None
    run: str | None
    reason: str | None
    rested_ms: int | None
    wake_ms: int | None
    meta: str | None
    faults: str | None
    deferral: str | None
    progress: str | None
    result: str | None


_Text = str | None
Row = tuple[
    int,
    str,
    str,
    str,
    Lane,
    _Priority,
    int | None,
    _Fence,
    _Count,
    int,
    int,
    _Text,
    _Text,
    _Text,
    int,
    str,
    _Cold | None,
]


read_rows = msgspec.json.Decoder(list[Row]).decode
read_places = msgspec.json.Decoder(list[tuple[int, int]]).decode
read_faults = msgspec.json.Decoder(tuple[Fault, ...]).decode


def fences_of(receipts: Sequence[Receipt]) -> dict[int | str, int]:
    """The newest fence of each handle: an older one in the same batch is stale and must not hide it."""
    return {r.handle: r.fence for r in sorted(receipts, key=lambda receipt: receipt.fence)}


def insert_row(draft: Draft, id: str, due: int, now: int) -> tuple[Any, ...]:
    head = (id, draft.task, draft.queue, draft.priority, due, now, now, draft.deadline_ms)
    return (*head, draft.version, draft.key, draft.group, draft.producer, meta_of(draft, id), draft.body)


def restored_row(message: Message) -> tuple[Any, ...]:
    """A message of an import, as the statement `restore` takes it."""
    last = message.faults[-1] if message.faults else None
    return (
        *(message.id, message.task, message.queue, message.lane, message.priority, message.fence, message.attempt),
        *(message.crashes, message.crashes_alone, message.redrives, message.suspect, message.enqueued_ms),
        *(message.life_ms, message.held_ms, message.deadline_ms, message.attempts_allowed, message.version),
        *(message.key, message.group, message.worker, message.producer, message.reason, message.rested_ms),
        *((last.fingerprint, last.error) if last else (None, None)),
        *(meta_of(message, message.id), text(message.faults) if message.faults else None),
        *(message.body, message.progress),
    )


class Strange(ValueError):
    """It is due, in a lane from which nothing is claimed."""


def claimed_message(row: Row, fence: int, until: int, worker: str) -> Message:
    """The message as the claim leaves it. Raises Strange."""
    _, id, task, queue, lane, priority, _, _, attempt, enqueued, life, _, producer, group, held, body, cold = row
    if lane is not Lane.LEASED:
        if lane is not Lane.READY:
            raise Strange(lane)
        attempt += 1
    elif cold is not None:
        cold.crashes += 1
        cold.crashes_alone += cold.suspect == 2
        cold.suspect = 1
    if cold is None:  # the way of most messages: as few steps as there can be
        crashes = 1 if lane is Lane.LEASED else 0
        return Message(
            id,
            task,
            queue,
            bytes.fromhex(body),
            id,
            Lane.LEASED,
            priority,
            until,
            fence,
            attempt,
            enqueued,
            life,
            worker,
            producer,
            crashes,
            suspect=lane is Lane.LEASED,
            held_ms=held,
            group=group,
        )
    return to_message(
        (
            row[0],
            id,
            task,
            queue,
            Lane.LEASED,
            priority,
            until,
            fence,
            attempt,
            enqueued,
            life,
            worker,
            producer,
            group,
            held,
            body,
            cold,
        )
    )


def to_message(row: Row) -> Message:
    id, task, queue, lane, priority, due = row[1:7]
    group, held, body, cold = row[13:]
    head = (lane, priority, due, *row[7:13])
    if cold is None:
        parked = due is None and lane is Lane.READY
        return Message(id, task, queue, bytes.fromhex(body), id, *head, held_ms=held, group=group, parked=parked)
    if cold.wake_ms is not None:  # it has no place in its group
        head = (lane, priority, cold.wake_ms, *row[7:13])
    meta = NO_META if cold.meta is None else read_meta(cold.meta)
    return Message(
        id,
        task,
        queue,
        bytes.fromhex(body),
        meta.correlation_id or id,
        *head,
        crashes=cold.crashes,
        crashes_alone=cold.crashes_alone,
        redrives=cold.redrives,
        suspect=cold.suspect != 0,
        cancel=cold.cancel != 0,
        held_ms=held,
        deadline_ms=cold.deadline_ms,
        attempts_allowed=cold.attempts_allowed,
        version=cold.version,
        key=cold.key,
        group=group,
        run=cold.run,
        reason=cold.reason,
        rested_ms=cold.rested_ms,
        result=bytes.fromhex(cold.result) if cold.result is not None else None,
        progress=bytes.fromhex(cold.progress) if cold.progress is not None else None,
        content=meta.content,
        headers=meta.headers,
        causation_id=meta.causation_id,
        traceparent=meta.traceparent,
        keep_ms=meta.keep_ms,
        deferral=read_deferral(cold.deferral) if cold.deferral is not None else None,
        parked=lane is Lane.READY and due is None,
        faults=read_faults(cold.faults) if cold.faults is not None else (),
    )


def retry_row(s: Settlement) -> list[Any] | None:
    """A counted retry with its fault, as the statement `retry` takes it; None for every other settlement."""
    decision = s.decision
    if type(decision) is not RetryAt or not decision.counts or decision.held or s.fault is None:
        return None
    if decision.deferral is not None or decision.crashed:
        return None
    return [*s.receipt, decision.at_ms, text(s.fault)]


def defer_row(s: Settlement, now: int) -> list[Any] | None:
    """A wait that flow control asked for, as the statement `defer` takes it; None for every other settlement."""
    decision = s.decision
    if type(decision) is not RetryAt or decision.counts or decision.crashed or s.fault is not None:
        return None
    why = None if decision.deferral is None else text(decision.deferral)
    return [s.receipt.handle, decision.at_ms, max(0, decision.at_ms - now) if decision.held else 0, why]


def kept_row(s: Settlement, ack: Ack, now: int) -> tuple[Any, ...]:
    """An ack of what is kept, as the statement `keep` takes it."""
    expires = None if ack.keep_ms is None else now + ack.keep_ms
    reason = None if ack.degraded is None else DEGRADED
    return (now, expires, reason, s.result, *s.receipt)


def move_row(s: Settlement, now: int) -> list[Any]:
    """One settlement that is not an ack, as the statement `settle` takes it."""
    fault = text(s.fault) if s.fault is not None else None
    fingerprint, error = (s.fault.fingerprint, s.fault.error) if s.fault is not None else (None, None)
    match s.decision:
        case RetryAt(at_ms, _, counts, held, deferral, crashed, in_company):
            held_ms = max(0, at_ms - now) if held else 0
            why = None if deferral is None else text(deferral)
            counts, alone = counts and not crashed, crashed and not in_company
            return [*s.receipt, Lane.READY, at_ms, counts, held_ms, None, None, None, fault, why, crashed, alone]
        case DeadLetter(reason, _, counts):
            return [*s.receipt, Lane.DEAD, None, counts, 0, reason, fingerprint, error, fault, None, 0, 0]
        case Quarantine(_, reason, counts, crashed, in_company):
            counts, alone = counts and not crashed, crashed and not in_company
            told = (reason, fingerprint, error, fault, None, crashed, alone)
            return [*s.receipt, Lane.QUARANTINE, None, counts, 0, *told]
        case _:
            raise TypeError(f"{s.decision!r} moves no message: expected RetryAt, DeadLetter or Quarantine")
