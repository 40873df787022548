"""Convert messages and settlements to rows of the SQLite store, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from ...fault import Fault
from ...message import Lane, Message
from ..meta import NO_META, meta_of, read_deferral, read_meta, text

HOT = """seq id task queue lane priority due_ms fence attempt enqueued_ms life_ms worker producer
 grp held_ms hex(body)""".split()  # noqa: SIM905 - a list of names reads best as text
# An empty blob is not NULL, but hex() of either is the empty text.
COLD = [
    *"""crashes crashes_alone redrives suspect cancel deadline_ms attempts_allowed version key run reason
     rested_ms wake_ms meta faults deferral batch""".split(),  # noqa: SIM905
    "iif(progress is null, null, hex(progress))",
    "iif(result is null, null, hex(result))",
    "turn",
]
# Most messages have defaults in all cold columns: then the cold columns are neither written as JSON nor read. In their
# place stands the batch, as members too have defaults in the others.
COLUMNS = f"""{", ".join(HOT)}, case when crashes + crashes_alone + redrives + suspect + cancel
 + (version <> 1) or coalesce(deadline_ms, attempts_allowed, key, run, reason, rested_ms, wake_ms, meta, faults,
 deferral, progress, result) is not null then json_array({", ".join(COLD)}) else batch end"""


Read = Callable[..., list[tuple[Any, ...]]]  # takes a statement and its parameters, returns rows
# The ranges of the values that redrive writes; any other value is damage, and decoding the row raises.
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Fence = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Priority = Annotated[int, msgspec.Meta(ge=0, le=3)]


class _Cold(msgspec.Struct, array_like=True, gc=False):
    """The cold columns of a message, in the order of COLD."""

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
    batch: str | None
    progress: str | None
    result: str | None
    turn: int | None


_Text = str | None
CompactRow = tuple[
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
    _Cold | str | None,
]


read_rows: Callable[[bytes | str], list[CompactRow]] = msgspec.json.Decoder(list[CompactRow]).decode
read_places: Callable[[bytes | str], list[tuple[int, int]]] = msgspec.json.Decoder(list[tuple[int, int]]).decode
read_faults: Callable[[bytes | str], tuple[Fault, ...]] = msgspec.json.Decoder(tuple[Fault, ...]).decode


def restored_row(message: Message) -> tuple[Any, ...]:
    """Return a message to import as arguments of the statement `restore`."""
    last = message.faults[-1] if message.faults else None
    return (
        *(message.id, message.task, message.queue, message.lane, message.priority, message.fence, message.attempt),
        *(message.crashes, message.crashes_alone, message.redrives, message.suspect, message.enqueued_ms),
        *(message.life_ms, message.held_ms, message.deadline_ms, message.attempts_allowed, message.version),
        *(message.key, message.group, message.worker, message.producer, message.reason, message.rested_ms),
        *((last.fingerprint, last.error) if last else (None, None)),
        *(meta_of(message, message.id), text(message.faults) if message.faults else None),
        *(message.batch, message.body, message.progress),
    )


class Strange(ValueError):
    """A message has a due time in a lane from which no message is claimed."""


def to_message(row: CompactRow) -> Message:
    id, task, queue, lane, priority, due = row[1:7]
    group, held, body, cold = row[13:]
    head = (lane, priority, due, *row[7:13])
    if cold is None or isinstance(cold, str):
        parked = due is None and lane is Lane.READY
        content = bytes.fromhex(body)
        return Message(
            id, task, queue, content, id, *head, held_ms=held, group=group, batch=cold, parked=parked, in_line=parked
        )
    if cold.wake_ms is not None:  # the message has no place in its group
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
        batch=cold.batch,
        deferral=read_deferral(cold.deferral) if cold.deferral is not None else None,
        parked=lane is Lane.READY and due is None,
        in_line=lane is Lane.READY and due is None and (cold.wake_ms is None or cold.turn is not None),
        faults=read_faults(cold.faults) if cold.faults is not None else (),
    )
