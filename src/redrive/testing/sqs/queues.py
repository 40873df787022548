"""A stand-in SQS queue as a value that changes with time: no sockets, no clock of its own.

Standard and FIFO, delays, visibility, retention, the in-flight cap, the dead-letter queue, deduplication. Every call
takes `now_ms`. Where SQS promises nothing, the simplest holds: a standard queue keeps its order and has no duplicates.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from .messages import (
    BYTES_MAX,
    DEDUP_MS,
    DELAY_MAX_S,
    IN_FLIGHT_MAX,
    RETENTION_S,
    VISIBILITY_MAX_S,
    WAIT_MAX_S,
    ServedMessage,
    SqsError,
    check_body,
    check_group,
    invalid,
    whole,
)

SENDER = "AIDATESTING"
DEFAULTS = {
    "VisibilityTimeout": "30",
    "DelaySeconds": "0",
    "MaximumMessageSize": str(BYTES_MAX),
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
}
_SETTABLE: Mapping[str, tuple[int, int]] = {
    "VisibilityTimeout": (0, VISIBILITY_MAX_S),
    "DelaySeconds": (0, DELAY_MAX_S),
    "MaximumMessageSize": (1024, BYTES_MAX),
    "MessageRetentionPeriod": RETENTION_S,
    "ReceiveMessageWaitTimeSeconds": (0, WAIT_MAX_S),
}
_TEXTS = (
    "Policy", "RedrivePolicy", "RedriveAllowPolicy", "FifoQueue", "ContentBasedDeduplication", "DeduplicationScope",
    "FifoThroughputLimit", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled",
)  # fmt: skip


class ServedQueue:
    """One queue. Visible messages are in `_line` (FIFO: by group, in `_ready`), the others in the heap `_times`."""

    modified_ms: int
    name: str
    arn: str
    url: str
    in_flight: int
    delayed: int

    def __init__(self, name: str, arn: str, url: str, attributes: Mapping[str, str], now_ms: int) -> None:
        self.name, self.arn, self.url = name, arn, url
        self.fifo: bool = name.endswith(".fifo")
        self.tags: dict[str, str] = {}
        self.created_ms = self.modified_ms = now_ms
        self.attributes: dict[str, str] = dict(DEFAULTS)
        self.set(attributes, now_ms)
        self.in_flight_max = IN_FLIGHT_MAX
        self.messages: dict[int, ServedMessage] = {}  # by message number
        self.in_flight = self.delayed = 0
        self._numbers = count(1)
        self._line: deque[tuple[int, int]] = deque()  # (number, turn) of the visible messages
        self._groups: dict[str, deque[int]] = {}  # FIFO: by group, the numbers of all its messages in order
        self._flying: Counter[str] = Counter()  # FIFO: by group, its number of messages in flight, which block it
        self._ready: dict[str, None] = {}  # FIFO: groups from which messages may be received, in turn
        self._times: list[tuple[int, int, int]] = []  # (ms, number, turn) at which a hidden message appears
        self._expiry: deque[int] = deque()  # message numbers in the order of sending
        self._dedup: dict[str, tuple[int, str, int]] = {}  # by deduplication id: (end in ms, message id, number)

    def set(self, attributes: Mapping[str, str], now_ms: int) -> None:
        """Set attributes. If SQS refuses one of them, raises SqsError and changes none."""
        for name, value in attributes.items():
            if name in _SETTABLE:
                whole(value, name, *_SETTABLE[name])
            elif name not in _TEXTS:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        self.attributes.update({name: str(value) for name, value in attributes.items()})
        self.modified_ms = now_ms

    def send(self, entry: Mapping[str, Any], now_ms: int) -> ServedMessage:
        """Add a message and return it; for a duplicate in a FIFO queue, return the first message. Raises SqsError if
        SQS refuses it."""
        attributes = entry.get("MessageAttributes") or {}
        size = check_body(entry.get("MessageBody"), attributes)
        if size > int(self.attributes["MaximumMessageSize"]):
            most = self.attributes["MaximumMessageSize"]
            raise invalid(f"One or more parameters are invalid. Reason: Message must be shorter than {most} bytes.")
        delay_s = self._delay_s(entry)
        group, dedup = entry.get("MessageGroupId"), entry.get("MessageDeduplicationId")
        if group is not None:
            check_group(group, "MessageGroupId")
        if self.fifo:
            dedup = self._dedup_of(entry)
            held = self._dedup.get(dedup)
            if held is not None and held[0] > now_ms:
                return ServedMessage(held[1], held[2], entry["MessageBody"], attributes, now_ms)
        elif dedup is not None:
            raise invalid("The request includes a parameter that is not valid for this queue type")
        message = ServedMessage(str(uuid.uuid4()), next(self._numbers), entry["MessageBody"], attributes, now_ms)
        message.group, message.dedup = group, dedup
        system = entry.get("MessageSystemAttributes") or {}
        if "AWSTraceHeader" in system:
            message.trace = system["AWSTraceHeader"].get("StringValue")
        if self.fifo and dedup is not None:
            self._dedup[dedup] = (now_ms + DEDUP_MS, message.id, message.number)
        self._add(message, delay_s * 1000, now_ms)
        return message

    def _delay_s(self, entry: Mapping[str, Any]) -> int:
        asked = entry.get("DelaySeconds")
        if asked is None:
            return int(self.attributes["DelaySeconds"])
        if self.fifo and int(asked):
            text = f"Value {asked} for parameter DelaySeconds is invalid. Reason: The request include parameter that is"
            raise invalid(f"{text} not valid for this queue type.")
        return whole(asked, "DelaySeconds", 0, DELAY_MAX_S)

    def _dedup_of(self, entry: Mapping[str, Any]) -> str:
        if entry.get("MessageGroupId") is None:
            raise SqsError("MissingParameter", "The request must contain the parameter MessageGroupId.")
        given = entry.get("MessageDeduplicationId")
        if given is not None:
            return check_group(given, "MessageDeduplicationId")
        if self.attributes.get("ContentBasedDeduplication") != "true":
            raise invalid(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided."
            )
        return hashlib.sha256(entry["MessageBody"].encode()).hexdigest()

    def _add(self, message: ServedMessage, delay_ms: int, now_ms: int) -> None:
        self.messages[message.number] = message
        self._expiry.append(message.number)
        if self.fifo:
            self._groups.setdefault(message.group or "", deque()).append(message.number)
        if delay_ms:
            self._wait(message, now_ms + delay_ms)
            self.delayed += 1
        else:
            self._stand(message)

    def _stand(self, message: ServedMessage) -> None:
        """Make a message visible; in a FIFO queue, its group becomes ready unless one of the group is in flight."""
        if not self.fifo:
            self._line.append((message.number, message.turn))
        elif not self._flying[message.group or ""]:
            self._ready[message.group or ""] = None

    def _wait(self, message: ServedMessage, until_ms: int) -> None:
        message.turn += 1
        message.hidden_until_ms = until_ms
        heapq.heappush(self._times, (until_ms, message.number, message.turn))

    def receive(
        self, limit: int, visibility_s: int, now_ms: int, dead: ServedQueue | None, *, long_poll: bool
    ) -> list[ServedMessage]:
        """Receive up to `limit` visible messages, and hide them for `visibility_s`; messages that were received too
        often move to `dead`. At the in-flight cap, raises SqsError; a long poll or a FIFO queue returns no messages
        instead."""
        self.turn(now_ms)
        if self.in_flight >= self.in_flight_max:
            if long_poll or self.fifo:
                return []
            raise SqsError("OverLimit", "The maximum number of in flight messages is reached.")
        limit = min(limit, self.in_flight_max - self.in_flight)
        most = self._received_max() if dead is not None else None
        messages: list[ServedMessage] = []
        for message in self._next_in_line(limit, messages):
            if most is not None and dead is not None and message.received >= most:
                self.take_out(message)
                dead.bury(message, self.arn, now_ms)
                continue
            message.received += 1
            message.received_ms = now_ms
            message.first_received_ms = message.first_received_ms or now_ms
            message.in_flight = True
            self.in_flight += 1
            if self.fifo:
                self._flying[message.group or ""] += 1
            self._wait(message, now_ms + visibility_s * 1000)
            messages.append(message)
        return messages

    def _next_in_line(self, limit: int, received: list[ServedMessage]) -> Iterator[ServedMessage]:
        return self._next_of_groups(limit, received) if self.fifo else self._next(limit, received)

    def _next(self, limit: int, received: list[ServedMessage]) -> Iterator[ServedMessage]:
        while self._line and len(received) < limit:
            number, turn = self._line.popleft()
            message = self.messages.get(number)
            if message is not None and message.turn == turn and not message.in_flight:
                yield message

    def _next_of_groups(self, limit: int, received: list[ServedMessage]) -> Iterator[ServedMessage]:
        """Yield messages group by group, as many of each as fit into `limit`; up to its first message in flight."""
        for name in list(self._ready):
            if len(received) >= limit:
                return
            del self._ready[name]
            for number in list(self._groups.get(name, ())):
                message = self.messages[number]
                if len(received) >= limit or message.hidden_until_ms:
                    break
                yield message
            if name in self._groups and not self._flying[name]:
                self._ready[name] = None  # no message of the group was taken: its head is delayed, or its messages died

    def _received_max(self) -> int | None:
        policy = self.attributes.get("RedrivePolicy")
        return int(json.loads(policy)["maxReceiveCount"]) if policy else None

    def bury(self, message: ServedMessage, from_arn: str, now_ms: int) -> None:
        """Add a message that died in the queue `from_arn`: a standard queue keeps the message's times, a FIFO queue
        sets new ones."""
        buried = ServedMessage(message.id, next(self._numbers), message.body, message.attributes, message.sent_ms)
        buried.group, buried.trace, buried.from_arn = message.group, message.trace, from_arn
        buried.received, buried.first_received_ms = message.received, message.first_received_ms
        if self.fifo:
            buried.sent_ms, buried.dedup = now_ms, message.id
        self._add(buried, 0, now_ms)

    def handle(self, message: ServedMessage) -> str:
        """Return the receipt handle of the message's last receive."""
        text = f"{self.name} {message.number} {message.received} {message.received_ms}"
        return base64.b64encode(text.encode()).decode()

    def _held(self, handle: object) -> tuple[ServedMessage | None, bool]:
        """Return the message of a handle (None if it is deleted), and True if the handle is of the message's last
        receive. Raises SqsError for a handle of no message here."""
        try:
            name, number, received, received_ms = base64.b64decode(str(handle), validate=True).decode().split(" ")
            key = int(number), int(received), int(received_ms)
        except ValueError:
            name, key = "", (0, 0, 0)
        if name != self.name:
            raise SqsError(
                "ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.'
            )
        message = self.messages.get(key[0])
        return message, message is not None and (message.received, message.received_ms) == key[1:]

    def delete(self, handle: object, now_ms: int) -> bool:
        """Delete the message of a handle; return True if this call deleted it. With an old handle the message stays; in
        a FIFO queue a handle whose visibility has ended is refused. Raises SqsError."""
        self.turn(now_ms)
        message, last = self._held(handle)
        if message is None:
            return False
        if self.fifo and not (last and message.in_flight):
            raise invalid(
                f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
            )
        if not last:
            return False
        self.take_out(message)
        return True

    def change_visibility(self, handle: object, seconds: int, now_ms: int) -> None:
        """Hide the message of a handle for `seconds` from now, 12 hours from its receive at most. Raises SqsError."""
        self.turn(now_ms)
        message, last = self._held(handle)
        if message is None or not last or not message.in_flight:
            text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not "
            raise SqsError("MessageNotInflight", f"{text}available for visibility timeout change.")
        if now_ms + seconds * 1000 > message.received_ms + VISIBILITY_MAX_S * 1000:
            raise invalid(
                f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the "
                f"message is beyond the limit [{VISIBILITY_MAX_S} seconds]."
            )
        self._wait(message, now_ms + seconds * 1000)
        self.turn(now_ms)

    def take_out(self, message: ServedMessage) -> None:
        name, flew = message.group or "", message.in_flight
        self._land(message)
        del self.messages[message.number]
        if self.fifo:
            self._groups[name].remove(message.number)
            if not self._groups[name]:
                del self._groups[name]
                self._ready.pop(name, None)
            elif flew and not self._flying[name]:
                self._ready[name] = None

    def _land(self, message: ServedMessage) -> None:
        """End a message's time in flight, or its delay, and update the counts."""
        if message.in_flight:
            self.in_flight -= 1
            if self.fifo:
                self._flying -= Counter((message.group or "",))
        elif message.hidden_until_ms:
            self.delayed -= 1
        message.in_flight, message.hidden_until_ms = False, 0
        message.turn += 1

    def turn(self, now_ms: int) -> None:
        """Move the queue on to `now_ms`: end delays and visibility timeouts, delete expired messages."""
        while self._times and self._times[0][0] <= now_ms:
            _, number, turn = heapq.heappop(self._times)
            message = self.messages.get(number)
            if message is not None and message.turn == turn:
                self._land(message)
                self._stand(message)
        retention_ms = int(self.attributes["MessageRetentionPeriod"]) * 1000
        while self._expiry:
            message = self.messages.get(self._expiry[0])
            if message is not None and message.sent_ms + retention_ms > now_ms:
                break
            self._expiry.popleft()
            if message is not None:
                self.take_out(message)

    def next_ms(self) -> int | None:
        """Return when the next hidden or delayed message becomes visible; None if there is none."""
        while self._times:
            at_ms, number, turn = self._times[0]
            message = self.messages.get(number)
            if message is not None and message.turn == turn:
                return at_ms
            heapq.heappop(self._times)
        return None

    def purge(self) -> None:
        for message in list(self.messages.values()):
            self.take_out(message)

    def counts(self, now_ms: int) -> dict[str, str]:
        """Return the queue's attributes that count messages."""
        self.turn(now_ms)
        waiting = len(self.messages) - self.in_flight - self.delayed
        return {
            "ApproximateNumberOfMessages": str(waiting),
            "ApproximateNumberOfMessagesNotVisible": str(self.in_flight),
            "ApproximateNumberOfMessagesDelayed": str(self.delayed),
        }
