"""A message of a stand-in SQS queue, its limits, and the errors that SQS answers with."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Mapping
from typing import Any

BYTES_MAX = 1024 * 1024  # the most bytes of a message, and of all messages of a batch together
ENTRIES_MAX = 10  # the most entries of a batch
ATTRIBUTES_MAX = 10
DELAY_MAX_S = 900
VISIBILITY_MAX_S = 12 * 3600  # the longest time in flight, from the receive and with all extensions
WAIT_MAX_S = 20
IN_FLIGHT_MAX = 120_000
DEDUP_MS = 5 * 60_000
RETENTION_S = (60, 14 * 86_400)
_ODD = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENTRY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GROUP = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE = re.compile(r"(?!(?i:aws|amazon)\.)(?!\.)(?!.*\.\.)(?!.*\.$)[A-Za-z0-9_.-]{1,256}")


_CODES = {  # the query protocol's names of errors: clients still get these beside those of the JSON protocol
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
} | {
    name: f"AWS.SimpleQueueService.{name}"
    for name in (
        "EmptyBatchRequest", "TooManyEntriesInBatchRequest", "InvalidBatchEntryId", "BatchEntryIdsNotDistinct",
        "BatchRequestTooLong", "MessageNotInflight",
    )
}  # fmt: skip


class SqsError(Exception):
    """The error answer of SQS to a call, or to one entry of a batch. `code` is the query protocol's name."""

    type: str
    text: str
    status: int
    code: str
    sender: bool

    def __init__(self, type: str, text: str, *, status: int = 400) -> None:
        super().__init__(text)
        self.type, self.text, self.status = type, text, status
        self.code, self.sender = _CODES.get(type, type), status < 500


def invalid(text: str) -> SqsError:
    return SqsError("InvalidParameterValue", text)


class ServedMessage:
    """A message in a queue. `turn` rises with every receive and change of visibility, so that a queue recognises
    entries of an earlier turn in its line and heap as old."""

    attributes: Mapping[str, Any]
    body: str
    first_received_ms: int
    hidden_until_ms: int
    id: str
    in_flight: bool
    number: int
    received: int
    received_ms: int
    sent_ms: int
    turn: int

    __slots__ = (
        "attributes",
        "body",
        "dedup",
        "first_received_ms",
        "from_arn",
        "group",
        "hidden_until_ms",
        "id",
        "in_flight",
        "md5",
        "md5_attributes",
        "number",
        "received",
        "received_ms",
        "sent_ms",
        "trace",
        "turn",
    )

    def __init__(self, id: str, number: int, body: str, attributes: Mapping[str, Any], sent_ms: int) -> None:
        self.id, self.number, self.body, self.attributes, self.sent_ms = id, number, body, attributes, sent_ms
        self.md5: str = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
        self.md5_attributes: str | None = md5_of(attributes)
        self.group: str | None = None
        self.dedup: str | None = None
        self.trace: str | None = None
        self.from_arn: str | None = None  # ARN of the queue in which the message died
        self.received, self.received_ms, self.first_received_ms = 0, 0, 0
        self.hidden_until_ms, self.in_flight, self.turn = 0, False, 0

    def system_attributes(self, sender: str, fifo: bool) -> dict[str, str]:
        """Return the system attributes that a receive of this message can request."""
        attributes = {
            "SenderId": sender,
            "SentTimestamp": str(self.sent_ms),
            "ApproximateReceiveCount": str(self.received),
            "ApproximateFirstReceiveTimestamp": str(self.first_received_ms),
            "MessageGroupId": self.group,
            "MessageDeduplicationId": self.dedup,
            "SequenceNumber": f"{self.number:020}" if fifo else None,
            "AWSTraceHeader": self.trace,
            "DeadLetterQueueSourceArn": self.from_arn,
        }
        return {name: value for name, value in attributes.items() if value is not None}


def check_body(body: object, attributes: Mapping[str, Any]) -> int:
    """Return the size of a message with this body and these attributes, in bytes. Raises SqsError if SQS refuses one of
    them."""
    if not isinstance(body, str) or not body:
        raise SqsError("MissingParameter", "The request must contain the parameter MessageBody.")
    if _ODD.search(body):
        raise SqsError("InvalidMessageContents", "Invalid characters in message body.")
    if len(attributes) > ATTRIBUTES_MAX:
        raise invalid(f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [10].")
    size = len(body.encode())
    for name, value in attributes.items():
        size += len(name.encode()) + _check_attribute(name, value)
    return size


def _check_attribute(name: str, value: Mapping[str, Any]) -> int:
    if not _ATTRIBUTE.fullmatch(name):
        raise invalid(f"Invalid message attribute name '{name}'.")
    kind = str(value.get("DataType", ""))
    if kind.partition(".")[0] not in ("String", "Number", "Binary"):
        raise invalid(f"The message attribute '{name}' has an invalid message attribute type.")
    held = value.get("BinaryValue") if kind.startswith("Binary") else value.get("StringValue")
    if not held:
        raise invalid(f"The message attribute '{name}' must contain a non-empty message attribute value.")
    if not kind.startswith("Binary") and _ODD.search(held):
        raise SqsError("InvalidMessageContents", f"Invalid characters in message attribute '{name}'.")
    return len(kind.encode()) + (len(_bytes(held)) if kind.startswith("Binary") else len(held.encode()))


def check_entries(entries: object) -> list[dict[str, Any]]:
    """Return the entries of a batch. Raises SqsError if SQS refuses the batch as a whole."""
    if not isinstance(entries, list) or not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > ENTRIES_MAX:
        text = f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(entries)}."
        raise SqsError("TooManyEntriesInBatchRequest", text)
    ids = [str(entry.get("Id", "")) for entry in entries]
    if not all(map(_ENTRY.fullmatch, ids)):
        text = "A batch entry id can only contain alphanumeric characters, hyphens and underscores."
        raise SqsError("InvalidBatchEntryId", text)
    if len(set(ids)) < len(ids):
        raise SqsError("BatchEntryIdsNotDistinct", "Two or more batch entries in the request have the same Id.")
    return entries


def check_group(group: object, what: str) -> str:
    if not isinstance(group, str) or not _GROUP.fullmatch(group):
        raise invalid(f"Value {group} for parameter {what} is invalid. Reason: it can be 1 to 128 characters long.")
    return group


def whole(value: object, what: str, least: int, most: int) -> int:
    """Return the parameter `what` of a request as an int. Raises SqsError unless its value is a whole number from
    `least` to `most`."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = least - 1
    if not least <= number <= most:
        raise invalid(f"Value {value} for parameter {what} is invalid. Reason: Must be between {least} and {most}.")
    return int(number)


def md5_of(attributes: Mapping[str, Any]) -> str | None:
    """Return the MD5 of message attributes that clients check: over names, types and values with their lengths, sorted
    by name; None without attributes."""
    if not attributes:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        kind = str(value["DataType"])
        binary = kind.startswith("Binary")
        held = _bytes(value["BinaryValue"]) if binary else str(value["StringValue"]).encode()
        for part in (name.encode(), kind.encode()):
            digest.update(struct.pack("!I", len(part)) + part)
        digest.update((b"\x02" if binary else b"\x01") + struct.pack("!I", len(held)) + held)
    return digest.hexdigest()


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else base64.b64decode(value)
