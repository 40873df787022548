"""Send messages to SQS: in batches, cut to size, and with deduplication ids on FIFO queues."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...errors import ConfigError, StoreError
from ...message import RESTING, Lane, Message
from .client import BYTES_MAX, SEND, BatchJob, EntryRefused, Sqs, run
from .queues import SqsQueue
from .wire import STATE, VERBATIM, is_foreign, size_of, write

DELAY_MAX_S = 900  # longest delay that SQS allows for one message


class SendRequest(Struct):
    """A message to send, its queue, and how long it holds its unique key."""

    queue: SqsQueue
    message: Message
    key_for_ms: int = 0


class Sender:
    """Sends the messages of one store. Thread-safe. `prefix`: the store's prefix, for the source in the envelope."""

    def __init__(self, sqs: Sqs, *, prefix: str, now_ms: Callable[[], int]) -> None:
        self._sqs, self._prefix, self._now_ms = sqs, prefix, now_ms

    def sent(self, sends: Sequence[SendRequest]) -> list[StoreError | ConfigError | None]:
        """Send the messages; returns for each its error, or None if SQS accepted it."""
        jobs: dict[str, BatchJob] = {}
        sent: list[tuple[BatchJob, int]] = []
        now = self._now_ms()
        for send in sends:
            job = jobs.setdefault(send.queue.url, BatchJob(SEND, send.queue.url, [], []))
            entry, size = self._entry(send, now)
            job.entries.append(entry)
            job.sizes.append(size)
            sent.append((job, len(job.entries) - 1))
        run(self._sqs, [*jobs.values()])
        return [job.answers[at] for job, at in sent]

    def _entry(self, send: SendRequest, now: int) -> tuple[dict[str, Any], int]:
        message, wait_s = send.message, 0
        if message.lane is Lane.READY and message.due_ms is not None:
            wait_s = max(0, math.ceil((message.due_ms - now) / 1000))
            if wait_s <= (0 if send.queue.fifo else DELAY_MAX_S):
                message = replace(message, due_ms=message.enqueued_ms)  # the send's own delay suffices
        body, attributes, size = self._written(message)
        entry: dict[str, Any] = {"MessageBody": body}
        if attributes:
            entry["MessageAttributes"] = attributes
        if send.queue.fifo:
            entry["MessageGroupId"] = _group_id(message)
            entry["MessageDeduplicationId"] = _deduplication_id(message)
        else:
            if message.group:
                entry["MessageGroupId"] = _group_id(message)
            if wait_s:
                entry["DelaySeconds"] = min(wait_s, DELAY_MAX_S)
        return entry, size

    def _written(self, message: Message) -> tuple[str, dict[str, dict[str, Any]], int]:
        """Return the body and attributes to send, and their size in bytes; with less history if they are too large."""
        body, attributes = write(message, prefix=self._prefix)
        size = size_of(body, attributes)
        if size > BYTES_MAX:
            for smaller in _smaller(message):
                body, attributes = write(smaller, prefix=self._prefix)
                size = size_of(body, attributes)
                if size <= BYTES_MAX:
                    break
            if size > BYTES_MAX and message.lane in RESTING:  # drop the state: then at least a foreign message fits
                attributes = {name: value for name, value in attributes.items() if name not in (STATE, "reason")}
                size = size_of(body, attributes)
        return body, attributes, size


def _smaller(message: Message) -> Iterator[Message]:
    """Yield smaller and smaller forms of the message: with less history, and a foreign one with its original body."""
    if message.faults:
        yield (message := replace(message, faults=message.faults[-1:]))
    if is_foreign(message):
        yield (message := replace(message, headers={VERBATIM: "{}", **message.headers}))
    if message.faults:
        yield replace(message, faults=())


def is_final(error: StoreError | ConfigError) -> bool:
    """True if SQS would reject the same message again, as the error says."""
    return isinstance(error, EntryRefused) or "BatchRequestTooLong" in str(error)


def _deduplication_id(message: Message) -> str:
    """Return the id by which SQS drops a second copy within five minutes. A dead message has one id in each life."""
    once = f"{message.id}/{message.redrives}"
    return once if message.lane in RESTING else f"{once}/{message.fence}"


def _group_id(message: Message) -> str:
    """The group's name in a form that SQS accepts: up to 128 letters, digits and punctuation. Others are hashed."""
    group = message.group or message.id
    if len(group) <= 128 and group.isascii() and group.isprintable() and " " not in group:
        return group
    from hashlib import sha256

    return sha256(group.encode()).hexdigest()
