"""One delivery on its way through the worker, and the places it may have to wait for. What its end comes to stands in
settlement.py."""

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


class Run(Struct, gc=False, eq=False):
    """A claimed message in this process. `cause` says why the worker wants it to end: timeout, lease, drain."""

    delivery: Delivery
    gate: Gate
    until_s: float  # time.monotonic() when the lease ends
    slot: int = -1
    task: Any = None  # the Task; from here on set by admission
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    guards: tuple[Guard, ...] = ()  # of flow control; from here to `counted` set by worker/flow/controller.py
    refusal: Refusal | None = None
    granted: tuple[str, ...] = ()  # the passes of what was taken for it so far
    probe: str = ""  # by whose name it is a breaker's probe
    counted: bool = False  # it has a place of its dependency's concurrency
    claim: Claim | None = None  # of its idempotency key; from here to `over` set by idempotency.py
    stored: Record | None = None  # what its key came to earlier: its result stands for that of a run
    over: bool = False  # it has come to its end without a run
    verdict: Decision | None = None  # set where it was not admitted
    fault: Fault | None = None  # how its run ended, or why it was not admitted
    result: bytes | None = None  # what the handler returned, where that is to be kept
    complaint: str | None = None  # why it cannot be
    started_s: float = 0.0
    finished_s: float = 0.0
    context: Context | None = None
    cause: str | None = None
    alone: bool = False  # nothing else runs in this process meanwhile, and the store knows it
    crash: Crash | None = None  # what this worker knows of the lease that ran out before
    company: int = 1  # of a suspect: how many may run in one process with it, itself among them
    apart: bool = False  # a suspect that is to run in a child process, whatever its task says
    handle: Any = None  # the asyncio task, if it is one; dropped at its end, as nothing collects the cycle

    def begin(self, slots: Slots | None, make: Callable[..., Context] = Context) -> Context:
        """From here on a crash of this process counts against the message. `make` makes its Context.

        Raises LeaseLost where it was ended, or its lease ran out, while it waited: another worker may be running it.
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
        """Whether what the handler returns is to be kept, with the message or its key."""
        return self.delivery.message.keep_ms > 0 or self.claim is not None

    def keep(self, result: Any) -> None:
        """Write down what the handler returned: now, as what it refers to may change later."""
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
        """How many may run in one child process with it, itself among them."""
        return self.company if self.apart else 1

    @property
    def place(self) -> Place:
        """Which executor's it is."""
        place: Place = "process" if self.apart else self.task.place
        return place

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
        self.free = total
        self.closed = self.over = False  # let nobody in, for a while or for good
        self.gates: list[Gate] = []
        self.lock = threading.Lock()

    def shut(self) -> None:
        """Let nobody in until `open`."""
        with self.lock:
            self.closed = True

    def open(self) -> list[Run]:
        """Let in again; those of the waiting to start now."""
        with self.lock:
            self.closed, started = self.over, []
            while self.free > 0 and not self.closed and (gate := self.next_gate()) is not None:
                gate._running += 1
                self.free -= 1
                started.append(gate._waiting.popleft())
            return started

    def next_gate(self) -> Gate | None:
        """Whose place the next one is. Under the lock."""
        ready = [gate for gate in self.gates if gate._waiting and gate._running < gate._limit]
        return min(ready, key=lambda gate: gate._running / gate._weight, default=None)

    def waiting(self) -> list[Run]:
        """Those of all gates who wait to start."""
        with self.lock:
            return [run for gate in self.gates for run in gate._waiting]


class Gate:
    """Bounds how many runs of one queue are under way in this process; others wait here, claimed but not started.

    Where the total is what they wait for, the next place goes to the gate with the fewest runs for its `weight`; at
    equal shares, so always with infinite weights, to the one that was made first.
    """

    def __init__(
        self, limit: int, hall: Hall, weight: float = math.inf, ack: Ack = Ack(), *, park_ms: int = 0, store: Any = None
    ) -> None:
        self._limit, self._hall, self._weight = limit, hall, weight
        self.park_ms = park_ms  # how long what no task here can take waits for a worker that knows better
        self.store = store  # asked why a message that is encrypted does not open
        self.ack = ack  # of the queue: its retention may keep what is done
        self._running = 0
        self._waiting: deque[Run] = deque()
        hall.gates.append(self)

    def enter(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Those of `runs`, in order, to start now; the others wait until `leave` hands them out."""
        with self._hall.lock:
            places = 0 if self._hall.closed else max(0, min(self._limit - self._running, self._hall.free))
            started, later = runs[:places], runs[places:]
            self._running += len(started)
            self._hall.free -= len(started)
            self._waiting.extend(later)
            return started

    def leave(self) -> Run | None:
        """A run ended; the one to start in its place, of this queue or another, if there is one."""
        hall = self._hall
        with hall.lock:
            if len(hall.gates) == 1 and self._waiting and not hall.closed:
                return self._waiting.popleft()  # the place passes on
            self._running -= 1
            gate = None if hall.closed else hall.next_gate()
            if gate is None:
                hall.free += 1
                return None
            gate._running += 1
            return gate._waiting.popleft()

    def take(self, *, whatever: bool = False) -> bool:
        """A place for a run that did not enter; False where there is none. `whatever`: it has the process for itself
        and needs none, as those that are taken are by threads that outlived their leases."""
        with self._hall.lock:
            if not whatever and (self._running >= self._limit or self._hall.free <= 0):
                return False
            self._running += 1
            self._hall.free -= 1
            return True

    def close(self) -> list[Run]:
        """Start nothing more, of any queue; the runs of this one that never started."""
        with self._hall.lock:
            self._hall.closed = self._hall.over = True
            unstarted = list(self._waiting)
            self._waiting.clear()
            return unstarted
