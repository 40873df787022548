"""Convert messages and settlements to rows of the PostgreSQL store, and back.

Batches are sent as arrays, one per column, in the server's binary format, so nothing needs escaping or parsing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import psycopg
from msgspec.structs import replace
from psycopg.adapt import Dumper
from psycopg.pq import Format

from ...fault import Fault
from ...message import Draft, Lane, Message
from ..meta import NO_META, encode, meta_of, read_deferral, read_meta

TEXT, BYTES, UUID, INT, BIGINT = 25, 17, 2950, 23, 20  # numbers of types in the server
_head = struct.Struct(">iiIii").pack  # of an array: dimensions, nulls, element type, length, first index
_length = struct.Struct(">i").pack
_NULL = _length(-1)
_bigint = struct.Struct(">q").pack
_FORM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile("[0-9a-f]{16}")
_NOBODY = "00000000-0000-0000-0000-000000000000"

_HOT = """m.id::text, m.task, m.priority, m.fence, m.attempt, m.enqueued_ms, m.producer, m.grp, m.body"""
_RARE = """m.crashes, m.crashes_alone, m.redrives, m.suspect, m.cancel, m.held_ms, m.deadline_ms,
 m.attempts_allowed, m.version, m.key, m.run, m.reason, m.rested_ms, m.wake_ms, m.life_ms, m.meta, m.deferral"""
# Most messages have no rare column set: then the rare columns are neither written as JSON nor read. If the batch is the
# only one, it stands alone, after a mark.
_ALL = f"""{_HOT}, case when num_nonnulls({_RARE}, m.progress, m.result) > 0 then
 json_build_array({_RARE}, encode(m.progress, 'hex'), encode(m.result, 'hex'), m.batch,
 m.turn)::text else '+' || m.batch end,
 array_to_string(m.faults, ',')"""
# The subselect sees the row before the claim: when it was due, or the end of a lease that had run out.
CLAIMED = f"{_ALL}, m.seq, (select o.due_ms from {{s}}.message o where o.ctid = due.at)"
COLUMNS = f"{_ALL}, m.queue, m.lane, m.due_ms, m.worker"
# The fields that a redrive or an isolation overwrites, with the names in message.Before.
BEFORE = """jsonb_strip_nulls(jsonb_build_object('lane', m.lane, 'redrives', coalesce(m.redrives, 0), 'queue', m.queue,
 'reason', m.reason, 'rested_ms', m.rested_ms, 'attempt', m.attempt, 'crashes', m.crashes,
 'crashes_alone', m.crashes_alone, 'suspect', m.suspect, 'life_ms', m.life_ms, 'held_ms', m.held_ms,
 'deadline_ms', m.deadline_ms, 'attempts_allowed', m.attempts_allowed, 'fingerprint', m.fingerprint, 'error', m.error,
 'run', m.run, 'blocked', m.place is not null, 'expires_ms', m.expires_ms, 'result', encode(m.result, 'hex'),
 'progress', case when m.lane = 'done' then encode(m.progress, 'hex') end))"""


# True for a row with a number at the end of its range: the server rejects a statement that adds to the number.
BEYOND = """(greatest(fence, attempt, crashes, crashes_alone, redrives) >= 2147483647
 or greatest(enqueued_ms, life_ms, held_ms, deadline_ms, due_ms, wake_ms, parked_ms, rested_ms,
  expires_ms) >= 4611686018427387904
 or least(enqueued_ms, life_ms, held_ms, deadline_ms, due_ms, wake_ms, parked_ms, rested_ms,
  expires_ms) <= -4611686018427387904)"""


class Array(bytes):
    """An array in the server's binary format. Each element type has a subclass, as the driver selects by class."""


class Texts(Array): ...


class Byteas(Array):
    """An array of byte strings."""


class UuidArray(Array): ...


class Ints(Array):
    """An array of four-byte integers."""


class Bigints(Array):
    """An array of eight-byte integers."""


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj


def _dumper(of: int) -> type[Dumper]:
    return type("_Dumper", (_ArrayDumper,), {"oid": of})


_DUMPERS = {
    kind: _dumper(of) for kind, of in ((Texts, 1009), (Byteas, 1001), (UuidArray, 2951), (Ints, 1007), (Bigints, 1016))
}


def cursor(c: psycopg.Connection[Any]) -> psycopg.RawCursor[tuple[Any, ...]]:
    """Return a cursor for the statements of statements.sql, which take the arrays of this module."""
    made: psycopg.RawCursor[tuple[Any, ...]] = psycopg.RawCursor(c, row_factory=psycopg.rows.tuple_row)
    return made


def adapt(c: psycopg.Connection[Any]) -> None:
    """Register the arrays of this module on a connection."""
    for kind, dumper in _DUMPERS.items():
        c.adapters.register_dumper(kind, dumper)


for _kind, _made in _DUMPERS.items():
    psycopg.adapters.register_dumper(_kind, _made)


def texts(values: Sequence[str | None]) -> Texts:
    return Texts(_array(TEXT, [None if value is None else value.encode() for value in values]))


def jsons(values: Sequence[Any]) -> Texts:
    """Return an array of the values as JSON texts; a None becomes null."""
    return Texts(_array(TEXT, [None if value is None else encode(value) for value in values]))


def byteas(values: Sequence[bytes | None]) -> Byteas:
    return Byteas(_array(BYTES, values))


def _array(of: int, values: Sequence[bytes | None]) -> bytes:
    if values and values[0] is not None and values.count(values[0]) == len(values):  # usual: all values are the same
        first = values[0]
        return _start(of, len(values)) + (_length(len(first)) + first) * len(values)
    parts = [_start(of, len(values))]
    for value in values:
        parts += (_NULL,) if value is None else (_length(len(value)), value)
    return b"".join(parts)


def _start(of: int, count: int) -> bytes:
    return _head(1, 1, of, count, 1) if count else _head(0, 0, of, 0, 0)[:12]


def ids(values: Sequence[str]) -> UuidArray:
    """Return an array of UUIDs. A text that is not an id becomes an id that no message has."""
    if not values:
        return UuidArray(_start(UUID, 0))
    try:  # decode all at once: in hex, each id after its length
        raw = bytes.fromhex("00000010" + "00000010".join(values).replace("-", ""))
    except ValueError:
        raw = b""
    if len(raw) != 20 * len(values):
        return ids([value if _FORM.fullmatch(value) else _NOBODY for value in values])
    return UuidArray(_start(UUID, len(values)) + raw)


def seqs(values: Sequence[str]) -> Bigints:
    """Return an array of seqs, each given as 16 hex digits; any other text becomes a seq that no message has."""
    try:
        raw = bytes.fromhex("00000008" + "00000008".join(values)) if values else b""
    except ValueError:
        raw = b""
    if len(raw) != 12 * len(values):
        return seqs([value if _HEX.fullmatch(value) else "0" * 16 for value in values])
    return Bigints(_start(BIGINT, len(values)) + raw)


def ints(values: Sequence[int]) -> Ints:
    return Ints(_start(INT, len(values)) + struct.pack(f">{2 * len(values)}i", *[n for v in values for n in (4, v)]))


def numbers(values: Sequence[int | None]) -> Bigints:
    return Bigints(_array(BIGINT, [None if value is None else _bigint(value) for value in values]))


def flags(values: Iterable[bool]) -> str:
    return f"{{{','.join(['t' if value else 'f' for value in values])}}}"


# -- encode rows


def plain(words: str) -> str:
    """Return the text with a replacement for NUL, which the server does not accept."""
    return words.replace("\0", "\N{REPLACEMENT CHARACTER}")


def put_rows(drafts: Sequence[Draft], given: Sequence[str]) -> tuple[Any, ...]:
    """Return drafts and the ids they get as arguments of the statements `put` and `put_grouped`."""
    return (
        ids(given),
        texts([d.task for d in drafts]),
        texts([d.queue for d in drafts]),
        ints([d.priority for d in drafts]),
        numbers([d.due_ms for d in drafts]),
        numbers([wait_ms(d) for d in drafts]),
        numbers([d.deadline_ms for d in drafts]),
        numbers([None if d.version == 1 else d.version for d in drafts]),
        texts([d.key for d in drafts]),
        texts([d.group for d in drafts]),
        texts([d.producer for d in drafts]),
        texts([meta_of(d, id) for d, id in zip(drafts, given, strict=True)]),
        byteas([d.body for d in drafts]),
    )


def wait_ms(draft: Draft) -> int:
    """Return the draft's delay in ms. Adds 1 ms, as the transaction's start is cut to ms, so that none is early."""
    return draft.delay_ms + (draft.delay_ms > 0)


def restored_rows(messages: Sequence[Message], now: int | None) -> tuple[Any, ...]:
    """Return messages at rest and the time as arguments of the statement `restore`."""
    last = [m.faults[-1] if m.faults else None for m in messages]
    return (
        ids([m.id for m in messages]),
        texts([m.task for m in messages]),
        texts([m.queue for m in messages]),
        ints([m.priority for m in messages]),
        texts([m.lane for m in messages]),
        numbers([m.enqueued_ms for m in messages]),
        numbers([None if m.life_ms == m.enqueued_ms else m.life_ms for m in messages]),
        numbers([m.rested_ms for m in messages]),
        numbers([m.held_ms or None for m in messages]),
        numbers([m.deadline_ms for m in messages]),
        numbers([None if m.version == 1 else m.version for m in messages]),
        ints([m.fence for m in messages]),
        ints([m.attempt for m in messages]),
        ints([m.crashes for m in messages]),
        ints([m.crashes_alone for m in messages]),
        ints([m.redrives for m in messages]),
        texts([None if m.attempts_allowed is None else str(m.attempts_allowed) for m in messages]),
        flags([m.suspect for m in messages]),
        texts([m.key for m in messages]),
        texts([m.group for m in messages]),
        texts([m.producer for m in messages]),
        texts([m.worker for m in messages]),
        texts([None if m.reason is None else plain(m.reason) for m in messages]),
        texts([None if fault is None else plain(fault.fingerprint) for fault in last]),
        texts([None if fault is None else plain(fault.error) for fault in last]),
        jsons([m.faults or None for m in messages]),
        texts([meta_of(m, m.id) for m in messages]),
        byteas([m.progress for m in messages]),
        byteas([m.body for m in messages]),
        now,
        texts([m.batch for m in messages]),
    )


# -- decode rows


_BigCount = Annotated[int, msgspec.Meta(ge=0)]  # a negative number is damage


class RareColumns(msgspec.Struct, array_like=True, gc=False):
    """The rare columns of a message, in the order of _ALL."""

    crashes: _BigCount | None
    crashes_alone: _BigCount | None
    redrives: _BigCount | None
    suspect: int | None
    cancel: bool | None
    held_ms: _BigCount | None
    deadline_ms: int | None
    attempts_allowed: _BigCount | None
    version: int | None
    key: str | None
    run: str | None
    reason: str | None
    rested_ms: int | None
    wake_ms: int | None
    life_ms: int | None
    meta: str | None
    deferral: str | None
    progress: str | None
    result: str | None
    batch: str | None
    turn: int | None


NO_RARE = RareColumns(*[None] * 21)
_rare = msgspec.json.Decoder(RareColumns).decode
_faults = msgspec.json.Decoder(tuple[Fault, ...]).decode


def read_rare(text: str) -> RareColumns:
    return replace(NO_RARE, batch=text[1:]) if text[0] == MEMBER else _rare(text)


def read_faults(listed: str | None) -> tuple[Fault, ...]:
    return () if listed is None else _faults(f"[{listed}]")


def to_message(row: tuple[Any, ...]) -> Message:
    """Decode a row of COLUMNS. Raises one of UNREADABLE if the row is damaged."""
    lane = Lane(row[12])
    rare = None if row[9] is None else read_rare(row[9])
    return full_message(row, rare, row[11], lane, row[13], row[14])


def full_message(
    row: tuple[Any, ...], rare: RareColumns | None, queue: str, lane: Lane, due_ms: int | None, worker: str | None
) -> Message:
    id, task, priority, fence, attempt, enqueued, producer, group, body, _, faults = row[:11]
    parked = due_ms is None and lane is Lane.READY
    rare = rare or NO_RARE
    meta = NO_META if rare.meta is None else read_meta(rare.meta)
    return Message(
        id,
        task,
        queue,
        body,
        meta.correlation_id or id,
        lane,
        priority,
        due_ms if rare.wake_ms is None else rare.wake_ms,
        fence,
        attempt,
        enqueued,
        enqueued if rare.life_ms is None else rare.life_ms,
        worker,
        producer,
        crashes=rare.crashes or 0,
        crashes_alone=rare.crashes_alone or 0,
        redrives=rare.redrives or 0,
        suspect=rare.suspect is not None,
        cancel=rare.cancel is True,
        held_ms=rare.held_ms or 0,
        deadline_ms=rare.deadline_ms,
        attempts_allowed=rare.attempts_allowed,
        version=1 if rare.version is None else rare.version,
        key=rare.key,
        group=group,
        run=rare.run,
        reason=rare.reason,
        rested_ms=rare.rested_ms,
        result=None if rare.result is None else bytes.fromhex(rare.result),
        progress=None if rare.progress is None else bytes.fromhex(rare.progress),
        content=meta.content,
        headers=meta.headers,
        causation_id=meta.causation_id,
        traceparent=meta.traceparent,
        keep_ms=meta.keep_ms,
        batch=rare.batch,
        deferral=None if rare.deferral is None else read_deferral(rare.deferral),
        parked=parked,
        faults=read_faults(faults),
        in_line=parked and (rare.wake_ms is None or rare.turn is not None),
    )


# A handle: the id, a mark, the seq in hex, the queue, and of a grouped message "\0" and the group.
ID = 36  # length of a message's id, with which every handle begins
PLAIN, KEYED, GROUPED = ".", "=", "/"  # marks in a handle: message without key and group; with a key; in a group
MEMBER, GROUPED_MEMBER = "+", "*"  # and of a member of a batch, whether it has a key or not

SEQ = slice(ID + 1, ID + 17)


def hex_of(seq: int) -> str:
    """Return a message's seq as handles have it, in hex. A negative one, which redrive never writes, wraps around."""
    return f"{seq & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def seq_of(handle: int | str) -> str:
    """Return the seq in a handle, in hex. It tells a message from a later one with the same id."""
    return str(handle)[SEQ]


def queue_of(handle: int | str) -> str:
    """Return the queue in a handle: that of the message at its claim."""
    return str(handle)[SEQ.stop :].partition("\0")[0]


def group_of(handle: int | str) -> tuple[str, str] | None:
    """Return queue and group in a handle: those of the message at its claim; None without a group."""
    said = str(handle)
    if said[ID : ID + 1] not in (GROUPED, GROUPED_MEMBER):
        return None
    queue, _, group = said[SEQ.stop :].partition("\0")
    return queue, group
