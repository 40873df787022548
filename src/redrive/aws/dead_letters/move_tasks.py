"""Move tasks of SQS: SQS itself moves all of a dead-letter queue back to its queue, at a fixed rate.

A move task cannot select messages, does not count redrives and checks no gates. If that suffices, no triage store is
needed.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...errors import ConfigError, Refused, StoreError
from ...message import Lane
from ...store.sqs import SqsQueueNames
from .sources import SqsEngine, sources_served

RATE_MAX = 500  # SQS's limit, in messages a second
RUNNING = "RUNNING"


class MoveTask(Struct, frozen=True, kw_only=True):
    """A move task as SQS reports it. `handle` is set while the task runs; the numbers are approximate."""

    queue: str
    source: str
    to: str | None = None
    status: str = RUNNING
    moved: int = 0
    to_move: int | None = None
    per_s: int | None = None
    started_ms: int = 0
    why: str = ""  # why the task failed
    handle: str | None = None


class DeadQueue:
    """The dead-letter queue of one queue of the store. Raises ConfigError if it has none."""

    queue: SqsQueueNames
    dead: SqsQueueNames

    def __init__(self, store: SqsEngine, queue: str) -> None:
        self._store = store
        queues = store.sqs_queues
        self.queue = queues.of(queue)
        self.dead = queues.by_policy(queue) or queues.resting(queue, Lane.DEAD)
        self._arn = self._arn_of(self.dead.url)

    def begin(self, rate: int | None = None) -> MoveTask:
        """Start a move task for the whole dead-letter queue, at `rate` messages a second or SQS's own rate.

        Raises Refused if a move task does not suffice or one is already running; then nothing is moved.
        """
        served = sources_served(self._store, self.dead.url)
        if self.queue.sqs_name not in served:
            raise Refused(
                f"{self.dead.sqs_name} is not the dead-letter queue of {self.queue.sqs_name} by a redrive policy, so "
                "SQS moves nothing out of it; use redrive dlq ingest and redrive dlq plan"
            )
        if len(served) > 1:
            raise Refused(
                f"{self.dead.sqs_name} serves {len(served)} queues ({', '.join(served)}), and one move task would "
                f"send all of it to {self.queue.sqs_name}; use redrive dlq ingest and redrive dlq plan"
            )
        if any(task.status == RUNNING for task in self.tasks()):
            raise Refused(
                f"a move task of {self.dead.sqs_name} runs already; redrive dlq move {self.queue.name} --watch"
            )
        given: dict[str, Any] = {} if rate is None else {"MaxNumberOfMessagesPerSecond": rate}
        self._call("StartMessageMoveTask", SourceArn=self._arn, DestinationArn=self._arn_of(self.queue.url), **given)
        return self.tasks()[0]

    def tasks(self) -> list[MoveTask]:
        """Return the last ten move tasks of the dead-letter queue, newest first."""
        answer = self._call("ListMessageMoveTasks", SourceArn=self._arn, MaxResults=10)
        return [self._move_task(result) for result in answer.get("Results") or ()]

    def cancel(self) -> MoveTask:
        """Cancel the running task; messages already moved stay moved. Raises Refused if no task is running."""
        task = next((task for task in self.tasks() if task.status == RUNNING and task.handle), None)
        if task is None:
            raise Refused(f"no move task of {self.dead.sqs_name} runs; nothing was changed")
        self._call("CancelMessageMoveTask", TaskHandle=task.handle)
        return self.tasks()[0]

    def _call(self, action: str, **parameters: Any) -> dict[str, Any]:
        try:
            return self._store.sqs.call(action, **parameters)
        except (StoreError, ConfigError) as error:
            if "InvalidAction" in str(error) or "UnsupportedOperation" in str(error):
                raise Refused(f"this endpoint has no move tasks ({action}); AWS itself does") from error
            raise

    def _arn_of(self, url: str) -> str:
        return self._store.sqs_queues.attributes(url, "QueueArn")["QueueArn"]

    def _move_task(self, result: dict[str, Any]) -> MoveTask:
        to = result.get("DestinationArn")
        return MoveTask(
            queue=self.queue.name,
            source=self.dead.sqs_name,
            to=None if to is None else str(to).rpartition(":")[2],
            status=str(result.get("Status", RUNNING)),
            moved=int(result.get("ApproximateNumberOfMessagesMoved") or 0),
            to_move=result.get("ApproximateNumberOfMessagesToMove"),
            per_s=result.get("MaxNumberOfMessagesPerSecond"),
            started_ms=int(result.get("StartedTimestamp") or 0),
            why=str(result.get("FailureReason") or ""),
            handle=result.get("TaskHandle"),
        )
