"""Decide what follows when an execution ends: classify its fault, and make the settlement that goes to the store."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ..chain import NEXT_HEADER, STEP_HEADER, next_step
from ..decide import Policy, decide, tried_ms, with_fate
from ..errors import Cancelled, EnqueueError, LeaseLost, Reject, StoreError, Unreadable, Unsupported
from ..fault import Crash, Fault, Kind, classify, crash_fault
from ..flow.idempotency import KeyRecord, releasing
from ..idempotency import NOT_COMMITTED, Claim
from ..ids import new_id
from ..message import (
    FAULTS_KEPT_EACH_END,
    HELD,
    Ack,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    Message,
    Quarantine,
    RetryAt,
    Settlement,
)
from ..run_context import Extras
from ..store import LargeBodies
from ..task import TaskSpec
from .execution import Execution

ERROR_MAX = 500  # characters of the fault in the header of an on_dead task's message
_DIE_LATER_MS = 30_000
_DEFAULT = Policy()


class Outcome(Struct, frozen=True, gc=False):
    """A settlement, with facts for observers. `plain`: the handler returned in the first life of the message, without
    an earlier crash, and the settlement is an ack and nothing else. Most outcomes are plain."""

    settlement: Settlement
    delivery: Delivery
    run_s: float | None = None
    duplicate_of: str | None = None  # the id of the message whose run completed the idempotency key
    started_s: float = 0.0  # time.monotonic() at the start of the handler; 0.0 if it did not start
    plain: bool = False


def outcome(execution: Execution, now_ms: int, worker: str) -> Outcome:
    """Return the outcome of an execution that ended or was not admitted; it completes or frees the key, too."""
    delivery, started_s = execution.delivery, execution.started_s
    if execution.plain and started_s and execution.fault is None:
        context = execution.context
        if context is None or context.end() is None:
            settlement, run_s = Settlement(delivery.receipt, execution.queue.ack), execution.finished_s - started_s
            return Outcome(settlement, delivery, run_s, None, started_s, True)
    if not started_s and execution.decision is None and execution.fault is None and not execution.over:
        return released(execution, now_ms)  # the handler never began, so an ack would lose the message
    result = (
        _outcome(execution, now_ms, worker)
        if execution.claim is None
        else _with_key(execution, execution.claim, now_ms, worker)
    )
    settlement, message = result.settlement, delivery.message
    if message.crashes and settlement.fault is None and not isinstance(settlement.decision, Ack):
        evidence = _unrecorded(message, execution.crash, now_ms)
        return replace(result, settlement=replace(settlement, fault=evidence))
    return result


def _unrecorded(message: Message, known: Crash | None, now_ms: int) -> Fault | None:
    """Return the evidence of an expired lease (`known`: this worker's), if the faults have room for it and no worker
    recovered the lease, for example because its host died."""
    known_crashes = [f.crash for f in message.faults if f.crash is not None and f.at_ms >= message.life_ms]
    if len(known_crashes) >= min(message.crashes, FAULTS_KEPT_EACH_END):
        return None
    alone = message.crashes_alone > sum(crash.alone for crash in known_crashes)
    return crash_fault(known or Crash(cause="lease", alone=alone), now_ms)


def _outcome(execution: Execution, now_ms: int, worker: str) -> Outcome:
    if execution.decision is not None:
        return Outcome(
            _settlement(execution.delivery, execution.decision, execution.fault, execution.task, now_ms, worker),
            execution.delivery,
        )
    run_s = execution.finished_s - execution.started_s if execution.started_s else None
    extras = None if execution.context is None else execution.context.end()
    if execution.stored is not None:
        return _as_before(execution, execution.stored, run_s)
    if execution.fault is None and NEXT_HEADER in execution.delivery.message.headers:
        extras = _with_next_step(execution, extras, now_ms)
    message, why = execution.delivery.message, execution.complaint
    if why is not None and execution.fault is None and STEP_HEADER in message.headers and message.batch is not None:
        execution.fault = classify(Reject(f"it ran, and later steps of its workflow cannot get its result: {why}"))
    if execution.fault is None:
        return Outcome(_done(execution, extras), execution.delivery, run_s, None, execution.started_s)
    failed = _failed(execution.delivery.message, _with_run(execution.fault, run_s), execution.task.policy, now_ms)
    settlement = _settlement(execution.delivery, *failed, execution.task, now_ms, worker)
    return Outcome(settlement, execution.delivery, run_s, None, execution.started_s)


def _with_next_step(execution: Execution, extras: Extras | None, now_ms: int) -> Extras | None:
    """Add the next step of the chain to the follow-ups. A result that cannot be passed on fails the run for good."""
    step, why = None, execution.complaint
    if why is None:
        try:
            step = next_step(execution.delivery.message, execution.result, new_id(now_ms))
        except Unreadable as error:
            why = str(error)
    if why is not None:
        execution.fault = classify(Reject(f"it ran, and the next step of its chain cannot get its result: {why}"))
        return extras
    extras = extras or Extras()
    return extras if step is None else replace(extras, follow_ups=[*extras.follow_ups, step])


def _with_run(fault: Fault, run_s: float | None) -> Fault:
    """Return the fault with the duration of the handler's run added."""
    ran_ms = round(run_s * 1000) if run_s else 0
    return replace(fault, ran_ms=ran_ms) if ran_ms else fault


def _done(execution: Execution, extras: Extras | None) -> Settlement:
    receipt, ack, asked_ms = execution.delivery.receipt, execution.queue.ack, execution.delivery.message.keep_ms
    degraded, follow_ups = (None, ()) if extras is None else (extras.degraded, tuple(extras.follow_ups))
    result = execution.result if asked_ms else None
    keep_ms = None if ack.keep_ms is None else max(ack.keep_ms, asked_ms)
    return Settlement(receipt, Ack(degraded, keep_ms), None, follow_ups, result)


def _as_before(execution: Execution, record: KeyRecord, run_s: float | None) -> Outcome:
    """Return a duplicate's outcome: done, with the result in its key's `record`, which was written with the
    follow-ups."""
    ack, asked_ms = execution.queue.ack, execution.delivery.message.keep_ms
    keep_ms = None if ack.keep_ms is None else max(ack.keep_ms, asked_ms)
    result = record.result if asked_ms else None
    settlement = Settlement(execution.delivery.receipt, Ack(record.degraded, keep_ms), None, (), result)
    return Outcome(settlement, execution.delivery, run_s, None if execution.started_s else record.owner)


def _with_key(execution: Execution, claim: Claim, now_ms: int, worker: str) -> Outcome:
    """Return the outcome of an execution with a key: an ack completes the key, other decisions free it. If the handler
    has completed the key in a transaction with its follow-ups, the message is done however it ended."""
    if claim.done is not None:
        execution.stored = claim.done
        return _outcome(execution, now_ms, worker)
    if claim.committed and execution.fault is None and execution.decision is None:
        execution.fault = classify(RuntimeError(NOT_COMMITTED), execution.task.rules)
    o = _outcome(execution, now_ms, worker)
    decision = o.settlement.decision
    done = decision if isinstance(decision, Ack) else None
    swap = claim.releasing() if done is None else claim.completing(execution.result, done.degraded, now_ms)
    return replace(o, settlement=replace(o.settlement, swaps=(swap,)))


def deposited(o: Outcome, large: LargeBodies, task: TaskSpec, now_ms: Callable[[], int], worker: str) -> Outcome:
    """Put the large bodies of follow-ups in blob storage; if that fails, return the outcome of a failed handler."""
    try:
        follow_ups = tuple(large.deposit(o.settlement.follow_ups))
    except (EnqueueError, StoreError) as error:
        return refused(o, error, task, now_ms(), worker)
    return replace(o, settlement=replace(o.settlement, follow_ups=follow_ups))


def refused(o: Outcome, error: EnqueueError | StoreError, task: TaskSpec, now_ms: int, worker: str) -> Outcome:
    """Return the outcome that replaces one whose follow-ups the store refused: a handler that returned has failed."""
    if not isinstance(o.settlement.decision, Ack):
        if isinstance(error, StoreError) and not isinstance(error, Unsupported):  # a death waits for its follow-ups
            again = RetryAt.deferred(now_ms + _DIE_LATER_MS, "held")
            return replace(o, settlement=Settlement(o.settlement.receipt, again, swaps=o.settlement.swaps))
        return replace(o, settlement=replace(o.settlement, follow_ups=()))
    failed = _failed(o.delivery.message, _with_run(classify(error), o.run_s), task.policy, now_ms)
    settlement = _settlement(o.delivery, *failed, task, now_ms, worker)
    freed = tuple(releasing(swap.key, swap.version) for swap in o.settlement.swaps)  # free the keys instead
    return replace(o, settlement=replace(settlement, swaps=freed))


def _failed(message: Message, fault: Fault, policy: Policy, now_ms: int) -> tuple[Decision, Fault | None]:
    """Return the decision about a handler's fault, and the fault to store with the message."""
    try:
        return _decided(message, fault, policy, now_ms)
    except Exception as error:  # a bug in a custom delay or override must not lose the message or the worker
        text = f"the retry policy failed on {fault.error or fault.kind.value} ({fault.text[:200]}): {error!r}"
        failed = classify(RuntimeError(text).with_traceback(error.__traceback__))
        return _decided(message, replace(failed, ran_ms=fault.ran_ms), _DEFAULT, now_ms)


def _decided(message: Message, fault: Fault, policy: Policy, now_ms: int) -> tuple[Decision, Fault | None]:
    decision = decide(message, fault, policy, now_ms)
    if isinstance(decision, RetryAt) and not decision.counts:
        return decision, None  # a snooze or an interruption stores no fault
    sum_ms = tried_ms(message, fault, policy.retry, now_ms)
    return decision, replace(fault, tried_ms=sum_ms) if sum_ms else fault


def released(execution: Execution, now_ms: int) -> Outcome:
    """Release an execution that never started, or that the end of the worker interrupted: uncounted, due at once. One
    that never started keeps its due time, and so its place in the queue."""
    claim = execution.claim
    # The key of a started handler stays claimed, as it may still be running; a repeat of this message gets it.
    freed = () if claim is None or execution.started_s else (claim.releasing(),)
    due_ms = now_ms if execution.started_s else min(now_ms, execution.delivery.due_ms or now_ms)
    again = RetryAt.released(due_ms, "interrupted")
    return Outcome(Settlement(execution.delivery.receipt, again, swaps=freed), execution.delivery)


def _settlement(
    delivery: Delivery, decision: Decision, fault: Fault | None, task: TaskSpec | None, now_ms: int, worker: str
) -> Settlement:
    follow_ups: tuple[Draft, ...] = ()
    if isinstance(decision, DeadLetter | Quarantine):
        follow_ups = _compensation(delivery.message, decision, fault, task)
    if fault is not None:
        fault = with_fate(fault, delivery.message, decision, now_ms, worker)
        due_ms = first_due_ms(delivery)
        fault = fault if due_ms == delivery.message.life_ms else replace(fault, due_ms=due_ms)
        fault = replace(fault, release=task.app.release) if task is not None and task.app.release else fault
    return Settlement(delivery.receipt, decision, fault, follow_ups)


def _compensation(
    message: Message, decision: DeadLetter | Quarantine, fault: Fault | None, task: TaskSpec | None
) -> tuple[Draft, ...]:
    """Return the message, if any, that the task's `on_dead=` enqueues: the same body, for another task."""
    if task is None or task.on_dead is None or message.cancel or decision.reason in ("unroutable", HELD):
        return ()  # a newer worker may know the task of an unroutable message, and a person decides about a held one
    error = decision.why if fault is None else f"{fault.error}: {fault.text}"
    dead = {"id": message.id, "reason": decision.reason, "error": error[:ERROR_MAX].replace("\0", "")}
    other = task.app.tasks[task.on_dead]
    draft = Draft(
        task=other.name,
        queue=other.queue,
        body=message.body,
        content=message.content,
        version=message.version,
        keep_ms=other.keep_ms,
        headers={
            **{name: text for name, text in message.headers.items() if name not in (NEXT_HEADER, STEP_HEADER)},
            **{f"redrive-dead-{name}": text for name, text in dead.items()},
        },
        correlation_id=message.correlation_id,
        causation_id=message.id,
        producer=task.app.producer,
        traceparent=message.traceparent,
    )
    return (draft,)


def first_due_ms(delivery: Delivery) -> int:
    """Return when the message was first due in its present life, less the time for which flow control deferred its
    first run."""
    message = delivery.message
    for fault in message.faults:
        if fault.at_ms >= message.life_ms:
            return fault.due_ms or message.life_ms
    if message.attempt <= 1 and not message.crashes and delivery.due_ms:
        return delivery.due_ms - message.held_ms
    return message.life_ms


def fault_of(execution: Execution, error: BaseException) -> Fault:
    """Classify the `error` with which a handler ended: its own failure, its timeout, or the worker's request."""
    if isinstance(error, CancelledError | Cancelled | LeaseLost | TimeoutError) and execution.cause is not None:
        if execution.cause == "timeout":
            return classify(_timed_out(execution, error))
        return Fault(Kind.INTERRUPTED, type(error).__name__, f"the worker ended it: {execution.cause}")
    if isinstance(error, CancelledError):  # the handler's own coroutine raised it, without a request to stop
        text = "the handler ended with CancelledError, though it was not asked to stop"
        return classify(RuntimeError(text).with_traceback(error.__traceback__))
    return classify(error, execution.task.rules)


def _timed_out(execution: Execution, error: BaseException) -> TimeoutError:
    return TimeoutError(f"ran longer than its timeout of {execution.task.policy.timeout_s:g} s").with_traceback(
        error.__traceback__
    )
