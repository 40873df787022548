"""Encode a message for SQS, and decode any message in a queue.

Redrive's own messages are envelopes (`envelope.py`). Messages of other programs, and dead letters that go back to them,
keep their own form (`foreign.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ....codec.routing import TASK, Routes
from ....message import RESTING, Lane, Message
from ...validation import COUNT_MAX, unstorable
from .envelope import ATTEMPT, STATE, VERBATIM, attribute, body_of, own, sqs_text
from .foreign import TRACEPARENT, read_foreign, write_verbatim
from .message_state import MessageState, decode, encode, state_of, with_state

FRESH = MessageState()


def write(message: Message, *, prefix: str, topic: str | None = None) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the body and the attributes to send for a message, without characters that SQS refuses.

    The attribute `task` names the task, and `traceparent` is the sender's context. A message that has been received,
    retried or redriven has its state in the attribute `redrive`; a dead one has the cause in `reason`, `error` and
    `fingerprint`. `topic`: the topic that the message is published to; each subscribed queue gets its own copy.
    """
    if VERBATIM in message.headers:
        return write_verbatim(message)
    attributes = {TASK: attribute(message.task)} if message.task else {}
    if message.traceparent and topic is None:  # an attribute for other programs: redrive reads the envelope
        attributes[TRACEPARENT] = attribute(message.traceparent)
    if not _is_fresh(message):
        attributes[STATE] = {"DataType": "String", "StringValue": sqs_text(encode(state_of(message)))}
    if message.lane in RESTING:
        attributes |= _epitaph(message)
    return body_of(message, prefix=prefix, topic=topic), attributes


def read(raw: Mapping[str, Any], *, queue: str, routes: Routes) -> tuple[Message, MessageState]:
    """Read the message in one entry of ReceiveMessage's response, and the message's state (FRESH if it has none).

    The state is already applied to the message. Reads redrive's envelope, also inside a notification of SNS, and any
    message of another program (`read_foreign`). Never raises.
    """
    body: str = raw.get("Body") or ""
    attributes = raw.get("MessageAttributes")
    message = own(body, queue, routes)
    if message is None:
        message = read_foreign(raw, queue=queue, routes=routes)
    if attributes and STATE in attributes:
        return _with_state(message, attributes[STATE])
    if attributes and ATTEMPT in attributes:
        return _counted(message, attributes[ATTEMPT])
    return message, FRESH


def _is_fresh(m: Message) -> bool:
    """True if the envelope alone holds the whole message, as it was never claimed."""
    return (
        m.lane is Lane.READY
        and m.due_ms == m.enqueued_ms == m.life_ms
        and not (m.fence or m.attempt or m.crashes or m.crashes_alone or m.redrives or m.suspect or m.held_ms)
        and not (m.faults or m.deferral)
        and m.attempts_allowed is m.rested_ms is None
        and m.run is m.reason is None
        and m.progress is None
    )


def _epitaph(message: Message) -> dict[str, dict[str, str]]:
    last = message.faults[-1] if message.faults else None
    said = {"reason": message.reason, "error": last and last.error, "fingerprint": last and last.fingerprint}
    return {name: attribute(text) for name, text in said.items() if text}


def _with_state(message: Message, written: Mapping[str, Any]) -> tuple[Message, MessageState]:
    try:
        state = decode(written["StringValue"])
        whole = with_state(message, state)
    except (ValueError, KeyError, TypeError, RecursionError):
        return message, FRESH  # this attribute was written by another program
    counted = 0 <= state.receives <= COUNT_MAX and 0 <= state.alone <= COUNT_MAX
    return (whole, state) if counted and unstorable(whole) is None else (message, FRESH)


def _counted(message: Message, written: Mapping[str, Any]) -> tuple[Message, MessageState]:
    """Set a foreign message's number of redrives to the count in a re-driver's attribute, so that its limit applies."""
    count = str(written.get("StringValue"))
    if not (count.isascii() and count.isdigit() and len(count) < 10):
        return message, FRESH
    return replace(message, redrives=int(count)), MessageState(redrives=int(count))
