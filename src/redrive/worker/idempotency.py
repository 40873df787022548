"""Claim the idempotency keys of a claimed batch, in one write and one read on the store thread, before any message
runs. The settlement of a message completes or frees its key (settlement.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..decide import Refusal
from ..errors import KeyReused, StoreError
from ..fault import classify
from ..flow.idempotency import Busy, Finished, Other, deferral, look_again_ms, prolonged, taking
from ..idempotency import (
    Claim,
    ClaimAnswer,
    KeyRequest,
    acquire,
    is_completed,
    key_request,
    read_all,
)
from ..message import DeadLetter, Deferral
from .bodies import arguments
from .execution import Execution, may_run

if TYPE_CHECKING:
    from ..store import Store
    from ..task import TaskSpec

AGAIN_MS = 1_000  # ms after which a message is retried if its key could not be read


class KeyClaims:
    """The idempotency keys of one worker's messages. A claim of a key holds for the task's timeout, plus grace (which a
    handler may take beyond it) and lease (until it starts, or the claim is renewed)."""

    def __init__(self, tasks: Mapping[str, TaskSpec], store: Store, grace_s: float, lease_s: float) -> None:
        self._tasks, self._store = tasks, store
        self._slack_ms, self._lease_ms = math.ceil((grace_s + lease_s) * 1000), math.ceil(lease_s * 1000)

    def __bool__(self) -> bool:
        return any(task.idempotency is not None for task in self._tasks.values())

    def claim(self, executions: Sequence[Execution]) -> list[Execution]:
        """Claim the keys of these executions; return those that may run, in order. Each other one gets a stored result,
        a refusal, a decision or a fault."""
        now_ms = self._store.now_ms()
        asking = [
            (execution, w)
            for execution in executions
            if self._asks(execution, now_ms) and (w := self._wanted(execution, now_ms)) is not None
        ]
        if asking:
            try:
                answers = acquire(self._store, [w for _, w in asking], now_ms)
            except StoreError as error:  # claims that were written are found by the retries
                for execution, _ in asking:
                    reason = Deferral("idempotency", f"the store failed: {error}"[:200])
                    execution.refusal = Refusal(now_ms + AGAIN_MS, reason)
            else:
                for (execution, w), answer in zip(asking, answers, strict=True):
                    self._answer(execution, w, answer, now_ms)
        return [execution for execution in executions if execution.refusal is None and not execution.over]

    def renew(self, executions: Sequence[Execution]) -> list[Execution]:
        """Extend the claims of executions that have not started, so that each could start now; return those that lost
        their key. A started execution ends before its claim does."""
        now_ms = self._store.now_ms()
        old = [
            execution
            for execution in executions
            if execution.claim is not None and self._left_ms(execution.claim, now_ms) < -self._lease_ms // 3
        ]
        if not old:
            return []
        claims = [execution.claim for execution in old if execution.claim is not None]
        records = [prolonged(c.record, now_ms, c.wanted.hold_ms) for c in claims]
        cells = [c.wanted.cell for c in claims]
        won = self._store.cells.swap(
            [taking(c.wanted.cell, c.version, r, now_ms) for c, r in zip(claims, records, strict=True)]
        )
        versions, stored = read_all(self._store, cells)
        lost = []
        for execution, claim, record, written in zip(old, claims, records, won, strict=True):
            if written and stored[claim.wanted.cell] == record:
                claim.version, claim.record = versions[claim.wanted.cell], record
            else:
                lost.append(execution)
        return lost

    def _left_ms(self, claim: Claim, now_ms: int) -> int:
        """Return how many ms later the claim ends than a claim that is made now; negative if it ends earlier."""
        return claim.record.until_ms - now_ms - claim.wanted.hold_ms

    def look_committed(self, executions: Sequence[Execution]) -> None:
        """Note the executions whose key is committed: the handler itself completed it, and may have died before it
        could report that."""
        claims = [
            execution.claim
            for execution in executions
            if execution.claim is not None and (execution.claim.committed or _died(execution))
        ]
        if not claims:
            return
        _, records = read_all(self._store, [claim.wanted.cell for claim in claims])
        for claim in claims:
            record = records[claim.wanted.cell]
            claim.done = record if is_completed(claim, record) else None

    def _asks(self, execution: Execution, now_ms: int) -> bool:
        """Return True if the execution's task has an idempotency key, and nothing else prevents a run."""
        message = execution.delivery.message
        task = self._tasks.get(message.task)
        return task is not None and task.idempotency is not None and may_run(message, self._tasks, now_ms)

    def _wanted(self, execution: Execution, now_ms: int) -> KeyRequest | None:
        """Return the request for the execution's key; None if the execution has ended without one."""
        message = execution.delivery.message
        task = self._tasks[message.task]
        decoded = arguments(execution, task, now_ms)
        if decoded is None:
            return None
        args, kwargs = decoded
        hold_ms = math.ceil(task.policy.timeout_s * 1000) + self._slack_ms
        try:
            return key_request(task, args, kwargs, message.id, message.fence, hold_ms)
        except Exception as error:  # an error of the key's function counts as a failure of the handler
            execution.fault, execution.over = classify(error, task.rules), True
            return None

    def _answer(self, execution: Execution, w: KeyRequest, answer: ClaimAnswer, now_ms: int) -> None:
        message = execution.delivery.message
        match answer:
            case Claim():
                execution.claim = answer
            case Busy():
                at_ms = look_again_ms(answer, message.held_ms, now_ms)
                execution.refusal = Refusal(at_ms, deferral(answer, message.task))
            case Finished(record):
                execution.stored, execution.over = record, True
            case Other(record):
                error = KeyReused(message.task, w.key, record.owner)
                execution.decision, execution.fault, execution.over = (
                    DeadLetter("permanent", str(error)),
                    classify(error),
                    True,
                )


def _died(execution: Execution) -> bool:
    """Return True if the execution's child process died, even because the worker killed it."""
    return execution.fault is not None and execution.fault.error == "ProcessDied"
