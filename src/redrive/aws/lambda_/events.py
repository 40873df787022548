"""Read Lambda's events with SQS messages, and write the response that Lambda expects."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import ConfigError

EventRecord = Mapping[str, Any]
_VALUES = {"stringValue": "StringValue", "binaryValue": "BinaryValue", "dataType": "DataType"}


def records_of(event: Any) -> list[EventRecord]:
    """Return the records of an SQS event. Raises ConfigError for any other event, and for a record without `messageId`:
    Lambda would delete its message even if it failed, as the failure could not be reported."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list) or not all(_is_of_sqs(record) for record in records):
        raise ConfigError(
            "this function takes messages of SQS, and this event holds none; give it an event source mapping of a "
            "queue, with ReportBatchItemFailures"
        )
    return records


def _is_of_sqs(record: Any) -> bool:
    if not isinstance(record, Mapping) or record.get("eventSource") != "aws:sqs":
        return False
    id = record.get("messageId")
    return isinstance(id, str) and bool(id)


def is_whole(record: EventRecord) -> bool:
    """True if the record's fields have the types that SQS gives them. Other records can only be reported as failed."""
    maps = (record.get("attributes") or {}, record.get("messageAttributes") or {})
    return (
        all(isinstance(record.get(name), str) for name in ("receiptHandle", "eventSourceARN"))
        and isinstance(record.get("body") or "", str)
        and all(isinstance(each, Mapping) for each in maps)
        and all(isinstance(text, str) for text in maps[0].values())
        and all(isinstance(value, Mapping) and _is_attribute(value) for value in maps[1].values())
    )


def _is_attribute(value: Mapping[str, Any]) -> bool:
    return all(isinstance(value[key], str) for key in _VALUES if value.get(key) is not None)


def raw_of(record: EventRecord) -> dict[str, Any]:
    """Return a record of the event in the form of an entry in ReceiveMessage's response."""
    attributes = record.get("messageAttributes") or {}
    return {
        "MessageId": record["messageId"],
        "ReceiptHandle": record["receiptHandle"],
        "Body": record.get("body") or "",
        "Attributes": dict(record.get("attributes") or {}),
        "MessageAttributes": {name: _value(value) for name, value in attributes.items()},
    }


def queues_of(records: Sequence[EventRecord]) -> dict[str, list[EventRecord]]:
    """Group the records by the name of their SQS queue. One event has one queue, but a function may have several."""
    by_queue: dict[str, list[EventRecord]] = {}
    for record in records:
        by_queue.setdefault(str(record.get("eventSourceARN", "")).rpartition(":")[2], []).append(record)
    return by_queue


def queue_named(name: str, prefix: str) -> str:
    """Return redrive's name of the SQS queue `name`. Raises ConfigError if the name does not begin with the prefix."""
    queue = name.removesuffix(".fifo").removeprefix(f"{prefix}-")
    if not name.startswith(f"{prefix}-") or not queue:
        raise ConfigError(
            f"a message came from queue {name!r}, and the app's URL names those that begin with '{prefix}-'; let the "
            "event source be one of them, or the URL sqs://REGION/PREFIX have its prefix, or declare it: "
            f"app.queue(…, sqs={name!r})"
        )
    return queue


def answer(failed: Iterable[EventRecord]) -> dict[str, Any]:
    """Return the response to Lambda: the records `failed` are kept, and Lambda deletes all others."""
    return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in failed]}


def _value(given: Mapping[str, Any]) -> dict[str, Any]:
    value = {name: given[key] for key, name in _VALUES.items() if given.get(key) is not None}
    if isinstance(value.get("BinaryValue"), str):
        try:
            value["BinaryValue"] = base64.b64decode(value["BinaryValue"], validate=True)
        except binascii.Error:
            value["BinaryValue"] = value["BinaryValue"].encode()
    return value
