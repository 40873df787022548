"""The envelope of redrive's messages in SQS: a structured CloudEvent 1.0, which other consumers can read too.

The event holds the immutable part of a message; the mutable state is in the attribute `redrive` (`message_state.py`). A
JSON body is the event's data, byte for byte. Any other body, and a JSON body with characters that SQS refuses, is
base64. Extension attributes are written only where they differ from the default, except `rdversion`, which marks an
event as redrive's.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from ....codec.foreign import value_of
from ....codec.routing import UNROUTED, Routes
from ....ids import is_id
from ....message import NORMAL, PRIORITIES, Message
from ...validation import INT_MAX

TOPIC = "aws-sns-topic"  # header with the ARN of the SNS topic that a message came through
VERBATIM = "aws-verbatim"  # header of a message that goes back verbatim; its value has the types of its attributes
SOURCE = "aws-dead-letter-source"  # header with the ARN of the SQS queue in which a message died
STATE = "redrive"  # message attribute with the mutable state
ATTEMPT = "x-redrive-attempt"  # attribute in which a re-driver counts how often it moved a message, foreign ones too
BYTES_MAX = 1024 * 1024  # limit of SQS for the body and attributes of a message
ENVELOPE_BYTES = 64 * 1024 + 32 * 1024  # what is reserved for the data other than the body: history, names, headers
ANY_BODY_MAX = (BYTES_MAX - ENVELOPE_BYTES) // 4 * 3  # largest body of any kind: base64 makes four bytes of three
UNROUTED_TYPE = "redrive.unrouted"  # type of an event whose message has no task, since an event must have a type

_JSON, _BYTES = "application/json", "application/octet-stream"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LAST_MS = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH) // _MS
_EXACT_MS = 2**41  # below this, a float of seconds is exact to less than half a microsecond
_INT_MAX = 2**31 - 1  # largest Integer in a CloudEvent
_DEEP = 200  # a body with fewer brackets is not checked for its depth
_ROOM = 400  # levels of Python's recursion limit that a reader's own stack may use
_NOT_IN_SQS = ("\ufffe".encode(), "\uffff".encode())  # noncharacters, which SQS rejects and JSON does not escape
_PLANES = "".join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17))
_NOT_IN_EVENTS = re.compile(f"[\0-\x1f\x7f-\x9f\ufdd0-\ufdef{_PLANES}]")  # CloudEvents 1.0.2, 3.1: String


class CloudEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """The envelope of a message; its fields are written in this order."""

    specversion: Literal["1.0"]
    id: str
    source: str
    type: str
    time: datetime
    rdversion: int | str
    datacontenttype: str | None = None
    correlationid: str | None = None
    causationid: str | None = None
    traceparent: str | None = None
    rdcontent: str | None = None
    rdpriority: int = NORMAL
    rdgroup: str | None = None
    rdkey: str | None = None
    rddeadline: str | None = None  # milliseconds as text: a CloudEvents Integer has 32 bits
    rdkeep: str | None = None  # how long to keep the done message, in milliseconds as text
    rdproducer: str | None = None
    rdheaders: str | None = None  # JSON text, as an attribute's value cannot be an object
    rdtopic: str | None = None  # the SNS topic that the message is published to; each queue gets its own copy
    rdbatch: str | None = None  # the batch that waits for the message
    rdexact: str | None = None  # JSON with the exact texts of attributes that the event holds only changed
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data_base64: str | msgspec.UnsetType = msgspec.UNSET


_decode_event = msgspec.json.Decoder(CloudEvent).decode
_encode_event = msgspec.json.Encoder().encode
_skip = msgspec.json.Decoder(msgspec.Raw).decode
_decode_texts = msgspec.json.Decoder(dict[str, str]).decode


# -- writing


def body_of(message: Message, *, prefix: str, topic: str | None = None) -> str:
    """Return the envelope of a message, as the body to send to SQS."""
    id, version, correlation = message.id, message.version, message.correlation_id
    event = CloudEvent(
        "1.0",
        id,
        _source(prefix, message.queue),
        message.task or UNROUTED_TYPE,
        _time(message.enqueued_ms),
        version if version <= _INT_MAX else str(version),
    )
    _put_data(event, message.body, message.content)
    if correlation != id:
        event.correlationid = correlation
    if message.priority != NORMAL:
        event.rdpriority = message.priority
    event.causationid, event.traceparent = message.causation_id, message.traceparent
    event.rdgroup, event.rdkey, event.rdproducer = message.group, message.key, message.producer
    event.rdtopic, event.rdbatch = topic, message.batch
    if message.deadline_ms is not None:
        event.rddeadline = str(message.deadline_ms)
    if message.keep_ms:
        event.rdkeep = str(message.keep_ms)
    if message.headers:
        event.rdheaders = _ascii(dict(message.headers))
    _keep_exact(event)
    return sqs_text(_encode_event(event))


def size_of(body: str, attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the bytes that SQS counts for a message: its body, and the name, type and value of each attribute."""
    size = len(body) if body.isascii() else len(body.encode(errors="replace"))
    for name, value in attributes.items():
        size += len(name.encode()) + len(value.get("DataType", "").encode())
        text = value.get("StringValue")
        size += len(value.get("BinaryValue", b"")) if text is None else len(text.encode(errors="replace"))
    return size


def attribute(text: str) -> dict[str, str]:
    """Return a message attribute with this text; U+FFFD replaces each character that SQS refuses."""
    return {"DataType": "String", "StringValue": text if text.isprintable() else _NOT_IN_EVENTS.sub("\ufffd", text)}


def _put_data(event: CloudEvent, body: bytes, content: str) -> None:
    if content != "json":
        event.rdcontent = content
    if not body:
        return
    if _is_plain_json(body):
        event.datacontenttype, event.data = _JSON, msgspec.Raw(body)
    else:
        event.datacontenttype = _JSON if content == "json" else _BYTES
        event.data_base64 = binascii.b2a_base64(body, newline=False).decode()


def _is_plain_json(body: bytes) -> bool:
    """True if an event can hold the body unchanged: it is JSON without space around it, of characters that SQS accepts,
    and not nested too deeply for readers."""
    try:
        if len(bytes(_skip(body))) != len(body):
            return False
        if body.count(b"[") + body.count(b"{") > _DEEP:
            _skip(b"[" * _ROOM + body + b"]" * _ROOM)
        if not body.isascii():
            body.decode()
            return not any(odd in body for odd in _NOT_IN_SQS)
    except (ValueError, RecursionError):
        return False
    return True


def sqs_text(written: bytes) -> str:
    """Return JSON as text, with escapes for the characters that SQS refuses."""
    if not written.isascii():
        for odd, escape in zip(_NOT_IN_SQS, (rb"\ufffe", rb"\uffff"), strict=True):
            written = written.replace(odd, escape)  # the character can only be inside a string of the JSON
    return written.decode()


def _ascii(texts: Mapping[str, str]) -> str:
    return json.dumps(texts, separators=(",", ":"))


_TEXTS = (
    "type", "correlationid", "causationid", "traceparent", "rdcontent", "rdgroup", "rdkey", "rdproducer", "rdtopic",
    "rdbatch",
)  # fmt: skip


def _keep_exact(event: CloudEvent) -> None:
    """Replace control characters in the event's attributes, which cannot hold them; `rdexact` gets the exact texts."""
    e = event
    texts = (e.type, e.correlationid, e.causationid, e.traceparent, e.rdcontent, e.rdgroup, e.rdkey, e.rdproducer)
    if "".join(filter(None, texts)).isprintable() and f"{e.rdtopic}{e.rdbatch}".isprintable():
        return
    exact = {name: text for name in _TEXTS if (text := getattr(event, name)) and _NOT_IN_EVENTS.search(text)}
    for name, text in exact.items():
        setattr(event, name, _NOT_IN_EVENTS.sub("\ufffd", text))
    if exact:
        event.rdexact = _ascii(exact)


def _time(ms: int) -> datetime:
    if 0 <= ms < _EXACT_MS:
        return datetime.fromtimestamp(ms / 1000, UTC)
    return _EPOCH + timedelta(milliseconds=min(ms, _LAST_MS))


@lru_cache(maxsize=4096)
def _source(prefix: str, queue: str) -> str:
    return f"redrive://{quote(prefix, safe='')}/{quote(queue, safe='')}"


# -- reading


def own(body: str, queue: str, routes: Routes | None = None) -> Message | None:
    """Decode redrive's own envelope; None for any other body. `routes` choose the task of a copy that a topic sent."""
    try:
        event = _decode_event(body)
        if event.rdexact is not None:
            _take_exact(event)
        message = _message(event, queue)
        if event.rdtopic is not None and message is not None:
            message = _copy(message, event.rdtopic, routes)
        elif routes is not None and message is not None and (why := routes.refusal(queue, message.task)):
            message = replace(message, task="", headers={**message.headers, UNROUTED: why})
    except (ValueError, RecursionError, OverflowError):
        return None
    return None if message is None or ("\\u0000" in body and _holds_nul(message)) else message


def _message(event: CloudEvent, queue: str) -> Message | None:
    id, version = event.id, int(event.rdversion)
    if not is_id(id) or event.rdpriority not in PRIORITIES or not 1 <= version <= INT_MAX or not event.type:
        return None
    if event.time.tzinfo is None:
        return None
    enqueued_ms = (event.time - _EPOCH) // _MS
    deadline_ms = None if event.rddeadline is None else int(event.rddeadline)
    keep_ms = 0 if event.rdkeep is None else int(event.rdkeep)
    if min(enqueued_ms, keep_ms, deadline_ms or 0) < 0 or max(keep_ms, deadline_ms or 0) > INT_MAX:
        return None
    correlation = event.correlationid
    return Message(
        id,
        "" if event.type == UNROUTED_TYPE else event.type,
        queue,
        _body(event),
        id if correlation is None else correlation,
        priority=event.rdpriority,
        due_ms=enqueued_ms,
        enqueued_ms=enqueued_ms,
        life_ms=enqueued_ms,
        producer=event.rdproducer,
        deadline_ms=deadline_ms,
        version=version,
        key=event.rdkey,
        group=event.rdgroup or None,
        content="json" if event.rdcontent is None else event.rdcontent,
        headers={} if event.rdheaders is None else _headers(event.rdheaders),
        causation_id=event.causationid,
        traceparent=event.traceparent,
        keep_ms=keep_ms,
        batch=event.rdbatch or None,
    )


def _headers(written: str) -> dict[str, str]:
    """Decode the headers of an envelope. Drops those that only dead letters have, as an envelope never has them."""
    return {name: text for name, text in _decode_texts(written).items() if name not in (VERBATIM, SOURCE)}


def _copy(message: Message, topic: str, routes: Routes | None) -> Message:
    """Return one queue's copy of a message that was published to a topic: with its own id and task."""
    task = message.task
    if routes is not None:
        task, _ = routes.task_of(message.queue, value_of(message.body), message.headers, task)
    return replace(
        message,
        id=copy_id(message.id, message.queue),
        task=task,
        causation_id=message.id,
        headers={**message.headers, TOPIC: topic},
    )


def _body(event: CloudEvent) -> bytes:
    if isinstance(event.data, msgspec.Raw):
        if event.data_base64 is not msgspec.UNSET:
            raise ValueError("an event has data or data_base64, not both")
        return bytes(event.data)
    if isinstance(event.data_base64, str):
        return binascii.a2b_base64(event.data_base64, strict_mode=True)
    return b""


def _take_exact(event: CloudEvent) -> None:
    for name, text in _decode_texts(event.rdexact or "{}").items():
        if name in _TEXTS:
            setattr(event, name, text)


def _holds_nul(m: Message) -> bool:
    texts = [m.task, m.correlation_id, m.causation_id, m.traceparent, m.content, m.group, m.key, m.producer]
    return any("\0" in text for text in (*texts, *m.headers, *m.headers.values()) if text)


def copy_id(id: str, queue: str) -> str:
    """Return the id of an event's copy in this queue: the same at each delivery, with the time of the event's id."""
    r = sha256(f"{id}/{queue}".encode(errors="surrogatepass")).hexdigest()
    return f"{id[:15]}{r[:3]}-{'89ab'[int(r[3], 16) & 3]}{r[4:7]}-{r[7:19]}"
