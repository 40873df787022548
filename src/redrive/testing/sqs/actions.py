"""Carry out the calls of the SQS API on the queues of one account."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from .faults import Faults
from .messages import (
    BYTES_MAX,
    VISIBILITY_MAX_S,
    WAIT_MAX_S,
    ServedMessage,
    SqsError,
    check_body,
    check_entries,
    invalid,
    whole,
)
from .moves import MessageMove
from .queues import SENDER, ServedQueue

ACCOUNT = "000000000000"
CallParameters = dict[str, Any]


class Account:
    """The queues and move tasks of one account. One thread uses it; tests may read it."""

    def __init__(self, url: str, region: str, clock_ms: Callable[[], int], receive_max: int = 10) -> None:
        self.queues: dict[str, ServedQueue] = {}
        self.moves: dict[str, MessageMove] = {}
        self._url, self._region, self._clock_ms = url, region, clock_ms
        self.receive_max = receive_max
        self._touched: set[str] = set()

    def touched(self) -> set[str]:
        """Return the names of the queues that may have a visible message since the last call, and forget them."""
        names, self._touched = self._touched, set()
        return names

    def queue(self, given: CallParameters) -> ServedQueue:
        """Return the queue that a call's parameters name. Raises SqsError if there is none."""
        name = str(given.get("QueueUrl", "")).rpartition("/")[2] or str(given.get("QueueName", ""))
        return self.named(name)

    def named(self, name: str) -> ServedQueue:
        if name not in self.queues:
            raise SqsError("QueueDoesNotExist", "The specified queue does not exist.")
        return self.queues[name]

    def by_arn(self, arn: object) -> ServedQueue:
        return self.named(str(arn).rpartition(":")[2])

    def call(self, action: str, given: CallParameters, faults: Faults) -> dict[str, Any]:
        """Carry out a call other than ReceiveMessage, and return its answer. Raises SqsError."""
        self._move(self._clock_ms())
        do = getattr(self, f"_{action}", None)
        if do is None:
            raise SqsError("InvalidAction", f"The action {action} is not valid for this endpoint.")
        if action.endswith("Batch"):
            return self._batch(action, given, do, faults)
        answer: dict[str, Any] = do(given)
        return answer

    def _batch(
        self,
        action: str,
        given: CallParameters,
        do: Callable[[CallParameters, CallParameters], dict[str, Any]],
        faults: Faults,
    ) -> dict[str, Any]:
        """Check the batch as a whole, then carry out each entry by itself with `do`; return the answer with good and
        bad entries."""
        entries, good, bad = check_entries(given.get("Entries")), [], []
        self.queue(given)
        if action == "SendMessageBatch" and sum(_size(entry) for entry in entries) > BYTES_MAX:
            raise SqsError("BatchRequestTooLong", f"Batch requests cannot be longer than {BYTES_MAX} bytes.")
        for entry in entries:
            try:
                if faults.entry(action):
                    raise SqsError("InternalError", "An internal error.", status=500)
                good.append({"Id": entry["Id"], **do(given, entry)})
            except SqsError as error:
                failure = {"Id": entry["Id"], "Code": error.code, "Message": error.text, "SenderFault": error.sender}
                bad.append(failure)
        return {"Successful": good, "Failed": bad} if bad else {"Successful": good}

    def _CreateQueue(self, given: CallParameters) -> dict[str, Any]:
        name, attributes = str(given.get("QueueName", "")), given.get("Attributes") or {}
        if not name or len(name) > 80 or not name.removesuffix(".fifo").replace("-", "").replace("_", "").isalnum():
            raise invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
        if (attributes.get("FifoQueue") == "true") != name.endswith(".fifo"):
            raise invalid("The name of a FIFO queue can only include alphanumeric characters, and must end with .fifo")
        known = self.queues.get(name)
        if known is None:
            arn = f"arn:aws:sqs:{self._region}:{ACCOUNT}:{name}"
            self.queues[name] = ServedQueue(name, arn, f"{self._url}/{ACCOUNT}/{name}", attributes, self._clock_ms())
            self.queues[name].tags.update(given.get("tags") or {})
        elif any(known.attributes.get(key) != str(value) for key, value in attributes.items()):
            text = "A queue already exists with the same name and a different value for attributes."
            raise SqsError("QueueNameExists", text)
        return {"QueueUrl": self.queues[name].url}

    def _GetQueueUrl(self, given: CallParameters) -> dict[str, Any]:
        return {"QueueUrl": self.queue({"QueueName": given.get("QueueName")}).url}

    def _ListQueues(self, given: CallParameters) -> dict[str, Any]:
        prefix = given.get("QueueNamePrefix") or ""
        return {"QueueUrls": [queue.url for name, queue in sorted(self.queues.items()) if name.startswith(prefix)]}

    def _DeleteQueue(self, given: CallParameters) -> dict[str, Any]:
        del self.queues[self.queue(given).name]
        return {}

    def _PurgeQueue(self, given: CallParameters) -> dict[str, Any]:
        self.queue(given).purge()
        return {}

    def _SetQueueAttributes(self, given: CallParameters) -> dict[str, Any]:
        self.queue(given).set(given.get("Attributes") or {}, self._clock_ms())
        return {}

    def _GetQueueAttributes(self, given: CallParameters) -> dict[str, Any]:
        queue, names = self.queue(given), given.get("AttributeNames") or []
        attributes = dict(queue.attributes) | queue.counts(self._clock_ms())
        attributes |= {
            "QueueArn": queue.arn,
            "CreatedTimestamp": str(queue.created_ms // 1000),
            "LastModifiedTimestamp": str(queue.modified_ms // 1000),
        }
        return {"Attributes": {name: value for name, value in attributes.items() if "All" in names or name in names}}

    def _TagQueue(self, given: CallParameters) -> dict[str, Any]:
        self.queue(given).tags.update(given.get("Tags") or {})
        return {}

    def _UntagQueue(self, given: CallParameters) -> dict[str, Any]:
        queue = self.queue(given)
        queue.tags = {name: value for name, value in queue.tags.items() if name not in (given.get("TagKeys") or ())}
        return {}

    def _ListQueueTags(self, given: CallParameters) -> dict[str, Any]:
        return {"Tags": dict(self.queue(given).tags)}

    def _ListDeadLetterSourceQueues(self, given: CallParameters) -> dict[str, Any]:
        arn = self.queue(given).arn
        return {"queueUrls": [queue.url for queue in self.queues.values() if _dead_arn(queue) == arn]}

    def _SendMessage(self, given: CallParameters) -> dict[str, Any]:
        return self._SendMessageBatch(given, given)

    def _SendMessageBatch(self, given: CallParameters, entry: CallParameters) -> dict[str, Any]:
        queue = self.queue(given)
        message = queue.send(entry, self._clock_ms())
        self._touched.add(queue.name)
        answer = {
            "MessageId": message.id,
            "MD5OfMessageBody": message.md5,
            "MD5OfMessageAttributes": message.md5_attributes,
            "SequenceNumber": f"{message.number:020}" if queue.fifo else None,
        }
        return {name: value for name, value in answer.items() if value is not None}

    def wait_s(self, given: CallParameters) -> int:
        """Return for how many seconds this receive may wait for a message. Raises SqsError."""
        asked = given.get("WaitTimeSeconds")
        if asked is None:
            return int(self.queue(given).attributes["ReceiveMessageWaitTimeSeconds"])
        return whole(asked, "WaitTimeSeconds", 0, WAIT_MAX_S)

    def receive(self, given: CallParameters, *, long_poll: bool) -> dict[str, Any]:
        """Receive visible messages without waiting, and return the answer; empty if there are none. Raises SqsError."""
        now_ms = self._clock_ms()
        self._move(now_ms)
        queue = self.queue(given)
        limit = min(whole(given.get("MaxNumberOfMessages", 1), "MaxNumberOfMessages", 1, 10), self.receive_max)
        asked = given.get("VisibilityTimeout", queue.attributes["VisibilityTimeout"])
        dead = self._dead_of(queue)
        visibility_s = whole(asked, "VisibilityTimeout", 0, VISIBILITY_MAX_S)
        messages = queue.receive(limit, visibility_s, now_ms, dead, long_poll=long_poll)
        if dead is not None:
            self._touched.add(dead.name)
        return {"Messages": [self._message_entry(queue, message, given) for message in messages]} if messages else {}

    def _message_entry(self, queue: ServedQueue, message: ServedMessage, given: CallParameters) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "MessageId": message.id,
            "ReceiptHandle": queue.handle(message),
            "MD5OfBody": message.md5,
            "Body": message.body,
        }
        asked = given.get("MessageSystemAttributeNames") or given.get("AttributeNames") or ()
        if asked:
            known = message.system_attributes(SENDER, queue.fifo)
            answer["Attributes"] = {name: value for name, value in known.items() if "All" in asked or name in asked}
        names = given.get("MessageAttributeNames") or ()
        chosen = {name: value for name, value in message.attributes.items() if _asked(name, names)}
        if chosen:
            answer["MessageAttributes"] = chosen
            answer["MD5OfMessageAttributes"] = message.md5_attributes
        return answer

    def _dead_of(self, queue: ServedQueue) -> ServedQueue | None:
        arn = _dead_arn(queue)
        return None if arn is None else self.queues.get(arn.rpartition(":")[2])

    def _DeleteMessage(self, given: CallParameters) -> dict[str, Any]:
        return self._DeleteMessageBatch(given, given)

    def _DeleteMessageBatch(self, given: CallParameters, entry: CallParameters) -> dict[str, Any]:
        queue = self.queue(given)
        queue.delete(entry.get("ReceiptHandle"), self._clock_ms())
        self._touched.add(queue.name)  # in a FIFO queue, the group's next message may become visible
        return {}

    def _ChangeMessageVisibility(self, given: CallParameters) -> dict[str, Any]:
        return self._ChangeMessageVisibilityBatch(given, given)

    def _ChangeMessageVisibilityBatch(self, given: CallParameters, entry: CallParameters) -> dict[str, Any]:
        queue = self.queue(given)
        seconds = whole(entry.get("VisibilityTimeout"), "VisibilityTimeout", 0, VISIBILITY_MAX_S)
        queue.change_visibility(entry.get("ReceiptHandle"), seconds, self._clock_ms())
        self._touched.add(queue.name)
        return {}

    def _StartMessageMoveTask(self, given: CallParameters) -> dict[str, Any]:
        source = self.by_arn(given.get("SourceArn"))
        sources = [queue for queue in self.queues.values() if _dead_arn(queue) == source.arn]
        if not sources:
            raise SqsError(
                "ResourceNotFoundException", "Source queue must be configured as a Dead Letter Queue.", status=404
            )
        if any(move.source is source and move.status == "RUNNING" for move in self.moves.values()):
            raise invalid("There is already a task running. Only one active task is allowed for a source queue arn.")
        to = self.by_arn(given["DestinationArn"]) if given.get("DestinationArn") else None
        rate = given.get("MaxNumberOfMessagesPerSecond")
        if rate is not None:
            whole(rate, "MaxNumberOfMessagesPerSecond", 1, 500)
        handle = str(uuid.uuid4())
        self.moves[handle] = MessageMove(source, to, rate, self._clock_ms())
        self._move(self._clock_ms())
        return {"TaskHandle": handle}

    def _ListMessageMoveTasks(self, given: CallParameters) -> dict[str, Any]:
        source = self.by_arn(given.get("SourceArn"))
        moves = [(handle, move) for handle, move in self.moves.items() if move.source is source]
        most = whole(given.get("MaxResults", 1), "MaxResults", 1, 10)
        return {"Results": [move.entry(handle) for handle, move in reversed(moves)][:most]}

    def _CancelMessageMoveTask(self, given: CallParameters) -> dict[str, Any]:
        move = self.moves.get(str(given.get("TaskHandle")))
        if move is None or move.status != "RUNNING":
            raise SqsError("ResourceNotFoundException", "Task does not exist.", status=404)
        move.status = "CANCELLED"
        return {"ApproximateNumberOfMessagesMoved": move.moved}

    def _move(self, now_ms: int) -> None:
        for move in self.moves.values():
            for queue in move.carry(now_ms, self.queues):
                self._touched.add(queue.name)


def _dead_arn(queue: ServedQueue) -> str | None:
    policy = queue.attributes.get("RedrivePolicy")
    return str(json.loads(policy)["deadLetterTargetArn"]) if policy else None


def _asked(name: str, asked: Sequence[str]) -> bool:
    return any(a in ("All", ".*", name) or (a.endswith(".*") and name.startswith(a[:-1])) for a in asked)


def _size(entry: CallParameters) -> int:
    try:
        return check_body(entry.get("MessageBody"), entry.get("MessageAttributes") or {})
    except SqsError:
        return 0  # a bad entry counts as empty here, as its own call refuses it
