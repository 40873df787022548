"""Read a message of an SQS dead-letter queue as the dead letter to write to a triage store. Pure.

Dead letters of redrive carry their history. For one that the queue's redrive policy or another consumer moved there,
SQS only knows the number of receives, the time of the first, and the source queue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...codec import Routes
from ...fault import TEXT_MAX, Fault, Kind, fingerprint
from ...message import Lane, Message
from ...stores.sqs.wire import (
    ATTEMPT,
    FIRST_RECEIVED,
    MESSAGE_ID,
    RECEIVES,
    SOURCE,
    MessageState,
    as_it_came,
    read,
    revived,
    with_state,
)

TOO_OFTEN = "ReceivedTooOften"  # error of a message that a redrive policy moved
PUT_THERE = "DeadLettered"  # error of a message that a program put into the dead-letter queue without a reason
_SAID = (
    ("ErrorCode", "ErrorMessage"),
    ("error", "error_message"),
    ("exception", "message"),
)  # pairs of attributes that state a cause of death: Lambda's and other common ones

RawDeadLetter = Mapping[str, Any]


class Letter(NamedTuple):
    """A dead letter. `untold`: no run of its present life was settled, so its redrive run lacks the outcome."""

    message: Message
    untold: bool


def dead_letter(
    raw: RawDeadLetter, *, queue: str, lane: Lane, routes: Routes, now_ms: int, record: MessageState | None = None
) -> Letter:
    """Read one entry of ReceiveMessage's response, with all attributes, as a dead letter. `record`: the message's state
    in a cell, if the message had waited for a retry in its queue. Never raises."""
    message, state = read(raw, queue=queue, routes=routes)
    if record is not None:
        message, state = with_state(message, record), record
    if state.reason is not None and _source(raw):  # a move task had returned the message, and it died again
        state = revived(state, now_ms)
        message = with_state(message, state)
    message = replace(message, queue=queue, lane=lane, due_ms=None, redrives=max(state.redrives, _redrives(raw)))
    reason = state.reason or ("" if _source(raw) else _text(raw, "reason"))
    if message.headers.get(MESSAGE_ID) == raw.get("MessageId"):  # a foreign message
        message = as_it_came(message, raw)
        headers = {**message.headers, **_about(raw)}
        message = replace(message, headers=headers)
    if reason:
        return Letter(replace(message, reason=reason, rested_ms=message.rested_ms or now_ms), False)
    fault = _fault(raw, message, now_ms)
    since = max(1, receives(raw) - 1 - state.receives)  # runs that ended without a settlement
    message = replace(
        message,
        reason="exhausted" if lane is Lane.DEAD else "poison",
        rested_ms=now_ms,  # SQS does not record the time of death
        attempt=state.attempt + since,
        faults=(*message.faults, fault),
    )
    return Letter(message, state.attempt == 0)


def receives(raw: RawDeadLetter) -> int:
    """Return how often SQS delivered the message, including this time."""
    return _whole(_system(raw).get("ApproximateReceiveCount"))


def _fault(raw: RawDeadLetter, message: Message, now_ms: int) -> Fault:
    source, count = _source(raw), receives(raw) - 1
    first_ms = _whole(_system(raw).get("ApproximateFirstReceiveTimestamp"))
    names = next((pair for pair in _SAID if _text(raw, pair[1]) or _text(raw, pair[0])), None)
    if names is not None:
        error, text = _text(raw, names[0]) or PUT_THERE, _text(raw, names[1])
        return Fault(Kind.DEFAULT, error[:200], text[:TEXT_MAX], fingerprint(error, text), (error[:200],), at_ms=now_ms)
    if source:
        often = f"{count:,} times" if count > 0 else "too often"
        text = f"queue {source} delivered it {often}, and no consumer deleted it"
        if first_ms:
            text += f"; the first time at {_time(first_ms)}"
        kind = Kind.DEFAULT if MESSAGE_ID in message.headers else Kind.CRASHED  # redrive settles unless it crashes
        return Fault(kind, TOO_OFTEN, text, fingerprint(TOO_OFTEN, source), (TOO_OFTEN,), at_ms=now_ms, attempt=count)
    text = "a program put it into the dead-letter queue, and says not why"
    return Fault(Kind.DEFAULT, PUT_THERE, text, fingerprint(PUT_THERE, text), (PUT_THERE,), at_ms=now_ms)


def _about(raw: RawDeadLetter) -> dict[str, str]:
    about = {RECEIVES: str(receives(raw)), SOURCE: str(_system(raw).get("DeadLetterQueueSourceArn") or "")}
    first_ms = _whole(_system(raw).get("ApproximateFirstReceiveTimestamp"))
    if first_ms:
        about[FIRST_RECEIVED] = _time(first_ms)
    return {name: text for name, text in about.items() if text}


def _source(raw: RawDeadLetter) -> str:
    """Return the name of the queue in which the message died; empty if no redrive policy moved it."""
    return str(_system(raw).get("DeadLetterQueueSourceArn") or "").rpartition(":")[2]


def _redrives(raw: RawDeadLetter) -> int:
    text = _text(raw, ATTEMPT)
    return int(text) if re.fullmatch("[0-9]{1,9}", text, re.ASCII) else 0


def _system(raw: RawDeadLetter) -> Mapping[str, str]:
    return raw.get("Attributes") or {}


def _text(raw: RawDeadLetter, name: str) -> str:
    value = (raw.get("MessageAttributes") or {}).get(name) or {}
    return str(value.get("StringValue") or "").encode(errors="replace").decode().replace("\0", "?")


def _whole(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 16 else 0


def _time(ms: int) -> str:
    return datetime.fromtimestamp(min(ms, 2**47) / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
