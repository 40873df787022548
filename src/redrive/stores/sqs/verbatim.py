"""Dead letters of other consumers, kept so that they can go back as they came: the body byte for byte, and the
attributes.

Their consumer may be no worker of ours, so it must not get our envelope. What redrive keeps of the message, its id
among that, travels in the one attribute `redrive`: a worker of ours reads it, everybody else sees one attribute more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...codec import UNROUTED
from ...message import RESTING, Message
from .envelope import TOPIC
from .foreign import FIRST_RECEIVED, MESSAGE_ID, RECEIVES, SNS_ID, SUBJECT
from .message_state import encode, kept_of

VERBATIM = "aws-verbatim"  # a header: the body is as it lay in SQS, and these types its attributes have
KEPT = "redrive"
SOURCE = "aws-dead-letter-source"  # a header: the queue that it died in, as SQS says it
ATTRIBUTES_MAX = 10
_OURS = (KEPT, "reason", "error", "fingerprint")  # which redrive's own dead letters have
_ABOUT = (VERBATIM, SOURCE, MESSAGE_ID, RECEIVES, FIRST_RECEIVED, TOPIC, SUBJECT, SNS_ID, UNROUTED)

Attributes = dict[str, dict[str, Any]]


def is_foreign(message: Message) -> bool:
    """Whether somebody else wrote it."""
    return MESSAGE_ID in message.headers


def as_it_came(message: Message, raw: Mapping[str, Any]) -> Message:
    """The message with the body that SQS has of it, also where a topic wrapped it, and what its attributes are."""
    given: Mapping[str, Mapping[str, Any]] = raw.get("MessageAttributes") or {}
    kept = {name: value for name, value in given.items() if name not in _OURS}
    types = {name: str(value.get("DataType", "String")) for name, value in kept.items()}
    headers = {name: text for name, text in message.headers.items() if name in _ABOUT}
    headers |= {name: text for name, text in message.headers.items() if name in kept}
    headers[VERBATIM] = json.dumps({name: kind for name, kind in types.items() if kind != "String"})
    body = str(raw.get("Body") or "").encode(errors="surrogatepass")
    return replace(message, body=body, content="raw", headers=headers)


def write(message: Message) -> tuple[str, Attributes]:
    """The body and the attributes to send for such a message."""
    types: dict[str, str] = json.loads(message.headers[VERBATIM])
    said = ((name, text) for name, text in message.headers.items() if name not in _ABOUT)
    attributes = {name: _attribute(types.get(name, "String"), text) for name, text in said if text}
    if len(attributes) < ATTRIBUTES_MAX:
        state = encode(replace(kept_of(message), id=message.id)).decode()
        attributes[KEPT] = {"DataType": "String", "StringValue": state}
    if message.lane in RESTING and message.reason and len(attributes) < ATTRIBUTES_MAX:
        attributes["reason"] = {"DataType": "String", "StringValue": message.reason}
    return message.body.decode(errors="replace"), attributes


def _attribute(kind: str, text: str) -> dict[str, Any]:
    if kind.partition(".")[0] == "Binary":
        import binascii

        return {"DataType": kind, "BinaryValue": binascii.a2b_base64(text)}
    return {"DataType": kind, "StringValue": text}
