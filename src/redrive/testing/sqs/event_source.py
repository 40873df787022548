"""Simulate Lambda's event source mapping: pass received messages to a function, and delete those that it finished."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import Any

BATCH_MAX = 10


class Remaining:
    """The context object of an invocation, which reports how many ms are left."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._end_s - time.monotonic()) * 1000))


class EventSource:
    """An event source mapping with ReportBatchItemFailures, for a boto3 client of SQS and the URL of a queue.

    `deliver(handler)` is one event: at most ten messages, hidden for `visibility` seconds.
    """

    def __init__(self, sqs: Any, queue_url: str, *, visibility: int = 360) -> None:
        self._sqs, self._url, self._visibility = sqs, queue_url, visibility

    def receive(self) -> list[dict[str, Any]]:
        """Receive up to ten messages, and return the records of an event with them; empty if no message is visible."""
        reply = self._sqs.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=BATCH_MAX,
            VisibilityTimeout=self._visibility,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return [self._record(message) for message in reply.get("Messages", ())]

    def deliver(
        self,
        handler: Callable[[Any, Any], Any],
        *,
        seconds: float = 30,
        records: Sequence[dict[str, Any]] | None = None,
    ) -> list[str]:
        """Invoke the function with one event, delete the messages that it finished, and return the ids of the others.
        An error of the function passes through, and all messages become visible again after their timeout."""
        records = self.receive() if records is None else records
        if not records:
            return []
        answer = handler({"Records": [*records]}, Remaining(seconds)) or {}
        failed = {item["itemIdentifier"] for item in answer.get("batchItemFailures", ())}
        done = [record["receiptHandle"] for record in records if record["messageId"] not in failed]
        if done:
            entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(done)]
            self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)
        return [record["messageId"] for record in records if record["messageId"] in failed]

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"],
            "messageAttributes": {n: _attribute(v) for n, v in message.get("MessageAttributes", {}).items()},
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:eu-central-1:000000000000:{self._url.rpartition('/')[2]}",
            "awsRegion": "eu-central-1",
        }


def _attribute(value: dict[str, Any]) -> dict[str, Any]:
    binary = value.get("BinaryValue")
    return {
        "stringValue": value.get("StringValue"),
        "binaryValue": None if binary is None else base64.b64encode(binary).decode(),
        "stringListValues": [],
        "binaryListValues": [],
        "dataType": value["DataType"],
    }
