"""Work the messages of an SQS event in a Lambda function: claimed, admitted, run, decided and settled as in a worker.

Lambda receives the messages, and deletes those that are not reported as failed. So acks are left to Lambda, while all
other decisions are sent to SQS first, and their messages reported as failed.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...config import settings
from ...errors import (
    ConfigError,
    EnqueueError,
    Refused,
    StoreError,
    StoreUnavailable,
    Unsupported,
)
from ...message import Ack, Delivery, LeaseStatus
from ...registry import Registry
from ...task import TaskSpec
from ...worker.capacity import QueueLimit, WorkerLimit
from ...worker.delivery_events import Reporter
from ...worker.execution import Execution, WorkerQueue
from ...worker.flow.controller import Flow
from ...worker.idempotency import KeyClaims
from ...worker.pipeline import Pipeline
from ...worker.preflight import works
from ...worker.settlement import Outcome
from ..cloudwatch import prefix_of
from .events import (
    EventRecord,
    answer,
    is_whole,
    queue_named,
    queues_of,
    raw_of,
    records_of,
)
from .runs import LaneRunner, bounded

AGAIN_S = 0.2  # seconds until failed settlements are sent to the store again


class Batches:
    """Works the events of one Lambda function. It is created at the first event and kept for further ones."""

    def __init__(self, app: Registry, concurrency: int | None) -> None:
        self._app, self._store = app, app.store
        if not self._store.adopts:
            raise ConfigError(
                f"a Lambda function works messages of SQS, and this app's store is {self._store.traits.name}; give "
                "the app a URL such as sqs://eu-central-1/shop"
            )
        isolated = sorted(task.name for task in app.tasks.values() if task.isolation is not None)
        if isolated:
            raise ConfigError(
                f"task {isolated[0]!r} has isolation='process', and Lambda gives one process; leave it out, as each "
                "function is a process of its own, or work its queue with `redrive worker`"
            )
        for task in app.tasks.values():
            task.check_on_dead()
        self._prefix = prefix_of(app.url)
        self._concurrency = concurrency
        park_s = settings().park_for_s if app.park_for_s is None else app.park_for_s
        self._park_ms = math.ceil(park_s * 1000)
        self.name: str = worker_name()
        self._reporter = Reporter(app.events, self._store, self.name)
        self._flow = Flow(app, self._store, self.name, self._reporter.notice)
        self._runners: dict[int, LaneRunner] = {}
        self._vetted: set[str] = set()

    def handle(self, event: Any, left_s: Callable[[], float]) -> dict[str, Any]:
        """Work an event, and return the response for Lambda. `left_s` returns the seconds left of the invocation."""
        records = records_of(event)
        whole = [record for record in records if is_whole(record)]
        failed = [record for record in records if not is_whole(record)]
        if failed:
            text = f"{len(failed)} records are not as SQS writes them; they stay in their queue, the first as message "
            self._reporter.notice("odd_records", text + failed[0]["messageId"], "")
        for name, mine in queues_of(whole).items():
            queue = self._called(name)
            self._vet(queue, left_s())
            done = self._of_queue(queue, mine, name.endswith(".fifo"), left_s)
            failed += [record for record in mine if record["receiptHandle"] not in done]
        return answer(failed)

    def close(self) -> None:
        """Close the runners of all queues, which ends their threads."""
        for runner in self._runners.values():
            runner.close()

    def _called(self, name: str) -> str:
        """Return redrive's name of an SQS queue: as the app declares it, else the name after the prefix."""
        for declared in self._app.queues.values():
            if declared.sqs is not None and declared.sqs.removesuffix(".fifo") == name.removesuffix(".fifo"):
                return declared.name
        queue = queue_named(name, self._prefix)
        named = {task.queue for task in self._app.tasks.values()} | self._app.queues.keys()
        return f"{queue}.fifo" if name.endswith(".fifo") and f"{queue}.fifo" in named else queue

    def _vet(self, queue: str, function_s: float) -> None:
        """Run the preflight checks of a worker, at the first event of a queue. Raises Refused."""
        if queue in self._vetted:
            return
        with contextlib.suppress(StoreUnavailable):  # the checks are repeated at the next event
            for refused in self._store.preflight(works(self._app, [queue]), function_s=function_s):
                raise Refused(refused)
            self._vetted.add(queue)

    # -- one queue's messages

    def _of_queue(
        self, queue: str, records: Sequence[EventRecord], fifo: bool, left_s: Callable[[], float]
    ) -> set[str]:
        """Work the records of one queue; return the receipt handles that Lambda should delete."""
        left_at_first_s = left_s()
        end_s = time.monotonic() + left_at_first_s
        handles = [record["receiptHandle"] for record in records]
        lease_ms = max(1000, math.ceil(left_at_first_s * 1000))
        raws = [raw_of(record) for record in records]
        try:
            executions = self._admitted(
                queue, self._store.adopt(queue, raws, lease_ms=lease_ms, worker=self.name), end_s
            )
            lanes = _lanes(raws, executions) if fifo else [[execution] for execution in executions]
            return self._worked(queue, executions, lanes, handles, end_s) | self._store.let_go(handles)
        except BaseException:
            self._store.let_go(handles)
            raise

    def _worked(
        self,
        queue: str,
        executions: Sequence[Execution],
        lanes: list[list[Execution]],
        handles: Sequence[str],
        end_s: float,
    ) -> set[str]:
        """Run and settle the executions, suspects last; return the handles of messages already deleted."""
        odd = [lane for lane in lanes if any(execution.delivery.message.suspect for execution in lane)]
        self._work(queue, [lane for lane in lanes if lane not in odd] if odd else lanes, end_s)
        in_lanes = {id(execution) for lane in lanes for execution in lane}
        self._settle([execution for execution in executions if id(execution) not in in_lanes], [], end_s)
        if not odd:
            return set()
        gone = self._store.delete_adopted(handles)  # a suspect that kills this process redelivers no settled message
        try:
            for lane in odd:
                self._alone(queue, lane, end_s)
        except StoreError as error:  # the other messages are settled
            self._reporter.notice("store_unavailable", f"messages that may be poison come again, as {error}")
        return gone

    def _admitted(self, queue: str, deliveries: Sequence[Delivery], end_s: float) -> list[Execution]:
        """Make an execution for each delivery, in order. An execution that may not start gets its decision at once."""
        known = self._app.queues.get(queue)
        ack = Ack() if known is None else known.retention.ack
        most = len(deliveries) or 1
        of_batch = WorkerQueue(QueueLimit(most, WorkerLimit(most)), ack, self._park_ms)
        executions = [Execution(delivery, of_batch, math.inf) for delivery in deliveries]
        pipeline = self._pipeline(bounded(self._app.tasks, max(0.001, end_s - time.monotonic())))
        pipeline.reserve(executions)
        pipeline.admit([execution for execution in executions if not execution.over])
        return executions

    def _work(self, queue: str, lanes: Sequence[Sequence[Execution]], end_s: float) -> None:
        left_behind = self._runner(queue).run(lanes, end_s)
        self._settle([execution for lane in lanes for execution in lane], left_behind, end_s)

    def _alone(self, queue: str, lane: Sequence[Execution], end_s: float) -> None:
        """Run the executions of a lane with suspects while nothing else runs or waits to be settled."""
        marked = [
            execution
            for execution in lane
            if execution.decision is None and not execution.over and execution.delivery.message.suspect
        ]
        lease_ms = max(1000, math.ceil((end_s - time.monotonic()) * 1000))
        words = self._store.extend([execution.delivery.receipt for execution in marked], lease_ms=lease_ms, alone=True)
        for execution, word in zip(marked, words, strict=True):
            execution.alone = word is not LeaseStatus.LOST
        self._work(queue, [lane], end_s)

    def _runner(self, queue: str) -> LaneRunner:
        known = self._app.queues.get(queue)
        limit = self._concurrency or (10 if known is None else known.concurrency)
        if limit not in self._runners:
            self._runners[limit] = LaneRunner(limit)
        return self._runners[limit]

    # -- settling

    def _settle(self, executions: Sequence[Execution], left_behind: Sequence[Execution], end_s: float) -> None:
        """Settle these executions. A message that stays unsettled is delivered again when its visibility ends."""
        if not executions:
            return
        pipeline, now_ms = self._pipeline(self._app.tasks), self._store.now_ms()
        with contextlib.suppress(StoreError):  # without the store, an execution's own result decides
            pipeline.look_committed(executions)
        outcomes = pipeline.decide(executions, now_ms)
        for at, execution in enumerate(executions):
            if execution.claim is not None and execution in left_behind:  # it may still be running, so it keeps its key
                outcomes[at] = replace(outcomes[at], settlement=replace(outcomes[at].settlement, swaps=()))
        pipeline.release(executions)
        self._flow.tick()
        self._flow.close()
        most = self._store.traits.batch_max  # an event may have ten thousand messages
        for at in range(0, len(outcomes), most):
            self._exchange(pipeline, outcomes[at : at + most], end_s)

    def _exchange(self, pipeline: Pipeline, outcomes: Sequence[Outcome], end_s: float) -> None:
        while True:
            try:
                answers = self._store.exchange(pipeline.settlements(outcomes), []).settled
            except (EnqueueError, Unsupported) as error:
                if len(outcomes) > 1:  # every store refuses a batch with an invalid follow-up
                    for o in outcomes:
                        self._exchange(pipeline, [o], end_s)
                    return
                if not outcomes[0].settlement.follow_ups:
                    self._reporter.notice("store_unavailable", f"a message comes again, as {error}")
                    return
                outcomes = [pipeline.refuse(outcomes[0], error)]
            except StoreError as error:
                if time.monotonic() + AGAIN_S >= end_s:
                    self._reporter.notice("store_unavailable", f"{len(outcomes)} messages come again, as {error}")
                    return
                time.sleep(AGAIN_S)
            else:
                pipeline.report(outcomes, answers)
                return

    def _pipeline(self, tasks: Mapping[str, TaskSpec]) -> Pipeline:
        keys = KeyClaims(tasks, self._store, 0.0, 0.0)
        return Pipeline(self._store, tasks, self.name, flow=self._flow, keys=keys, reporter=self._reporter)


def _lanes(raws: Sequence[Mapping[str, Any]], executions: Sequence[Execution]) -> list[list[Execution]]:
    """Group the executions of a FIFO queue by message group, up to the group's first message that must wait."""
    of_handle = {execution.delivery.receipt.handle: execution for execution in executions}
    lanes: dict[str, list[Execution]] = {}
    blocked = set[str]()
    for raw in raws:
        group, execution = str(raw["Attributes"].get("MessageGroupId", "")), of_handle.get(raw["ReceiptHandle"])
        if execution is None:
            blocked.add(group)
        elif group not in blocked:
            lanes.setdefault(group, []).append(execution)
    return [*lanes.values()]


def worker_name() -> str:
    """Return this worker's name: the function's name, and the start of the id of its environment."""
    function = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "lambda")
    stream = os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME", str(os.getpid())).rpartition("]")[2]
    return f"{function}:{stream[:12]}"
