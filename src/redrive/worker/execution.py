"""One execution of a claimed message in this process, and the limits on how many run at once.

settlement.py decides what follows when it ends.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..decide import Refusal
from ..errors import EncodeError, LeaseLost
from ..fault import Crash, Fault
from ..message import Ack, Decision, Delivery
from ..run_context import Context

if TYPE_CHECKING:
    from ..flow.idempotency import Record
    from ..idempotency.claim import Claim
    from ..task import Place
    from .crash.ledger import Slots
    from .flow.local_state import Guard


class Execution(Struct, gc=False, eq=False):
    """A claimed message in this process. `cause` is why the worker ends it early: timeout, lease or drain."""

    delivery: Delivery
    limit: QueueLimit
    until_s: float  # time.monotonic() when the lease ends
    slot: int = -1  # in the crash ledger
    task: Any = None  # the Task; admission sets this and the arguments
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    guards: tuple[Guard, ...] = ()  # flow control sets this and the fields up to `counted`
    refusal: Refusal | None = None
    granted: tuple[str, ...] = ()  # the passes it has taken so far
    probe: str = ""  # the owner's name if it is a probe of a breaker
    counted: bool = False  # it takes one of its dependency's concurrent calls
    claim: Claim | None = None  # of its idempotency key; idempotency.py sets this and the fields up to `over`
    stored: Record | None = None  # the stored result of its key, which replaces a run
    over: bool = False  # it has ended without a run
    decision: Decision | None = None  # set if it was not admitted
    fault: Fault | None = None  # how it failed, or why it was not admitted
    result: bytes | None = None  # what the handler returned, if that is kept
    complaint: str | None = None  # why the result cannot be kept
    started_s: float = 0.0
    finished_s: float = 0.0
    settling: bool = False  # its settlement goes with the next exchange
    context: Context | None = None
    cause: str | None = None
    alone: bool = False  # nothing else runs in this process meanwhile, and the store knows it
    crash: Crash | None = None  # what this worker knows about the earlier lease that ran out
    company: int = 1  # of a suspect: how many may run in one process with it, itself included
    apart: bool = False  # a suspect that runs in a child process, whatever its task says
    handle: Any = None  # the asyncio task, if it is one; dropped at the end, because no collector frees the cycle

    def begin(self, slots: Slots | None, make: Callable[..., Context] = Context) -> Context:
        """Mark the message as started, so that a crash of this process counts against it, and return its Context, made
        by `make`.

        Raises LeaseLost if it was ended, or its lease ran out, while it waited: another worker may run it.
        """
        now = time.monotonic()
        if self.cause is not None or now >= self.until_s:
            self.cause = self.cause or "lease"
            raise LeaseLost(f"message {self.delivery.message.id} was not held to its start")
        self.started_s = now
        if slots is not None:
            slots.start(self.slot, self.alone)
        delivery = self.delivery
        context = self.context = make(
            delivery.message, now + self.task.policy.timeout_s, self.task, delivery.receipt, _claim=self.claim
        )
        if self.task.takes_context:
            self.args = (context, *self.args)
        return context

    @property
    def keeps(self) -> bool:
        """Whether the result is kept, with the message or its idempotency key."""
        return self.delivery.message.keep_ms > 0 or self.claim is not None

    def keep(self, result: Any) -> None:
        """Encode the handler's result now, because the handler's objects may change later."""
        extras = None if self.context is None else self.context._extras
        if result is None and extras is not None:
            result = extras.partial
        try:
            written = self.task.codec.encode_result(result)
        except EncodeError as error:
            self.complaint = str(error)
            return
        most = self.task.app.store.traits.state_bytes_max if self.context is None else self.context._state_bytes_max
        if len(written) > most:
            self.complaint = f"task {self.task.name!r}: its result has {len(written)} bytes; this store takes {most}"
        else:
            self.result = written

    @property
    def seats(self) -> int:
        """How many may run in one child process with it, itself included."""
        return self.company if self.apart else 1

    @property
    def executor(self) -> Place:
        """Which executor runs it: loop, thread or process."""
        executor: Place = "process" if self.apart else self.task.place
        return executor

    @property
    def deadline_s(self) -> float:
        timeout_s: float = self.task.policy.timeout_s
        return self.started_s + timeout_s

    def end(self, cause: str) -> None:
        """Ask the handler to stop; the first cause stays. Call it on the event loop's thread if it is an asyncio
        task."""
        if self.cause is not None or self.finished_s:
            return
        self.cause = cause
        if self.context is not None:
            self.context.stop(cause)
        if self.handle is not None and self.started_s:  # one not begun must still begin, to find that it may not
            self.handle.cancel()


class WorkerLimit:
    """Bounds how many executions one worker runs at once over all its queues."""

    def __init__(self, total: int) -> None:
        self.free = total
        self.closed = self.over = False  # start none, for a while or for good
        self.queues: list[QueueLimit] = []
        self.lock = threading.Lock()

    def pause(self) -> None:
        """Start none until `resume`."""
        with self.lock:
            self.closed = True

    def resume(self) -> list[Execution]:
        """Allow starts again; returns those of the waiting that start now."""
        with self.lock:
            self.closed, started = self.over, []
            while self.free > 0 and not self.closed and (queue := self.next_queue()) is not None:
                queue._running += 1
                self.free -= 1
                started.append(queue._waiting.popleft())
            return started

    def next_queue(self) -> QueueLimit | None:
        """The queue that may start the next one. Call it under the lock."""
        ready = [queue for queue in self.queues if queue._waiting and queue._running < queue._limit]
        return min(ready, key=lambda queue: queue._running / queue._weight, default=None)

    def waiting(self) -> list[Execution]:
        """The executions of all queues that wait to start."""
        with self.lock:
            return [run for queue in self.queues for run in queue._waiting]


class QueueLimit:
    """Bounds how many executions of one queue this process runs at once; the others wait here, claimed but not
    started.

    When the worker's limit holds them up, the queue with the fewest executions for its `weight` starts the next one; at
    equal shares, so always with infinite weights, the queue that was made first.
    """

    def __init__(
        self,
        limit: int,
        worker: WorkerLimit,
        weight: float = math.inf,
        ack: Ack = Ack(),
        *,
        park_ms: int = 0,
        store: Any = None,
    ) -> None:
        self._limit, self._worker, self._weight = limit, worker, weight
        self.park_ms = park_ms  # how long a message that no task here can take waits for a newer worker
        self.store = store  # knows why an encrypted message cannot be opened
        self.ack = ack  # the queue's retention may keep done messages
        self._running = 0
        self._waiting: deque[Execution] = deque()
        worker.queues.append(self)

    def enter(self, runs: Sequence[Execution]) -> Sequence[Execution]:
        """Return those of `runs`, in order, that start now; the others wait until `leave` returns them."""
        with self._worker.lock:
            free = 0 if self._worker.closed else max(0, min(self._limit - self._running, self._worker.free))
            started, later = runs[:free], runs[free:]
            self._running += len(started)
            self._worker.free -= len(started)
            self._waiting.extend(later)
            return started

    def leave(self) -> Execution | None:
        """Count one execution as ended; returns the one that starts next, of this queue or another, if any."""
        worker = self._worker
        with worker.lock:
            if len(worker.queues) == 1 and self._waiting and not worker.closed:
                return self._waiting.popleft()
            self._running -= 1
            queue = None if worker.closed else worker.next_queue()
            if queue is None:
                worker.free += 1
                return None
            queue._running += 1
            return queue._waiting.popleft()

    def take(self, *, force: bool = False) -> bool:
        """Count an execution that did not enter; False if the limits are reached. With `force` they are ignored: it
        has the process for itself, and only threads that outlived their leases are counted."""
        with self._worker.lock:
            if not force and (self._running >= self._limit or self._worker.free <= 0):
                return False
            self._running += 1
            self._worker.free -= 1
            return True

    def close(self) -> list[Execution]:
        """Stop all queues from starting any; returns those of this queue that never started."""
        with self._worker.lock:
            self._worker.closed = self._worker.over = True
            unstarted = list(self._waiting)
            self._waiting.clear()
            return unstarted
