"""Decide the step of a message of a dead-letter queue: back to its own queue, or to the poison queue. Pure.

The Lambda function and the Step Functions machine use it; `transfer.py` executes the steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ...flow.auto_redrive import AutoRedrive
from ...message import Isolate
from ...stores.sqs.wire import ATTEMPT, BYTES_MAX, STATE, MessageState, decode, encode, revived, size_of

FIRST: Final = "x-original-first-receive-timestamp"
WHY: Final = "x-redrive-why"  # attribute with the reason why a message was isolated, if there is room
DELAY_MAX_S = 900  # SQS's longest delay, in seconds
ATTRIBUTES_MAX = 10
_OF_DEATH = ("reason", "error", "fingerprint")  # attributes that redrive adds to its dead letters
_OWN = re.compile(r'"rdversion"\s*:')  # matches redrive's envelope

Raw = Mapping[str, Any]  # an entry of ReceiveMessage's response, with all attributes


class MoveStep(Struct, frozen=True):
    """Move the message back to its queue, to run in `delay_s` seconds, as its redrive number `attempt`. It becomes
    visible in `comes_s` seconds; None: in `delay_s`, as far as SQS can delay a message."""

    delay_s: int
    attempt: int
    comes_s: int | None = None


RedriveStep = MoveStep | Isolate


def next_step(raw: Raw, now_ms: int, auto: AutoRedrive) -> RedriveStep:
    """Return the step of a dead message: for the n-th redrive back after `auto.delay_s(n)`, after the last to poison.

    A message without room for its count (10 attributes of its own, or 1 MiB) could be redriven for ever, so it is
    isolated. The wait counts from now, as SQS does not record the time of death.
    """
    past = redrives(raw)
    if past >= auto.max_redrives:
        return Isolate(f"poison: dead again after {past:,} redrive{'' if past == 1 else 's'}")
    attributes = _back(raw, past + 1, now_ms, auto, due_ms=now_ms)
    if len(attributes) > ATTRIBUTES_MAX:
        return Isolate(f"it has {len(_attributes(raw))} attributes: no room to count its redrives")
    if size_of(raw["Body"], attributes) > BYTES_MAX:
        return Isolate(f"it has {size_of(raw['Body'], _attributes(raw)):,} bytes: no room to count its redrives")
    return MoveStep(math.ceil(auto.delay_s(past + 1)), past + 1)


def redrives(raw: Raw) -> int:
    """Return how often a message was redriven, by its attribute `x-redrive-attempt` or its redrive state: the higher
    number, and an unreadable number counts as 0."""
    value = text_of(raw, ATTEMPT) or ""
    counted = int(value) if re.fullmatch("[0-9]{1,9}", value, re.ASCII) else 0
    state = state_in(raw)
    return max(counted, state.redrives if state else 0)


def entry_of(raw: Raw, step: RedriveStep, url: str, now_ms: int, auto: AutoRedrive) -> dict[str, Any]:
    """Return the entry of the message for SendMessageBatch, without an Id.

    If the delay is too long for SQS (15 minutes; none on FIFO), redrive's own messages wait in their queue, as for any
    long delay; foreign ones wait 15 minutes, or not at all. On FIFO queues a repeat of the same move has the same
    deduplication id.
    """
    entry: dict[str, Any] = {"MessageBody": raw["Body"]}
    system, fifo = raw.get("Attributes") or {}, url.endswith(".fifo")
    if trace := system.get("AWSTraceHeader"):
        entry["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    if group := system.get("MessageGroupId") or (fifo and raw["MessageId"]):
        entry["MessageGroupId"] = group
    if fifo:
        number = step.attempt if isinstance(step, MoveStep) else "poison"
        entry["MessageDeduplicationId"] = f"{raw['MessageId']}/{number}"
    if isinstance(step, Isolate):
        attributes = _isolated(raw, step.why)
    else:
        waits = bool(step.delay_s) and (fifo or step.delay_s > DELAY_MAX_S)
        due_ms = now_ms + 1000 * step.delay_s if waits else None
        attributes = _back(raw, step.attempt, now_ms, auto, due_ms=due_ms)
        comes_s = min(step.delay_s, DELAY_MAX_S) if step.comes_s is None else step.comes_s
        if comes_s and not fifo:
            entry["DelaySeconds"] = comes_s
    return entry | ({"MessageAttributes": attributes} if attributes else {})


def group_of(raw: Raw) -> str:
    """Return the message's FIFO group; the message's id if it has none."""
    return str((raw.get("Attributes") or {}).get("MessageGroupId") or raw["MessageId"])


def text_of(raw: Raw, name: str) -> str | None:
    """Return the text of the message attribute `name`; None if the message has no such attribute."""
    value = ((raw.get("MessageAttributes") or {}).get(name) or {}).get("StringValue")
    return None if value is None else str(value)


def _back(raw: Raw, attempt: int, now_ms: int, auto: AutoRedrive, *, due_ms: int | None) -> dict[str, Any]:
    """Return the attributes of a message that goes back to its queue; redrive's own messages begin a fresh life."""
    attributes = _attributes(raw) | {ATTEMPT: _number(attempt)}
    state = state_in(raw)
    if state is not None:
        for name in _OF_DEATH:
            attributes.pop(name, None)
        fresh = replace(revived(state, now_ms), redrives=attempt, attempts_allowed=auto.attempts, due_ms=due_ms)
        attributes[STATE] = {"DataType": "String", "StringValue": encode(fresh).decode()}
    if FIRST not in attributes and len(attributes) < ATTRIBUTES_MAX:
        attributes[FIRST] = _number(_first_ms(raw, now_ms))
    return attributes


def _isolated(raw: Raw, why: str) -> dict[str, Any]:
    """Return the attributes of a message that goes to the poison queue: unchanged, plus the reason `why` if it fits."""
    attributes = _attributes(raw)
    longer = attributes | {WHY: {"DataType": "String", "StringValue": why}}
    fits = len(longer) <= ATTRIBUTES_MAX and size_of(raw["Body"], longer) <= BYTES_MAX
    return longer if fits else attributes


def _attributes(raw: Raw) -> dict[str, Any]:
    wanted = ("DataType", "StringValue", "BinaryValue")
    attributes = raw.get("MessageAttributes") or {}
    return {name: {key: value[key] for key in wanted if key in value} for name, value in attributes.items()}


def state_in(raw: Raw) -> MessageState | None:
    """Return the state that redrive stores with its own messages; None for other messages."""
    value = text_of(raw, STATE)
    if value is None:
        return MessageState() if _OWN.search(raw["Body"]) else None
    try:
        return decode(value)
    except (ValueError, RecursionError):
        return None


def _first_ms(raw: Raw, now_ms: int) -> int:
    value = str((raw.get("Attributes") or {}).get("ApproximateFirstReceiveTimestamp", ""))
    return int(value) if re.fullmatch("[0-9]{1,15}", value, re.ASCII) else now_ms


def _number(value: int) -> dict[str, str]:
    return {"DataType": "Number", "StringValue": str(value)}
