"""The pipeline of a worker, step by step: claim, admit, run, classify, decide, settle, report.

The loop of the store thread, the Lambda handler and the test kit all take a batch of claimed messages through the
methods of `Pipeline`, in the order in which they stand here. They differ in how they claim, run and wait:

1. claim: `Store.exchange` gives deliveries; each becomes an `Execution`.
2. `reserve`: put off paused tasks, claim the idempotency keys, and ask flow control for permits.
3. `admit`: find the task, decode the body, ask `decide.admit`.
4. run and classify: an executor of executors/ runs the handler; `settlement.fault_of` classifies what it raised.
5. `decide`: ask `decide.decide`, and make the settlement.
6. settle: `Store.exchange` again, with `settlements`. `refuse` makes the settlement that replaces one which the store
   does not take.
7. `report`: count what became of the messages, emit events, write logs.
8. `follow`: enqueue the callbacks of batches that ended, or lost a member to a death; store the results of steps that
   added members, as these may run for longer than the messages with the results are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from ..chain import STEP_HEADER
from ..errors import EnqueueError, StoreError
from ..message import Ack, ClaimRequest, Message, Settled, Settlement
from ..store import Store
from ..task import TaskSpec
from .delivery_events import Reporter
from .execution import Execution, admit_execution, may_run
from .flow.controller import Flow
from .idempotency import KeyClaims
from .paused_tasks import PausedTasks
from .redrive_outcome import with_redrive_outcome
from .settlement import Outcome, deposited, outcome, refused


class Pipeline:
    """The steps that one worker takes with a batch of messages.

    `flow` and `keys` are None where no task needs them, `paused` where no task can be paused. `reporter` counts and
    reports the outcomes. `follow` puts the callbacks of batches; None where the store has none. `grown` are the steps
    to follow that added members. Only `admit` may run on another thread than the rest.
    """

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, TaskSpec],
        worker: str,
        *,
        flow: Flow | None,
        keys: KeyClaims | None,
        reporter: Reporter,
        follow: Callable[[Sequence[str]], None] | None = None,
        paused: PausedTasks | None = None,
    ) -> None:
        self._paused = paused
        self._store, self._tasks, self._worker = store, tasks, worker
        self._flow, self._keys, self._reporter, self._follow = flow, keys, reporter, follow
        self.has_keys: bool = keys is not None
        self.grown = set[str]()
        self._large_bodies = store.large_bodies
        self._texts = store.box is None  # True if texts of faults may be written unencrypted

    def note_claims(self, asks: Sequence[ClaimRequest], short: set[str], settled: bool) -> None:
        """Record for flow control which tasks have no due messages: those that were claimed from a `short` queue, which
        gave fewer than requested. Executions that ended (`settled`) may have enqueued more."""
        if self._flow is not None:
            self._flow.claims.note(asks, short, settled)

    def needs_body(self, message: Message) -> bool:
        """Return True if `reserve` needs the message's arguments, for its key or for the cost of its call."""
        task = self._tasks.get(message.task)
        if task is None or not may_run(message, self._tasks, self._store.now_ms()):
            return False
        return task.idempotency is not None or (self._flow is not None and self._flow.needs_body(message))

    def reserve(self, executions: Sequence[Execution]) -> list[Execution]:
        """Claim the idempotency keys and the permits of flow control. Returns the executions that are over without a
        run, such as duplicates. Others may get a refusal, which `admit` obeys."""
        asking = executions
        if self._paused is not None and self._paused.left.paused:
            asking = self._paused.put_off(executions)
        asking = asking if self._keys is None else self._keys.claim(asking)
        if self._flow is not None:
            self._flow.admit(asking)  # after the keys: a duplicate takes no permit
        may_end = self._keys is not None or (self._flow is not None and bool(self._flow.weighted))
        return [] if not may_end else [execution for execution in executions if execution.over]

    def admit(self, executions: Sequence[Execution]) -> list[Execution]:
        """Set the task and the arguments of executions that may run, and return these; the others get a decision."""
        store, tasks, now_ms = self._store, self._tasks, self._store.now_ms()
        return [execution for execution in executions if admit_execution(execution, tasks, store, now_ms)]

    def look_committed(self, executions: Sequence[Execution]) -> None:
        """Read which handlers have completed their idempotency keys themselves. Call this before `decide`. Raises
        StoreError."""
        if self._keys is not None:
            self._keys.look_committed(executions)

    def decide(self, executions: Sequence[Execution], now_ms: int) -> list[Outcome]:
        """Decide what follows for executions that ended or were not admitted; return their outcomes. The large bodies
        of follow-ups go to blob storage."""
        flow, worker = self._flow, self._worker
        outcomes = []
        for execution in executions:
            if execution.guards and flow is not None:
                flow.ended(execution)
            result = outcome(execution, now_ms, worker)
            if not result.plain:
                if self._large_bodies is not None and result.settlement.follow_ups:
                    task = self._tasks[result.delivery.message.task]
                    result = deposited(result, self._large_bodies, task, self._store.now_ms, worker)
                message = result.delivery.message
                if result.settlement.follow_ups and STEP_HEADER in message.headers and message.batch is not None:
                    self.grown.add(message.batch)
                if execution.complaint is not None and isinstance(result.settlement.decision, Ack):
                    text = f"{execution.delivery.message.id} is done without result: {execution.complaint}"
                    self._reporter.notice("result_dropped", text)
            outcomes.append(result)
        return outcomes

    def settlements(self, outcomes: Sequence[Outcome]) -> list[Settlement]:
        """Return the settlements for the store, with the redrive outcomes of messages that a redrive run moved."""
        now_ms = self._store.now_ms()
        return [
            o.settlement
            if o.delivery.message.run is None
            else with_redrive_outcome(o.delivery.message, o.settlement, now_ms, texts=self._texts)
            for o in outcomes
        ]

    def refuse(self, result: Outcome, error: EnqueueError | StoreError) -> Outcome:
        """Return the outcome that replaces one whose follow-ups the store refused: its handler has failed."""
        task = self._tasks[result.delivery.message.task]
        return refused(result, error, task, self._store.now_ms(), self._worker)

    def report(self, outcomes: Sequence[Outcome], answers: Sequence[Settled]) -> None:
        """Count and report these outcomes, given the store's answer to each."""
        self._reporter.settled(outcomes, answers)

    def follow(self, batches: Sequence[str]) -> None:
        """Put the callbacks that are due for these batches. If the store fails, a sweep puts them within seconds."""
        grown, self.grown = self.grown, set[str]()
        if self._follow is not None:
            with contextlib.suppress(StoreError):
                self._follow([*batches, *grown])

    def release(self, executions: Sequence[Execution]) -> None:
        """Stop counting these executions, which are decided, among the concurrent calls of their dependencies."""
        if self._flow is not None:
            for execution in executions:
                self._flow.left(execution)

    def tick(self) -> None:
        """Write the evidence of flow control, a few times a second."""
        if self._flow is not None:
            self._flow.tick()
