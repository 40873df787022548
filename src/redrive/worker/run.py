"""One delivery on its way through the worker, and the places it may have to wait for."""

from __future__ import annotations

import math
import threading
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from .._context import Context
from ..decide import Policy, decide, with_fate
from ..errors import Cancelled, LeaseLost
from ..fault import Fault, Kind, classify
from ..message import Ack, Decision, Delivery, Message, RetryAt, Settlement

if TYPE_CHECKING:
    from .crashes import Slots

_ACK = Ack()
_DEFAULT = Policy()


class Run(Struct, gc=False, eq=False):
    """A claimed message in this process. `cause` says why the worker wants it to end: timeout, lease, drain."""

    delivery: Delivery
    gate: Gate
    until_s: float  # time.monotonic() when the lease ends
    slot: int = -1
    task: Any = None  # the Task; from here on set by admission
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    verdict: Decision | None = None  # set where it was not admitted
    fault: Fault | None = None  # how its run ended, or why it was not admitted
    started_s: float = 0.0
    finished_s: float = 0.0
    context: Context | None = None
    cause: str | None = None
    handle: Any = None  # the asyncio task, if it is one; dropped at its end, as nothing collects the cycle

    def begin(self, slots: Slots | None) -> Context:
        """From here on a crash of this process counts against the message.

        Raises LeaseLost where it was ended, or its lease ran out, while it waited: another worker may be running it.
        """
        now = time.monotonic()
        if self.cause is not None or now >= self.until_s:
            self.cause = self.cause or "lease"
            raise LeaseLost(f"message {self.delivery.message.id} was not held to its start")
        self.started_s = now
        if slots is not None:
            slots.start(self.slot)
        context = self.context = Context(self.delivery.message, self.started_s + self.task.policy.timeout_s)
        if self.task.takes_context:
            self.args = (context, *self.args)
        return context

    @property
    def deadline_s(self) -> float:
        timeout_s: float = self.task.policy.timeout_s
        return self.started_s + timeout_s

    def end(self, cause: str) -> None:
        """Ask the handler to stop; the first cause stays. Only on the event loop's thread where it is an asyncio
        task."""
        if self.cause is not None or self.finished_s:
            return
        self.cause = cause
        if self.context is not None:
            self.context.stop(cause)
        if self.handle is not None and self.started_s:  # one not begun must still begin, to find that it may not
            self.handle.cancel()


class Hall:
    """What the gates of one worker have in common: how many runs may be under way over all its queues."""

    def __init__(self, total: int) -> None:
        self.free, self.closed = total, False
        self.gates: list[Gate] = []
        self.lock = threading.Lock()


class Gate:
    """Bounds how many runs of one queue are under way in this process; others wait here, claimed but not started.

    Where the total is what they wait for, the next place goes to the gate with the fewest runs for its `weight`; at
    equal shares, so always with infinite weights, to the one that was made first.
    """

    def __init__(self, limit: int, hall: Hall, weight: float = math.inf) -> None:
        self._limit, self._hall, self._weight = limit, hall, weight
        self._running = 0
        self._waiting: deque[Run] = deque()
        hall.gates.append(self)

    def enter(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Those of `runs`, in order, to start now; the others wait until `leave` hands them out."""
        with self._hall.lock:
            places = 0 if self._hall.closed else min(self._limit - self._running, self._hall.free)
            started, later = runs[:places], runs[places:]
            self._running += len(started)
            self._hall.free -= len(started)
            self._waiting.extend(later)
            return started

    def leave(self) -> Run | None:
        """A run ended; the one to start in its place, of this queue or another, if there is one."""
        with self._hall.lock:
            self._running -= 1
            ready = [gate for gate in self._hall.gates if gate._waiting and gate._running < gate._limit]
            if not ready or self._hall.closed:
                self._hall.free += 1
                return None
            gate = ready[0] if len(ready) == 1 else min(ready, key=lambda gate: gate._running / gate._weight)
            gate._running += 1
            return gate._waiting.popleft()

    def close(self) -> list[Run]:
        """Start nothing more, of any queue; the runs of this one that never started."""
        with self._hall.lock:
            self._hall.closed = True
            unstarted = list(self._waiting)
            self._waiting.clear()
            return unstarted


class Outcome(Struct, frozen=True, gc=False):
    """A settlement, and what an observer wants to know beside it."""

    settlement: Settlement
    delivery: Delivery
    run_s: float | None = None


def outcome(run: Run, now_ms: int, worker: str) -> Outcome:
    """What to settle a run with that finished, or was not admitted."""
    if run.verdict is not None:
        return Outcome(_settlement(run.delivery, run.verdict, run.fault, now_ms, worker), run.delivery)
    run_s = run.finished_s - run.started_s if run.started_s else None
    if run.fault is None:
        return Outcome(Settlement(run.delivery.receipt, _ACK), run.delivery, run_s)
    decision, fault = _decide(run.delivery.message, run.fault, run.task.policy, now_ms)
    return Outcome(_settlement(run.delivery, decision, fault, now_ms, worker), run.delivery, run_s)


def _decide(message: Message, fault: Fault, policy: Policy, now_ms: int) -> tuple[Decision, Fault]:
    """The policy's decision; where a function of its own fails, the default's, with that failure as the fault."""
    try:
        return decide(message, fault, policy, now_ms), fault
    except Exception as error:  # a custom delay or override: neither the message nor the worker shall pay for its bug
        text = f"the retry policy failed on {fault.error or fault.kind.value} ({fault.text[:200]}): {error!r}"
        failed = classify(RuntimeError(text).with_traceback(error.__traceback__))
        return decide(message, failed, _DEFAULT, now_ms), failed


def released(run: Run, now_ms: int) -> Outcome:
    """What to settle a run with that was never started, or cut off by the worker's end: free, due at once."""
    return Outcome(Settlement(run.delivery.receipt, RetryAt(now_ms, "interrupted", counts=False)), run.delivery)


def _settlement(delivery: Delivery, decision: Decision, fault: Fault | None, now_ms: int, worker: str) -> Settlement:
    free = isinstance(decision, RetryAt) and not decision.counts
    if fault is None or free:  # a snooze or an interruption is not a failure: nothing to remember
        return Settlement(delivery.receipt, decision)
    return Settlement(delivery.receipt, decision, with_fate(fault, delivery.message, decision, now_ms, worker))


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
