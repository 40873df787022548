"""Messages that another program sent to a queue, and dead letters of other consumers.

A foreign message may be plain JSON, text, a notification of SNS, an event of S3, anything. It becomes a message with
its body as it came and content "raw". Its id is derived from the one that SQS gave it, so every delivery yields the
same message. Its attributes become headers, renamed if redrive could mistake them for its own; `aws-…` headers contain
its origin.

A dead letter of another consumer goes back *verbatim*: the same body, byte for byte, and the same attributes, as that
consumer may not understand redrive's envelope. The only addition is the attribute `redrive` with the message's state.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from ....codec.foreign import header_name, sent_name, storable, value_of
from ....codec.routing import UNROUTED, Routes
from ....message import RESTING, Message
from .envelope import SOURCE, STATE, TOPIC, VERBATIM, copy_id, own
from .message_state import encode, state_of

MESSAGE_ID, RECEIVES, FIRST_RECEIVED = "aws-message-id", "aws-receive-count", "aws-first-received"
SUBJECT, SNS_ID = "aws-sns-subject", "aws-sns-message-id"
_CORRELATION = ("correlation_id", "correlation-id", "correlationId", "correlationid", "x-correlation-id")
TRACEPARENT = "traceparent"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class _Attribute(msgspec.Struct, gc=False):
    Value: str = ""
    Type: str = "String"


class _Notification(msgspec.Struct, gc=False, tag_field="Type", tag="Notification"):
    """A notification of SNS, in which a topic without raw delivery wraps a message."""

    MessageId: str
    TopicArn: str
    Message: str
    Subject: str | None = None
    MessageAttributes: dict[str, _Attribute] = {}


class _CloudEvent(msgspec.Struct, gc=False):
    """A structured CloudEvent that another program wrote."""

    specversion: str
    id: str
    source: str
    type: str
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data_base64: str | msgspec.UnsetType = msgspec.UNSET
    time: datetime | None = None
    subject: str | None = None
    correlationid: str | None = None
    traceparent: str | None = None


_notification = msgspec.json.Decoder(_Notification).decode
_cloud_event = msgspec.json.Decoder(_CloudEvent).decode
_decode_types = msgspec.json.Decoder(dict[str, str]).decode


def read_foreign(raw: Mapping[str, Any], *, queue: str, routes: Routes) -> Message:
    """Return the message that another program sent, from an entry of ReceiveMessage's response. Never raises."""
    body, attributes = str(raw.get("Body") or ""), _attributes(raw.get("MessageAttributes") or {})
    about = _about(raw)
    try:
        note = _notification(body)
    except (ValueError, RecursionError):
        return _plain(raw, body, attributes, about, queue, routes)
    about |= {TOPIC: note.TopicArn, SNS_ID: note.MessageId} | ({SUBJECT: note.Subject} if note.Subject else {})
    ours = own(note.Message, queue, routes)
    if ours is not None:
        return ours
    attributes = {name: each.Value for name, each in note.MessageAttributes.items()} | attributes
    return _plain(raw, note.Message, attributes, about, queue, routes)


def _plain(
    raw: Mapping[str, Any], body: str, attributes: dict[str, str], about: dict[str, str], queue: str, routes: Routes
) -> Message:
    system: Mapping[str, str] = raw.get("Attributes") or {}
    sent_ms = _whole(system.get("SentTimestamp"))
    id = _id(str(raw.get("MessageId", "")), sent_ms)
    message = Message(
        id,
        "",
        queue,
        body.encode(errors="surrogatepass"),
        storable(next((attributes[name] for name in _CORRELATION if attributes.get(name)), id)),
        due_ms=sent_ms,
        enqueued_ms=sent_ms,
        life_ms=sent_ms,
        content="raw",
        group=storable(system.get("MessageGroupId") or "") or None,
        traceparent=storable(attributes[TRACEPARENT]) if attributes.get(TRACEPARENT) else None,
    )
    kind, message = _opened(message, body)
    value = value_of(message.body)
    task, why = routes.task_of(queue, value, attributes, kind)
    sent = {header_name(name): text for name, text in attributes.items()}
    headers = {**sent, **message.headers} | about | ({UNROUTED: why} if why else {})
    return replace(message, task=task, headers={storable(name): storable(text) for name, text in headers.items()})


def _opened(message: Message, body: str) -> tuple[str, Message]:
    """Unwrap another program's CloudEvent; returns its type, and the message with the event's data as its body.

    The message's id is derived from the event's id and the queue. An event that is sent twice is the same message both
    times, and one that is sent to two queues is a message of its own in each. Other bodies: no type, the message as is.
    """
    try:
        event = _cloud_event(body)
        if isinstance(event.data, msgspec.Raw):
            data = bytes(event.data)
        else:
            data = binascii.a2b_base64(event.data_base64, strict_mode=True) if event.data_base64 else b""
    except (ValueError, RecursionError):
        return "", message
    if not event.specversion.startswith("1."):
        return "", message
    sent_ms = message.enqueued_ms if event.time is None else _ms_of(event.time)
    id = _id(f"{event.source}\n{event.id}\n{message.queue}", max(0, sent_ms))
    correlation = message.correlation_id if message.correlation_id != message.id else event.id
    about = {"ce-id": event.id, "ce-source": event.source, "ce-type": event.type}
    if event.subject:
        about["ce-subject"] = event.subject
    return event.type, replace(
        message,
        id=id,
        body=data,
        correlation_id=storable(event.correlationid or correlation),
        causation_id=storable(event.id),
        traceparent=storable(event.traceparent) if event.traceparent else message.traceparent,
        headers=about,
    )


def _ms_of(time: datetime) -> int:
    """Return the time in milliseconds. RFC 3339 asks for a zone; a time without one is taken for UTC."""
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH) // _MS


def _attributes(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: _attribute(value) for name, value in given.items() if name != STATE}


def _attribute(value: Mapping[str, Any]) -> str:
    binary = value.get("BinaryValue")
    if binary is not None:
        return binascii.b2a_base64(binary, newline=False).decode() if isinstance(binary, bytes) else str(binary)
    return str(value.get("StringValue", ""))


def _about(raw: Mapping[str, Any]) -> dict[str, str]:
    system: Mapping[str, str] = raw.get("Attributes") or {}
    about = {MESSAGE_ID: str(raw.get("MessageId", ""))}
    if _whole(system.get("ApproximateReceiveCount")) > 1:
        about[RECEIVES] = str(system["ApproximateReceiveCount"])
        first_ms = _whole(system.get("ApproximateFirstReceiveTimestamp"))
        if 0 < first_ms < 2**47:
            about[FIRST_RECEIVED] = datetime.fromtimestamp(first_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return about


def _id(message_id: str, sent_ms: int) -> str:
    time = f"{sent_ms & 0xFFFF_FFFF_FFFF:012x}"
    return copy_id(f"{time[:8]}-{time[8:]}-7", message_id)


def _whole(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19 else 0


# -- dead letters of other consumers

ATTRIBUTES_MAX = 10
_OURS = (STATE, "reason", "error", "fingerprint")  # attributes that redrive adds to dead letters
_ABOUT = (VERBATIM, SOURCE, MESSAGE_ID, RECEIVES, FIRST_RECEIVED, TOPIC, SUBJECT, SNS_ID, UNROUTED)

Attributes = dict[str, dict[str, Any]]


def is_foreign(message: Message) -> bool:
    """True if another program wrote the message."""
    return MESSAGE_ID in message.headers


def as_it_came(message: Message, raw: Mapping[str, Any]) -> Message:
    """Return the message with its body and attributes as SQS delivered them, even around a notification of SNS."""
    given: Mapping[str, Mapping[str, Any]] = raw.get("MessageAttributes") or {}
    kept = {name: value for name, value in given.items() if name not in _OURS}
    types = {name: str(value.get("DataType", "String")) for name, value in kept.items()}
    headers = {name: text for name, text in message.headers.items() if name in _ABOUT}
    headers |= {name: text for name, text in message.headers.items() if name not in _ABOUT and sent_name(name) in kept}
    headers[VERBATIM] = json.dumps({name: kind for name, kind in types.items() if kind != "String"})
    body = str(raw.get("Body") or "").encode(errors="surrogatepass")
    return replace(message, body=body, content="raw", headers=headers)


def write_verbatim(message: Message) -> tuple[str, Attributes]:
    """Return the original body and attributes of a message that goes back. Never raises, though people may edit it."""
    types = _types(message.headers[VERBATIM])
    sent = ((sent_name(name), text) for name, text in message.headers.items() if name not in _ABOUT)
    attributes = {name: _written(types.get(name, "String"), text) for name, text in sent if text}
    if len(attributes) < ATTRIBUTES_MAX:
        state = encode(replace(state_of(message), id=message.id)).decode()
        attributes[STATE] = {"DataType": "String", "StringValue": state}
    if message.lane in RESTING and message.reason and len(attributes) < ATTRIBUTES_MAX:
        attributes["reason"] = {"DataType": "String", "StringValue": message.reason}
    return message.body.decode(errors="replace"), attributes


def _types(written: str) -> dict[str, str]:
    try:
        return _decode_types(written)
    except (ValueError, RecursionError):
        return {}


def _written(kind: str, text: str) -> dict[str, Any]:
    if kind.partition(".")[0] == "Binary":
        try:
            return {"DataType": kind, "BinaryValue": binascii.a2b_base64(text)}
        except ValueError:
            return {"DataType": "String", "StringValue": text}
    return {"DataType": kind, "StringValue": text}
