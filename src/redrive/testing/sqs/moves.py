"""Move the messages of a dead-letter queue back, as StartMessageMoveTask does, by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .queues import ServedQueue

RATE_MAX = 500


class MessageMove:
    """One task that moves messages. A moved message gets a new id and sent time, as on SQS."""

    status: str
    source: ServedQueue
    moved: int

    def __init__(self, source: ServedQueue, to: ServedQueue | None, rate: int | None, now_ms: int) -> None:
        self.source, self._to, self._rate, self._started_ms = source, to, rate, now_ms
        self.status, self.moved = "RUNNING", 0
        self.planned: int = int(source.counts(now_ms)["ApproximateNumberOfMessages"])

    def carry(self, now_ms: int, queues: Mapping[str, ServedQueue]) -> list[ServedQueue]:
        """Move the messages that are due by the task's rate; return the queues that got some."""
        if self.status != "RUNNING":
            return []
        due = int((now_ms - self._started_ms) / 1000 * (self._rate or RATE_MAX)) - self.moved
        moved: list[ServedQueue] = []
        for message in list(self.source.messages.values())[: max(0, due)]:
            if message.hidden_until_ms:
                continue
            to = self._to or queues.get(str(message.from_arn).rpartition(":")[2])
            if to is None:
                self.status = "FAILED"
                break
            entry: dict[str, Any] = {"MessageBody": message.body, "MessageAttributes": message.attributes}
            if to.fifo:
                entry |= {"MessageGroupId": message.group, "MessageDeduplicationId": message.id}
            to.send(entry, now_ms)
            self.source.take_out(message)
            self.moved += 1
            moved.append(to)
        if self.status == "RUNNING" and self.moved >= self.planned:
            self.status = "COMPLETED"
        return moved

    def entry(self, handle: str) -> dict[str, Any]:
        """Return the entry for this task in the answer of ListMessageMoveTasks."""
        entry = {
            "TaskHandle": handle if self.status == "RUNNING" else None,
            "Status": self.status,
            "SourceArn": self.source.arn,
            "DestinationArn": None if self._to is None else self._to.arn,
            "MaxNumberOfMessagesPerSecond": self._rate,
            "ApproximateNumberOfMessagesMoved": self.moved,
            "ApproximateNumberOfMessagesToMove": self.planned,
            "StartedTimestamp": self._started_ms,
        }
        return {name: value for name, value in entry.items() if value is not None}
