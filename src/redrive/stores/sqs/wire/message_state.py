"""The mutable state of a message in SQS, where a sent message cannot change.

The state is kept in one of two ways. A *copy* of the message has the state in an attribute; the copy is sent before the
message is deleted. Or a *record*, a cell beside SQS, holds the state; the record is written before the message's
visibility changes. Records are read only for messages received before, so a first run costs no read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from ....fault import Fault
from ....message import ClaimRequest, Deferral, Lane, Message

FAULTS_BYTES_MAX = 64 * 1024  # limit of a message's history in bytes; see `trimmed`
PROGRESS_BYTES_MAX = 240 * 1024  # limit of a checkpoint: with a history, in base64, it fits a DynamoDB item
RECORD_BYTES_MAX = 396 * 1024
RECORD_TTL_MS = 15 * 24 * 3600 * 1000  # how long a record lives: SQS keeps a message for at most 14 days


class MessageState(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The mutable part of a message, stored as JSON: fields may be added but not renamed.

    `receives`: how often SQS had delivered the message when its record was written; 0 in a copy, for which SQS starts
    to count again. `alone`: the number of the receive in which the message was marked to run alone.
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
    due_ms: int | None = None  # the message must not run before this time
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
    id: str | None = None  # id of a foreign message, whose body has none of redrive's


encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
decode: Callable[[bytes | str], MessageState] = msgspec.json.Decoder(MessageState).decode


def state_of(message: Message, *, receives: int = 0, alone: int = 0) -> MessageState:
    return MessageState(
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


def record_of(state: MessageState) -> bytes:
    """Encode the state for a cell. If it is too large, faults are left out, and then the checkpoint (`progress`)."""
    written = encode(state)
    for less in ({"faults": state.faults[-1:]}, {"faults": state.faults[-1:], "progress": None}):
        if len(written) > RECORD_BYTES_MAX:
            written = encode(replace(state, **less))
    return written


def with_state(message: Message, state: MessageState) -> Message:
    if state.id is not None:
        own = message.correlation_id == message.id
        message = replace(message, id=state.id, correlation_id=state.id if own else message.correlation_id)
    return replace(
        message,
        attempt=state.attempt,
        crashes=state.crashes,
        crashes_alone=state.crashes_alone,
        redrives=state.redrives,
        fence=state.fence,
        suspect=state.suspect,
        enqueued_ms=state.enqueued_ms or message.enqueued_ms,
        life_ms=state.life_ms or message.life_ms,
        held_ms=state.held_ms,
        due_ms=state.due_ms,
        deadline_ms=state.deadline_ms,
        attempts_allowed=state.attempts_allowed,
        run=state.run,
        reason=state.reason,
        rested_ms=state.rested_ms,
        progress=state.progress,
        deferral=state.deferral,
        faults=state.faults,
    )


def claimed(
    message: Message, state: MessageState, ask: ClaimRequest, *, receives: int, counts_all: bool, until_ms: int
) -> Message:
    """Return the message as its delivery number `receives` claims it.

    The first delivery since the state was written counts as the attempt. Each further one follows a run that ended
    without a settlement, so it counts as a crash. `counts_all`: retries write no state here, so retries look like
    crashes and every delivery counts as an attempt.
    """
    since = max(1, receives - state.receives)
    attempts, crashes = (since, 0) if counts_all else (1, since - 1)
    alone = crashes > 0 and state.alone > state.receives
    return replace(
        message,
        lane=Lane.LEASED,
        due_ms=until_ms,
        fence=state.fence + since,
        attempt=state.attempt + attempts,
        crashes=state.crashes + crashes,
        crashes_alone=state.crashes_alone + alone,
        suspect=state.suspect or crashes > 0,
        worker=ask.worker,
    )


def unclaimed(state: MessageState, receives: int) -> MessageState:
    """Return the state after receive number `receives` was given back: the next one claims the message as this one
    would have. So earlier receives that the state does not explain count as crashes, as in `claimed`."""
    crashes = max(0, receives - 1 - state.receives)
    return replace(
        state,
        receives=receives,
        fence=state.fence + crashes,
        crashes=state.crashes + crashes,
        crashes_alone=state.crashes_alone + (crashes > 0 and state.alone > state.receives),
        suspect=state.suspect or crashes > 0,
    )


def revived(state: MessageState, now_ms: int) -> MessageState:
    """Return the state of a dead letter that a move task or a person moved back: a fresh life, as after a redrive."""
    return replace(
        state,
        attempt=0,
        crashes=0,
        crashes_alone=0,
        suspect=False,
        redrives=state.redrives + 1,
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
    """Cut the history to `bytes_max`: drop all tracebacks but the last, then faults from the middle."""
    if not faults or len(encode(faults)) <= bytes_max:
        return faults
    faults = (*(replace(fault, traceback="") for fault in faults[:-1]), faults[-1])
    while len(faults) > 1 and len(encode(faults)) > bytes_max:
        faults = (*faults[: (len(faults) - 1) // 2], *faults[(len(faults) + 1) // 2 :])
    return faults if len(encode(faults)) <= bytes_max else (replace(faults[-1], traceback=""),)
