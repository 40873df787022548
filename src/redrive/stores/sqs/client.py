"""Calls of SQS: counted, translated into our errors, and many at once on a bounded number of threads."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ...awsapi.client import errors, failure, opened
from ...awsapi.http import QuickCalls

QUICK = ("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch")
THREADS = 12  # calls of one store under way at once, beside those that wait for messages
_METHODS = {
    "SendMessageBatch": "send_message_batch",
    "ReceiveMessage": "receive_message",
    "DeleteMessageBatch": "delete_message_batch",
    "ChangeMessageVisibilityBatch": "change_message_visibility_batch",
    "GetQueueUrl": "get_queue_url",
    "GetQueueAttributes": "get_queue_attributes",
    "SetQueueAttributes": "set_queue_attributes",
    "CreateQueue": "create_queue",
    "ListQueues": "list_queues",
    "ListDeadLetterSourceQueues": "list_dead_letter_source_queues",
    "PurgeQueue": "purge_queue",
    "StartMessageMoveTask": "start_message_move_task",
    "ListMessageMoveTasks": "list_message_move_tasks",
    "CancelMessageMoveTask": "cancel_message_move_task",
}


class Sqs:
    """One client for any number of threads. `requests` counts what was sent, by action, each try of its own. `boto3`:
    make each call with it, also those that are made all the time; so it is behind a proxy anyway."""

    def __init__(
        self, region: str, endpoint: str | None = None, *, connections: int = THREADS, boto3: bool = False
    ) -> None:
        self.requests: Counter[str] = Counter()
        found = opened("sqs", region=region, endpoint=endpoint, pool=connections)
        self._client = found.client
        self._quick: QuickCalls | None = None
        if found.direct and not boto3:
            self._quick = QuickCalls(found.client, found.credentials, counted=self._counted, ca=found.ca)
        self._client.meta.events.register("before-send.sqs", self._count)
        self._errors = errors()
        self._crew = Crew("redrive-sqs", THREADS)

    def _count(self, event_name: str, **_: Any) -> None:
        self._counted(event_name.rpartition(".")[2])

    def _counted(self, action: str) -> None:
        self.requests[action] += 1

    def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Raises StoreUnavailable, StoreError, ConfigError."""
        try:
            if self._quick is None or action not in QUICK:
                answer: dict[str, Any] = getattr(self._client, _METHODS[action])(**parameters)
            else:
                answer = self._quick.call(action, parameters)
        except self._errors as error:
            place = str(parameters.get("QueueUrl") or parameters.get("QueueName") or "").rpartition("/")[2]
            raise failure(error, f"SQS {action} {place}".rstrip()) from error
        return answer

    def all(self, works: Sequence[Callable[[], None]]) -> None:
        """Do all of this, as far as threads go at once, and return when it is done. The works raise nothing."""
        if len(works) == 1:
            works[0]()
        elif works:
            self._crew.all(works)

    def close(self) -> None:
        self._crew.close()
        if self._quick is not None:
            self._quick.close()
        self._client.close()


class Crew:
    """Threads that begin with the first work, and hold no program up that ends."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0
        self._closed = False

    def grow(self, most: int) -> None:
        """Let it have so many threads, if it may not have more already."""
        with self._lock:
            self._most = max(self._most, most)

    def start(self, work: Callable[[], None]) -> None:
        """Do this when a thread is free; once it is closed, here and now."""
        with self._lock:
            if self._closed:
                pass
            elif self._idle > 0:
                self._idle -= 1
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            if not self._closed:
                return self._works.put(work)
        work()

    def all(self, works: Sequence[Callable[[], None]]) -> None:
        """Do all of this and return when it is done."""
        left, lock, over = [len(works)], threading.Lock(), threading.Event()

        def one(work: Callable[[], None]) -> None:
            try:
                work()
            finally:
                with lock:
                    left[0] -= 1
                    last = left[0] == 0
                if last:
                    over.set()

        for work in works[1:]:
            self.start(lambda work=work: one(work))  # type: ignore[misc]
        one(works[0])
        over.wait()

    def _work(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work()
            except BaseException:  # it ends with its error, and another takes its place
                with self._lock:
                    self._threads -= 1
                raise
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """End the threads, each after the work it is at."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._works.put(None)
