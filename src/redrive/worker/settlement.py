"""What a run's end comes to: its fault, and the settlement that goes to the store."""

from __future__ import annotations

from asyncio import CancelledError
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..decide import Policy, decide, tried_ms, with_fate
from ..errors import Cancelled, EnqueueError, LeaseLost, StoreError, Unsupported
from ..fault import Crash, Fault, Kind, classify, crash_fault
from ..flow.idempotency import Record, releasing
from ..idempotency.claim import NOT_COMMITTED, Claim
from ..message import (
    FAULTS_KEPT_EACH_END,
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
from .execution import Run

ERROR_MAX = 500  # characters of the header that tells an on_dead task of the fault
_DIE_LATER_MS = 30_000
_DEFAULT = Policy()


class Outcome(Struct, frozen=True, gc=False):
    """A settlement, and what an observer wants to know beside it."""

    settlement: Settlement
    delivery: Delivery
    run_s: float | None = None
    duplicate_of: str | None = None  # the message that ran for its idempotency key


def outcome(run: Run, now_ms: int, worker: str) -> Outcome:
    """What to settle a run with that finished, or was not admitted; its idempotency key ends in the same commit."""
    told = _outcome(run, now_ms, worker) if run.claim is None else _with_key(run, run.claim, now_ms, worker)
    settlement, message = told.settlement, run.delivery.message
    if message.crashes and settlement.fault is None and not isinstance(settlement.decision, Ack):
        evidence = _untold(message, run.crash, now_ms)
        return replace(told, settlement=replace(settlement, fault=evidence))
    return told


def _untold(message: Message, known: Crash | None, now_ms: int) -> Fault | None:
    """The evidence of a lease that ran out, kept with the next settlement that has room for it: nobody took it back, as
    its host may have died."""
    told = [f.crash for f in message.faults if f.crash is not None and f.at_ms >= message.life_ms]
    if len(told) >= min(message.crashes, FAULTS_KEPT_EACH_END):
        return None
    alone = message.crashes_alone > sum(crash.alone for crash in told)
    return crash_fault(known or Crash(cause="lease", alone=alone), now_ms)


def _outcome(run: Run, now_ms: int, worker: str) -> Outcome:
    if run.verdict is not None:
        return Outcome(_settlement(run.delivery, run.verdict, run.fault, run.task, now_ms, worker), run.delivery)
    run_s = run.finished_s - run.started_s if run.started_s else None
    extras = None if run.context is None else run.context.end()
    if run.stored is not None:
        return _as_before(run, run.stored, run_s)
    if run.fault is None:
        plain = extras is None and not run.delivery.message.keep_ms
        settlement = Settlement(run.delivery.receipt, run.gate.ack) if plain else _done(run, extras)
        return Outcome(settlement, run.delivery, run_s)
    failed = _failed(run.delivery.message, _with_run(run.fault, run_s), run.task.policy, now_ms)
    return Outcome(_settlement(run.delivery, *failed, run.task, now_ms, worker), run.delivery, run_s)


def _with_run(fault: Fault, run_s: float | None) -> Fault:
    """The fault, with how long the run took."""
    ran_ms = round(run_s * 1000) if run_s else 0
    return replace(fault, ran_ms=ran_ms) if ran_ms else fault


def _done(run: Run, extras: Extras | None) -> Settlement:
    receipt, ack, asked_ms = run.delivery.receipt, run.gate.ack, run.delivery.message.keep_ms
    degraded, follow_ups = (None, ()) if extras is None else (extras.degraded, tuple(extras.follow_ups))
    result = run.result if asked_ms else None
    keep_ms = None if ack.keep_ms is None else max(ack.keep_ms, asked_ms)
    return Settlement(receipt, Ack(degraded, keep_ms), None, follow_ups, result)


def _as_before(run: Run, record: Record, run_s: float | None) -> Outcome:
    """Done with the stored result. Its follow-ups were written when its key was completed."""
    ack, asked_ms = run.gate.ack, run.delivery.message.keep_ms
    keep_ms = None if ack.keep_ms is None else max(ack.keep_ms, asked_ms)
    result = record.result if asked_ms else None
    settlement = Settlement(run.delivery.receipt, Ack(record.degraded, keep_ms), None, (), result)
    return Outcome(settlement, run.delivery, run_s, None if run.started_s else record.owner)


def _with_key(run: Run, claim: Claim, now_ms: int, worker: str) -> Outcome:
    """An ack completes the key with what was returned, everything else frees it. What the handler has completed itself,
    in a transaction that was committed with its follow-ups, is done however its run ended."""
    if claim.done is not None:
        run.stored = claim.done
        return _outcome(run, now_ms, worker)
    if claim.committed and run.fault is None and run.verdict is None:
        run.fault = classify(RuntimeError(NOT_COMMITTED), run.task.rules)
    o = _outcome(run, now_ms, worker)
    decision = o.settlement.decision
    done = decision if isinstance(decision, Ack) else None
    swap = claim.releasing() if done is None else claim.completing(run.result, done.degraded, now_ms)
    return replace(o, settlement=replace(o.settlement, swaps=(swap,)))


def refused(o: Outcome, error: EnqueueError | StoreError, task: Any, now_ms: int, worker: str) -> Outcome:
    """What to settle with instead of an outcome whose follow-ups the store refuses: a run that ended so failed."""
    if not isinstance(o.settlement.decision, Ack):
        if isinstance(error, StoreError) and not isinstance(error, Unsupported):  # a death waits for what goes with it
            again = RetryAt(now_ms + _DIE_LATER_MS, "held", counts=False, held=True)
            return replace(o, settlement=Settlement(o.settlement.receipt, again, swaps=o.settlement.swaps))
        return replace(o, settlement=replace(o.settlement, follow_ups=()))
    failed = _failed(o.delivery.message, _with_run(classify(error), o.run_s), task.policy, now_ms)
    settlement = _settlement(o.delivery, *failed, task, now_ms, worker)
    freed = tuple(releasing(swap.key, swap.version) for swap in o.settlement.swaps)  # they were to be completed
    return replace(o, settlement=replace(settlement, swaps=freed))


def _failed(message: Message, fault: Fault, policy: Policy, now_ms: int) -> tuple[Decision, Fault | None]:
    """The decision, and the fault as far as the message knows it."""
    try:
        return _decided(message, fault, policy, now_ms)
    except Exception as error:  # a custom delay or override: neither the message nor the worker shall pay for its bug
        text = f"the retry policy failed on {fault.error or fault.kind.value} ({fault.text[:200]}): {error!r}"
        failed = classify(RuntimeError(text).with_traceback(error.__traceback__))
        return _decided(message, replace(failed, ran_ms=fault.ran_ms), _DEFAULT, now_ms)


def _decided(message: Message, fault: Fault, policy: Policy, now_ms: int) -> tuple[Decision, Fault | None]:
    decision = decide(message, fault, policy, now_ms)
    if isinstance(decision, RetryAt) and not decision.counts:
        return decision, None  # a snooze or an interruption is not a failure: nothing to remember
    sum_ms = tried_ms(message, fault, policy.retry, now_ms)
    return decision, replace(fault, tried_ms=sum_ms) if sum_ms else fault


def released(run: Run, now_ms: int) -> Outcome:
    """What to settle a run with that was never started, or cut off by the worker's end: free, due at once."""
    claim = run.claim
    # The key of what may still be running is not another's yet; this message has it back at once.
    freed = () if claim is None or run.started_s else (claim.releasing(),)
    again = RetryAt(now_ms, "interrupted", counts=False)
    return Outcome(Settlement(run.delivery.receipt, again, swaps=freed), run.delivery)


def _settlement(
    delivery: Delivery, decision: Decision, fault: Fault | None, task: Any, now_ms: int, worker: str
) -> Settlement:
    follow_ups: tuple[Draft, ...] = ()
    if isinstance(decision, DeadLetter | Quarantine):
        follow_ups = _compensation(delivery.message, decision, fault, task)
    if fault is not None:
        fault = with_fate(fault, delivery.message, decision, now_ms, worker)
    return Settlement(delivery.receipt, decision, fault, follow_ups)


def _compensation(
    message: Message, decision: DeadLetter | Quarantine, fault: Fault | None, task: Any
) -> tuple[Draft, ...]:
    """What `on_dead=` enqueues with the death: the dead one's very body, for another task."""
    if task is None or task.on_dead is None or message.cancel or decision.reason == "unroutable":
        return ()  # of what is unroutable here a newer worker knows what is to be done
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
        headers={**message.headers, **{f"redrive-dead-{name}": text for name, text in dead.items()}},
        correlation_id=message.correlation_id,
        causation_id=message.id,
        producer=task.app.producer,
        traceparent=message.traceparent,
    )
    return (draft,)


def fault_of(run: Run, error: BaseException) -> Fault:
    """What the run's end was: the handler's own failure, its timeout, or the worker's wish."""
    if isinstance(error, CancelledError | Cancelled | LeaseLost | TimeoutError) and run.cause is not None:
        if run.cause == "timeout":
            return classify(_timed_out(run, error))
        return Fault(Kind.INTERRUPTED, type(error).__name__, f"the worker ended it: {run.cause}")
    if isinstance(error, CancelledError):  # the handler's own coroutine cancelled itself
        text = "the handler ended with CancelledError, though nobody asked it to stop"
        return classify(RuntimeError(text).with_traceback(error.__traceback__))
    return classify(error, run.task.rules)


def _timed_out(run: Run, error: BaseException) -> TimeoutError:
    return TimeoutError(f"ran longer than its timeout of {run.task.policy.timeout_s:g} s").with_traceback(
        error.__traceback__
    )
