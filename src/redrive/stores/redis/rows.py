"""The form in which the Redis store keeps messages: encode puts, and decode claims and reads.

The bytes are described in `redis/scripts/_states.lua`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ...fault import Fault
from ...message import DAMAGED, BatchCounts, Damage, Delivery, Draft, Lane, Message, Receipt
from ..batches import FIELDS
from ..lifecycle import died_of
from ..meta import read_deferral

KEY, GROUP, HAS_PROGRESS, CANCEL, SUSPECT, COLD = 1, 2, 8, 16, 32, 128  # bits of the flags in a message's state
PLACE = 0
NO_NAME = "\0"  # stands for the empty name of a worker, as an empty text means that there is no worker
LANES = {b"R": Lane.READY, b"L": Lane.LEASED, b"D": Lane.DEAD, b"Q": Lane.QUARANTINE, b"K": Lane.DONE}
_RESTING = (Lane.DEAD, Lane.QUARANTINE, Lane.DONE)
LETTERS = {lane: letter.decode() for letter, lane in LANES.items()}
_HEAD = struct.Struct(">cIBIIIIBQQQ")
_tuple = tuple.__new__


class RareFields(msgspec.Struct, omit_defaults=True, gc=False):
    """The rare fields of a draft. Scripts read them too, so no field holds bytes."""

    key: str | None = msgspec.field(default=None, name="k")
    group: str | None = msgspec.field(default=None, name="g")
    deadline_ms: int | None = msgspec.field(default=None, name="d")
    keep_ms: int = msgspec.field(default=0, name="e")
    version: int = msgspec.field(default=1, name="v")
    content: str = msgspec.field(default="json", name="t")
    headers: dict[str, str] = msgspec.field(default_factory=dict, name="h")
    correlation_id: str | None = msgspec.field(default=None, name="c")
    causation_id: str | None = msgspec.field(default=None, name="a")
    producer: str | None = msgspec.field(default=None, name="p")
    traceparent: str | None = msgspec.field(default=None, name="r")
    batch: str | None = msgspec.field(default=None, name="b")


RedisCount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # in the range that `_states.lua` checks


class Cold(msgspec.Struct, gc=False):
    """The rare fields of a message's state, with the names that `_states.lua` and `_groups.lua` use."""

    worker: str | None = msgspec.field(default=None, name="w")
    queue: str | None = msgspec.field(default=None, name="q")
    reason: str | None = msgspec.field(default=None, name="r")
    rested_ms: RedisCount | None = msgspec.field(default=None, name="rm")
    run: str | None = None
    attempts_allowed: int | None = msgspec.field(default=None, name="aa")
    deadline_dropped: int = msgspec.field(default=0, name="dl")
    turn: RedisCount | None = msgspec.field(default=None, name="t")
    wake_ms: RedisCount | None = msgspec.field(default=None, name="wk")
    fingerprint: str | None = msgspec.field(default=None, name="fp")
    error: str | None = msgspec.field(default=None, name="er")  # or fingerprint, "\0" and error
    deferral: str | None = msgspec.field(default=None, name="df")
    batch: str | None = msgspec.field(default=None, name="bt")  # while it rests
    batch_left: int = msgspec.field(default=0, name="lb")


_RareParts = RareFields | tuple[str] | None  # tuple: its batch is all that is rare, which takes less to decode
ClaimRow = tuple[int, int, int, int, str, str, _RareParts, bytes]
pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_row = msgspec.msgpack.Decoder(ClaimRow).decode
_rows = msgspec.msgpack.Decoder(list[ClaimRow]).decode
_cold = msgspec.msgpack.Decoder(Cold).decode
_numbers = msgspec.msgpack.Decoder(tuple[int, ...]).decode
_faults = msgspec.json.Decoder(tuple[Fault, ...]).decode
_NO_RARE, _NO_COLD = RareFields(), Cold()


def names_of(raw_names: Iterable[bytes]) -> list[str]:
    """Return the names of queues or groups in a set, without those that are not UTF-8, which redrive never writes."""
    names = []
    for raw in raw_names:
        with suppress(UnicodeDecodeError):
            names.append(raw.decode())
    return names


def read_counts(packed: bytes | None) -> BatchCounts:
    """Return the counts of a batch; zeros if they are missing or unreadable, as for scripts."""
    with suppress(msgspec.MsgspecError):
        return BatchCounts(*_numbers(packed or b"")[: len(FIELDS)])
    return BatchCounts()


def id_bytes(id: str) -> bytes:
    return bytes.fromhex(id.replace("-", ""))


def id_text(hexed: str) -> str:
    return f"{hexed[:8]}-{hexed[8:12]}-{hexed[12:16]}-{hexed[16:20]}-{hexed[20:]}"


def member_number(member: bytes) -> int:
    """Return the number in a member of a sorted set, by which messages are in the order of puts."""
    return int.from_bytes(member[:6], "big")


def tail(draft: Draft, id: str) -> bytes:
    """Return the end of an encoded message, from its task on."""
    if (
        draft.headers
        or draft.key is not None
        or draft.group is not None
        or draft.deadline_ms is not None
        or draft.producer is not None
        or draft.correlation_id is not None
        or draft.causation_id is not None
        or draft.traceparent is not None
        or draft.keep_ms
        or draft.version != 1
        or draft.content != "json"
    ):
        return pack((draft.task, draft.queue, _rare(draft, id), draft.body))[1:]
    return pack((draft.task, draft.queue, None if draft.batch is None else (draft.batch,), draft.body))[1:]


def _rare(draft: Draft, id: str) -> RareFields:
    return RareFields(
        draft.key,
        draft.group,
        draft.deadline_ms,
        draft.keep_ms,
        draft.version,
        draft.content,
        dict(draft.headers or {}),
        draft.correlation_id if draft.correlation_id != id else None,
        draft.causation_id,
        draft.producer,
        draft.traceparent,
        draft.batch,
    )


class RedisMessage(NamedTuple):
    """The values that Redis stores for one message."""

    message: bytes
    state: bytes | None
    faults: list[bytes] | None
    progress: bytes | None
    result: bytes | None = None


def to_message(id: str, stored: RedisMessage) -> Message:
    return _to_message(id, _row(stored.message), *stored[1:])


def _to_message(
    id: str,
    row: ClaimRow,
    state: bytes | None,
    faults: list[bytes] | None,
    progress: bytes | None,
    result: bytes | None,
) -> Message:
    _, enqueued, marks, delta, task, queue, rare, body = row
    rare = RareFields(batch=rare[0]) if isinstance(rare, tuple) else rare or _NO_RARE
    cold, due, worker, fence, flags = _NO_COLD, enqueued + delta, None, 0, 0
    lane, attempt, crashes, alone, redrives, life, held = Lane.READY, 0, 0, 0, 0, 0, 0
    if state is not None:
        letter, fence, flags, attempt, crashes, alone, redrives, _, due, life, held = _HEAD.unpack_from(state)
        lane = LANES.get(letter) or Lane(f"lane-{letter.decode().lower()}")  # a lane that a newer version writes
        if flags & COLD:
            cold = _cold(state[_HEAD.size :])
            worker = cold.worker
        else:
            worker = state[_HEAD.size :].decode()
        if lane in _RESTING and cold.rested_ms is None:
            raise ValueError("its state does not say since when it rests")
        worker = None if not worker else "" if worker == NO_NAME else worker
    parked = lane is Lane.READY and rare.group is not None and cold.turn != PLACE
    return Message(
        id=id,
        task=task,
        queue=cold.queue or queue,
        body=body,
        correlation_id=rare.correlation_id or id,
        lane=lane,
        priority=marks & 3,
        due_ms=cold.wake_ms if parked else due if lane in (Lane.READY, Lane.LEASED) else None,
        fence=fence,
        attempt=attempt,
        enqueued_ms=enqueued,
        life_ms=life or enqueued,
        worker=worker,
        producer=rare.producer,
        crashes=crashes,
        crashes_alone=alone,
        redrives=redrives,
        suspect=flags & SUSPECT != 0,
        cancel=flags & CANCEL != 0,
        held_ms=held,
        deadline_ms=None if cold.deadline_dropped else rare.deadline_ms,
        attempts_allowed=cold.attempts_allowed,
        version=rare.version,
        key=rare.key,
        group=rare.group,
        run=cold.run,
        reason=cold.reason,
        rested_ms=cold.rested_ms,
        result=result,
        progress=progress,
        content=rare.content,
        headers=rare.headers,
        causation_id=rare.causation_id,
        traceparent=rare.traceparent,
        keep_ms=rare.keep_ms,
        batch=None if cold.batch_left else rare.batch or cold.batch,
        deferral=None if cold.deferral is None else read_deferral(cold.deferral),
        parked=parked,
        in_line=parked and cold.turn is not None,
        faults=_faults(b"[%b]" % b",".join(faults)) if faults else (),
    )


UNREADABLE = (msgspec.MsgspecError, struct.error, ValueError, TypeError, KeyError, IndexError)


def readable(id: str, stored: RedisMessage) -> Message:
    """Like `to_message`, but of an unreadable message return the readable parts, with the damage."""
    try:
        return to_message(id, stored)
    except UNREADABLE as error:
        return _stand_in(id, stored, error)


def _stand_in(id: str, stored: RedisMessage, error: Exception) -> Message:
    """Return a message from those parts that are readable, each tried by itself, with the damage."""
    raw = {"message": stored.message.hex()} | ({} if stored.state is None else {"state": stored.state.hex()})
    raw |= {f"fault {n}": repr(fault) for n, fault in enumerate(stored.faults or ())}
    readable_part, sound = Message(id, "", "", b"", id), stored._replace(faults=None)
    for part in (sound, sound._replace(state=None), sound._replace(message=_NOTHING_PUT)):
        with suppress(*UNREADABLE):
            readable_part = to_message(id, part)
            break
    why = f"{type(error).__name__}: {error}"
    return replace(readable_part, reason=DAMAGED, damage=Damage(why, raw))


_NOTHING_PUT = msgspec.msgpack.encode((0, 0, 2, 0, "", "", None, b""))


def fatal_of(message: Message, state: bytes | None) -> Fault | None:
    """Return the fault that a message died of, by which it is queried and grouped; None if it did not die of one."""
    if message.damage is not None or state is None or not state[5] & COLD or not message.faults:
        return None
    cold = _cold(state[_HEAD.size :])
    fingerprint, of_error, error = (cold.error or "").partition("\0")
    if not of_error:
        return message.faults[-1] if cold.fingerprint is not None else None
    return died_of(message.faults, fingerprint, error)


def claimed_of(
    part: Sequence[Any], queue: str, worker: str, until: int
) -> tuple[list[Delivery], list[tuple[bytes, str]]]:
    """Decode the claims of one request and priority: {request, priority, members, messages, rare, faults}; returns the
    deliveries, and the members of unreadable messages with the reasons."""
    try:
        return deliveries_of(part, queue, worker, until), []
    except UNREADABLE:
        pass
    ask, priority, members, messages, rare, faults = part
    known, deliveries, bad = _known(rare, faults), list[Delivery](), list[tuple[bytes, str]]()
    for n, message in enumerate(messages):
        member = members[22 * n : 22 * n + 22]
        mine = ([], []) if n not in known else ([0, *known[n][:1], len(known[n][1]), *known[n][2:]], known[n][1])
        try:
            deliveries += deliveries_of((ask, priority, member, [message], *mine), queue, worker, until)
        except UNREADABLE as error:
            bad.append((member, f"{type(error).__name__}: {error}"))
    return deliveries, bad


def deliveries_of(part: Sequence[Any], queue: str, worker: str, until: int) -> list[Delivery]:
    """Return the deliveries of one request and priority. Raises one of UNREADABLE if any message is unreadable."""
    _, priority, members, messages, rare, faults = part
    hexed, where = members.hex(), f"{priority}{queue}"
    rows = _rows(b"\xdd" + (len(members) // 22).to_bytes(4, "big") + b"".join(messages))
    known = _known(rare, faults) if rare else {}
    deliveries: list[Delivery] = []
    at = 0
    for number, row in enumerate(rows):
        handle = hexed[at : at + 44]
        at += 44
        id = f"{handle[12:20]}-{handle[20:24]}-{handle[24:28]}-{handle[28:32]}-{handle[32:]}"
        if number in known:
            state, failed, progress, due = known[number]
            message = _to_message(id, row, state, failed, progress, None)
        else:
            message, due = _first_claim(id, row, worker, until), row[1] + row[3]
        handle += where if row[6] is None or message.batch is None else f"{where}\0{message.batch}"
        receipt = _tuple(Receipt, (handle, message.fence))  # in half the time of Receipt(…)
        if message.queue != queue:
            raise ValueError(f"it stands in queue {queue!r} and names {message.queue!r}")
        deliveries.append(Delivery(message, receipt, until, due))
    return deliveries


def _known(rare: list[Any], faults: list[bytes]) -> dict[int, tuple[bytes, list[bytes], bytes | None, int]]:
    """Return by index what is stored of the messages that were claimed before: state, faults, progress and due time."""
    known, first = {}, 0
    for n in range(0, len(rare), 5):
        last = first + rare[n + 2]
        known[rare[n]] = (rare[n + 1], faults[first:last], rare[n + 3], rare[n + 4])
        first = last
    return known


def _first_claim(id: str, row: ClaimRow, worker: str, until: int) -> Message:
    """Return a message that is claimed for the first time, the common case, in as few steps as possible."""
    _, enqueued, marks, _, task, queue, rare, body = row
    if rare is None:
        return Message(id, task, queue, body, id, Lane.LEASED, marks & 3, until, 1, 1, enqueued, enqueued, worker, None)
    if isinstance(rare, tuple):
        lane, priority = Lane.LEASED, marks & 3
        return Message(
            id, task, queue, body, id, lane, priority, until, 1, 1, enqueued, enqueued, worker, None, batch=rare[0]
        )
    return Message(
        id,
        task,
        queue,
        body,
        rare.correlation_id or id,
        Lane.LEASED,
        marks & 3,
        until,
        1,
        1,
        enqueued,
        enqueued,
        worker,
        rare.producer,
        deadline_ms=rare.deadline_ms,
        version=rare.version,
        key=rare.key,
        group=rare.group,
        content=rare.content,
        headers=rare.headers,
        causation_id=rare.causation_id,
        traceparent=rare.traceparent,
        keep_ms=rare.keep_ms,
        batch=rare.batch,
    )
