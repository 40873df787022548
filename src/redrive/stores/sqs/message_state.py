"""What changes of a message that lies in SQS, where nothing of a stored message can be changed.

It travels in one of two ways: in an attribute of a *copy*, which is sent before the message is deleted; or in a
*record*, a cell beside the message, which is written before its visibility is changed. A record is read only for what
was received before, so that a first run costs nothing.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ...fault import Fault
from ...message import Ask, Deferral, Lane, Message

FAULTS_BYTES_MAX = 64 * 1024  # of a message's history; beyond it tracebacks go first, then the middle
PROGRESS_BYTES_MAX = 240 * 1024  # of a checkpoint: a record with it and a history fits an item of DynamoDB, in base64
RECORD_BYTES_MAX = 396 * 1024
RECORD_TTL_MS = 15 * 24 * 3600 * 1000  # SQS keeps a message 14 days at most


class Kept(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The mutable part of a message, as JSON; fields are added and never renamed.

    `receives` is how often SQS had delivered the message when a record was written; 0 in a copy, whose receives begin
    anew. `alone` is the receive that it was marked to run alone in.
    """

    attempt: int = 0
    crashes: int = 0
    crashes_alone: int = 0
    redrives: int = 0
    fence: int = 0
    suspect: bool = False
    enqueued_ms: int = 0
    life_ms: int = 0
    held_ms: int = 0
    due_ms: int | None = None  # it is not to run before
    deadline_ms: int | None = None
    attempts_allowed: int | None = None
    run: str | None = None
    reason: str | None = None
    rested_ms: int | None = None
    progress: bytes | None = None
    deferral: Deferral | None = None
    faults: tuple[Fault, ...] = ()
    receives: int = 0
    alone: int = 0
    id: str | None = None  # of a message whose body cannot say it, as somebody else wrote it


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Kept).decode


def kept_of(message: Message, *, receives: int = 0, alone: int = 0) -> Kept:
    """What is to be kept of a message as it is now."""
    return Kept(
        attempt=message.attempt,
        crashes=message.crashes,
        crashes_alone=message.crashes_alone,
        redrives=message.redrives,
        fence=message.fence,
        suspect=message.suspect,
        enqueued_ms=message.enqueued_ms,
        life_ms=message.life_ms,
        held_ms=message.held_ms,
        due_ms=message.due_ms,
        deadline_ms=message.deadline_ms,
        attempts_allowed=message.attempts_allowed,
        run=message.run,
        reason=message.reason,
        rested_ms=message.rested_ms,
        progress=message.progress,
        deferral=message.deferral,
        faults=trimmed(message.faults),
        receives=receives,
        alone=alone,
    )


def record_of(kept: Kept) -> bytes:
    """What is written of it in a cell; without what would make it too large for any."""
    written = encode(kept)
    for less in ({"faults": kept.faults[-1:]}, {"faults": kept.faults[-1:], "progress": None}):
        if len(written) > RECORD_BYTES_MAX:
            written = encode(replace(kept, **less))
    return written


def with_kept(message: Message, kept: Kept) -> Message:
    """The message with this state."""
    if kept.id is not None:
        own = message.correlation_id == message.id
        message = replace(message, id=kept.id, correlation_id=kept.id if own else message.correlation_id)
    return replace(
        message,
        attempt=kept.attempt,
        crashes=kept.crashes,
        crashes_alone=kept.crashes_alone,
        redrives=kept.redrives,
        fence=kept.fence,
        suspect=kept.suspect,
        enqueued_ms=kept.enqueued_ms or message.enqueued_ms,
        life_ms=kept.life_ms or message.life_ms,
        held_ms=kept.held_ms,
        due_ms=kept.due_ms,
        deadline_ms=kept.deadline_ms,
        attempts_allowed=kept.attempts_allowed,
        run=kept.run,
        reason=kept.reason,
        rested_ms=kept.rested_ms,
        progress=kept.progress,
        deferral=kept.deferral,
        faults=kept.faults,
    )


def claimed(message: Message, kept: Kept, ask: Ask, *, receives: int, counts_all: bool, until_ms: int) -> Message:
    """The message as a claim leaves it, which is its delivery number `receives`.

    The first delivery since its state was written is the attempt; each more is a run that ended without a settlement, a
    crash. `counts_all`: nothing tells the two apart, as a retry wrote no state: then each is an attempt.
    """
    since = max(1, receives - kept.receives)
    attempts, crashes = (since, 0) if counts_all else (1, since - 1)
    alone = crashes > 0 and kept.alone > kept.receives
    return replace(
        message,
        lane=Lane.LEASED,
        due_ms=until_ms,
        fence=kept.fence + since,
        attempt=kept.attempt + attempts,
        crashes=kept.crashes + crashes,
        crashes_alone=kept.crashes_alone + alone,
        suspect=kept.suspect or crashes > 0,
        worker=ask.worker,
    )


def revived(kept: Kept, now_ms: int) -> Kept:
    """The state of a dead letter that somebody moved back to its queue, as by a move task: a fresh life, as after a
    redrive."""
    return replace(
        kept,
        attempt=0,
        crashes=0,
        crashes_alone=0,
        suspect=False,
        redrives=kept.redrives + 1,
        life_ms=now_ms,
        held_ms=0,
        due_ms=None,
        deadline_ms=None,
        attempts_allowed=None,
        run=None,
        reason=None,
        rested_ms=None,
        deferral=None,
        receives=0,
        alone=0,
    )


def trimmed(faults: tuple[Fault, ...], bytes_max: int = FAULTS_BYTES_MAX) -> tuple[Fault, ...]:
    """A history of at most so many bytes: without tracebacks but the last, then without the middle, where it is
    longer."""
    if not faults or len(encode(faults)) <= bytes_max:
        return faults
    faults = (*(replace(fault, traceback="") for fault in faults[:-1]), faults[-1])
    while len(faults) > 1 and len(encode(faults)) > bytes_max:
        faults = (*faults[: (len(faults) - 1) // 2], *faults[(len(faults) + 1) // 2 :])
    return faults if len(encode(faults)) <= bytes_max else (replace(faults[-1], traceback=""),)
