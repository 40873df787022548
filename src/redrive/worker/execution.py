"""From a claim to a handler: the executions that a worker holds, and their admission.

Admission finds the task, decodes the body, calls `decide.admit`, and starts admitted executions, on the event loop's
thread. Before that, the store thread claims idempotency keys and checks flow control. When an execution ends,
settlement.py decides what follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ..chain import NEXT_HEADER
from ..decide import NO_SIGNALS, Policy, Refusal, Signals, admit, parked_since_ms, reports_key_missing
from ..decide import Run as Admitted
from ..errors import EncodeError, KeyMissing, LeaseLost, Tampered, UnknownArguments, Unreadable, Unroutable
from ..fault import Crash, Fault, Kind, classify
from ..message import (
    BLOB,
    JSON,
    RAW,
    SEALED,
    Ack,
    DeadLetter,
    Decision,
    Delivery,
    Message,
    Quarantine,
    Receipt,
    is_closed,
)
from ..run_context import Context
from ..store import Store
from .capacity import QueueLimit
from .crash.company import ALONE_FROM, ANY, company_of, escapes

if TYPE_CHECKING:
    from ..flow.idempotency import KeyRecord
    from ..idempotency import Claim
    from ..task import ExecutorName, TaskSpec
    from .crash.ledger import CrashSlots
    from .flow.local_state import LimitState

_NO_POLICY = Policy()
NO_TASK = cast("TaskSpec", None)  # the task of an execution that has none; to compare, not to use


class WorkerQueue(Struct, frozen=True, eq=False):
    """The limit of a queue in this process, and the worker's rules for its messages."""

    limit: QueueLimit[Execution]
    ack: Ack = Ack()  # the Ack for a done message; the queue's retention may keep such messages
    park_ms: int = 0  # ms for which an unroutable message waits for a newer worker


class Execution(Struct, gc=False, eq=False):
    """A claimed message in this process. `cause` is why the worker ends it early: timeout, lease, drain or hang."""

    delivery: Delivery
    queue: WorkerQueue
    until_s: float  # time.monotonic() at which the lease ends
    slot: int = -1  # its slot in the crash ledger; -1: none
    task: TaskSpec = NO_TASK  # admission sets it and the arguments, if the task is known here
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    plain: bool = False  # True if only a call of the handler and an ack are left to do, unless the handler fails
    guards: tuple[LimitState, ...] = ()  # its guards; flow control sets this field up to `counted`
    refusal: Refusal | None = None
    granted: tuple[str, ...] = ()  # passes that flow control has granted to the message so far
    probes: tuple[LimitState, ...] = ()  # those of `guards` whose half-open breakers it probes
    costs: dict[str, float] = {}  # by the names of guards: the costs of its call, by rates with weights
    counted: bool = False  # True if it takes one of its dependency's concurrent calls
    fetched: Any = None  # its body from blob storage, if that was read before keys and costs are computed from it
    claim: Claim | None = None  # the claim of its key; idempotency.py sets this field up to `over`
    stored: KeyRecord | None = None  # the stored record of its idempotency key, whose result replaces a run
    over: bool = False  # True if it has ended without a run
    decision: Decision | None = None  # set if the message was not admitted
    unroutable: Signals | None = None  # set if the message may be of a newer release
    fault: Fault | None = None  # how the handler failed, or why the message was not admitted
    result: bytes | None = None  # the encoded return value of the handler, if it is kept
    complaint: str | None = None  # why the handler's return value cannot be kept
    started_s: float = 0.0
    finished_s: float = 0.0
    deadline_s: float = 0.0  # time.monotonic() at which the timeout of the started handler ends
    settling: bool = False  # True if its settlement goes with the next exchange
    context: Context | None = None
    cause: str | None = None
    alone: bool = False  # True if nothing else runs in this process meanwhile, and the store has recorded that
    crash: Crash | None = None  # this worker's evidence about the message's earlier lease, which expired
    company: int = 1  # for a suspect: how many executions may run in one process with it, itself included
    apart: bool = False  # True if it is a suspect that runs in a child process, whatever its task declares
    handle: Any = None  # its asyncio task, if it has one; cleared at the end, as no collector frees the cycle
    call: Any = None  # the GatheredCall that it is gathered in, or runs as its lead; cleared as `handle`
    silent: bool = False  # True if another execution of its call tells flow control how the call ended

    def begin(self, slots: CrashSlots | None, make: Callable[..., Context] = Context) -> Context:
        """Mark the message as started, so that a crash of this process counts against the message; return the
        execution's Context, which `make` creates.

        Raises LeaseLost if the execution was ended or its lease expired while it waited, as another worker may run it.
        """
        delivery, task, now = self.delivery, self.task, time.monotonic()
        deadline_s = self.deadline_s = now + task.policy.timeout_s  # set first: threads read it once `started_s` is set
        # Set before `cause` is read: a thread that releases the execution first sets `cause`, then reads `started_s`.
        self.started_s = now
        if self.cause is not None or now >= self.until_s:
            self.started_s, self.cause = 0.0, self.cause or "lease"
            raise LeaseLost(f"message {self.delivery.message.id} was not held to its start")
        if slots is not None:
            slots.start(self.slot, self.alone)
        context = self.context = make(delivery.message, deadline_s, task, delivery.receipt, _claim=self.claim)
        if task.takes_context:
            self.args = (context, *self.args)
        return context

    @property
    def keeps(self) -> bool:
        """True if the handler's result is kept: with the message or its idempotency key, or for the next step of a
        chain."""
        message = self.delivery.message
        return message.keep_ms > 0 or self.claim is not None or NEXT_HEADER in message.headers

    def keep(self, result: Any) -> None:
        """Encode the handler's result before its objects can change; set `complaint` if it cannot be kept."""
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
        """The most executions that may run in one child process together, this one included."""
        return self.company if self.apart else 1

    @property
    def executor(self) -> ExecutorName:
        """The name of the executor that runs this execution: loop, thread or process."""
        return "process" if self.apart else self.task.place

    @property
    def runner(self) -> Execution | None:
        """The execution that an executor runs for this one: itself, or the lead of its call; None while that waits."""
        lead: Execution | None = self if self.call is None else self.call.lead
        return lead

    def end(self, cause: str) -> None:
        """Ask the handler to stop, for this cause or an earlier one. If it is an asyncio task, call this on the loop's
        thread."""
        if self.cause is not None or self.finished_s:
            return
        self.cause = cause
        if self.context is not None:
            self.context.stop(cause)
        if self.handle is not None and self.started_s:  # a task that has not begun must begin, to see that it may not
            self.handle.cancel()


class InFlightExecutions:
    """The executions whose leases a worker holds. Each has a slot in the crash ledger.

    `ended` is called for each counted one that is removed. Used by the store thread; other threads may call `all`.
    """

    claimed: int

    def __init__(
        self, queues: Iterable[str], slots: CrashSlots | None, ended: Callable[[Execution], None] | None
    ) -> None:
        self._held: dict[Receipt, Execution] = {}
        self._counts = dict.fromkeys(queues, 0)
        self.counts: Mapping[str, int] = self._counts  # the number of executions, by queue
        self._slots, self._ended = slots, ended
        self.claimed = 0  # the number of executions added so far

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[Execution]:
        """Return a list of the executions held now."""
        return list(self._held.values())

    def add(self, executions: Sequence[Execution]) -> None:
        """Add executions to those held, count them for their queues, and give each a slot in the ledger."""
        held, counts = self._held, self._counts
        for execution in executions:
            delivery = execution.delivery
            held[delivery.receipt] = execution
            counts[delivery.message.queue] += 1
        if self._slots is not None:
            slots = self._slots.take([execution.delivery.message for execution in executions])
            for execution, slot in zip(executions, slots, strict=True):
                execution.slot = slot
        self.claimed += len(executions)

    def still(self, executions: Sequence[Execution]) -> list[Execution]:
        """Return those of `executions` whose leases the worker still holds."""
        held = self._held
        return [execution for execution in executions if execution.delivery.receipt in held]

    def remove(self, deliveries: Sequence[Delivery]) -> None:
        """Stop holding the executions of these deliveries, which are settled or whose leases are lost."""
        pop, counts, ended = self._held.pop, self._counts, self._ended
        going = []
        for delivery in deliveries:
            execution = pop(delivery.receipt, None)
            if execution is not None:
                going.append(execution)
                counts[delivery.message.queue] -= 1
        if ended is not None:
            for execution in going:
                if execution.counted:
                    ended(execution)
        if self._slots is not None:
            self._slots.give([execution.slot for execution in going])


def admit_execution(execution: Execution, tasks: Mapping[str, TaskSpec], store: Store, now_ms: int) -> bool:
    """Set the execution's task and arguments and return True, or set its decision and fault and return False."""
    message = execution.delivery.message
    task = tasks.get(message.task)
    if task is not None and execution.task is NO_TASK and execution.refusal is None and _is_plain(message, task):
        execution.task = task
        try:  # most messages take this path, which has as few steps as possible
            execution.args, execution.kwargs = task.codec.decode(message.body, message.version)
            execution.plain = True
            return True
        except Unreadable as error:
            return judge(execution, unread(error, execution), now_ms)
    signals = NO_SIGNALS if execution.refusal is None else Signals(refusal=execution.refusal)
    if (message.progress is not None or message.content.startswith(SEALED)) and is_closed(message):
        signals = _closed(execution, store)
    elif task is None or message.version > task.version:
        signals = Signals(unroutable=_unroutable(message, task, tasks), park_ms=execution.queue.park_ms)
        task = None
    elif execution.task is NO_TASK and has_nothing(execution, task):
        return False
    elif execution.task is NO_TASK:  # if the task is set, a claim of the idempotency key has read the body already
        try:
            execution.task = task
            # The handler's thread reads a blob, and a child process decodes the bodies that it runs.
            if message.content != BLOB and task.isolation is None:
                execution.args, execution.kwargs = task.codec.decode(
                    message.body, message.version, raw=message.content == RAW
                )
        except Unreadable as error:
            signals = unread(error, execution)
    return judge(execution, signals, now_ms)


def _is_plain(message: Message, task: TaskSpec) -> bool:
    """Return True if only a call of the handler and an ack are left to do, unless the handler fails: the body is JSON
    of this release, and nothing that `decide.admit` or a settlement checks has happened to the message yet."""
    return not (
        message.content != JSON
        or message.version > task.version
        or task.isolation is not None
        or message.faults
        or message.crashes
        or message.redrives
        or message.keep_ms
        or NEXT_HEADER in message.headers
        or message.deadline_ms
        or message.cancel
        or message.progress is not None
    )


def unread(error: Unreadable, execution: Execution) -> Signals:
    """Return the signals of a body that cannot be decoded. Unknown arguments may come from a newer producer, so the
    message waits for a newer worker."""
    if isinstance(error, KeyMissing):
        return Signals(locked=str(error))
    if isinstance(error, Tampered):
        return Signals(tampered=str(error))
    if isinstance(error, UnknownArguments):
        return Signals(unroutable=str(error), park_ms=execution.queue.park_ms, unknown=error.names)
    return Signals(unreadable=str(error))


def _closed(execution: Execution, store: Store) -> Signals:
    """Return the signals of a message that is still encrypted."""
    from ..crypto import why_closed  # imported here, as it needs the extra package `cryptography`

    return unread(why_closed(store, execution.delivery.message), execution)


def has_nothing(execution: Execution, task: TaskSpec) -> bool:
    """If the body has nothing for the handler, decide that the message is done, and return True."""
    message = execution.delivery.message
    if message.content != RAW or not task.codec.has_nothing(message.body):
        return False
    execution.task, execution.decision = task, Ack()
    return True


def may_run(message: Message, tasks: Mapping[str, TaskSpec], now_ms: int) -> bool:
    """Return True if nothing in the message prevents a run; without a run it takes no idempotency key and no tokens."""
    task = tasks.get(message.task)
    if task is None or message.version > task.version or is_closed(message):
        return False
    if not (message.crashes or message.faults or message.cancel or message.deadline_ms):
        return True  # a fast path, taken by most messages
    return isinstance(admit(message, task.policy, NO_SIGNALS, now_ms), Admitted)


def judge(execution: Execution, signals: Signals, now_ms: int) -> bool:
    """Return True if `decide.admit` admits the execution; if not, set its decision and fault."""
    message, policy = execution.delivery.message, _NO_POLICY if execution.task is NO_TASK else execution.task.policy
    decision = admit(message, policy, signals, now_ms)
    if isinstance(decision, Admitted):
        return True
    execution.decision = decision
    if signals.unroutable is not None:
        execution.unroutable = signals
        execution.queue.limit.meet_newer()
    if signals.locked is not None:
        if decision.why == "parked" and not reports_key_missing(message):
            execution.fault = classify(KeyMissing(signals.locked), ((KeyMissing, Kind.UNROUTABLE),))
    elif isinstance(decision, DeadLetter) or (decision.why == "parked" and parked_since_ms(message) is None):
        execution.fault = _fault(signals)
    elif isinstance(decision, Quarantine) and signals.tampered is not None:
        execution.fault = classify(Tampered(signals.tampered), ((Tampered, Kind.UNREADABLE),))
    return False


def _unroutable(message: Message, task: TaskSpec | None, tasks: Mapping[str, TaskSpec]) -> str:
    if task is not None:
        return f"version {message.version} of task {message.task!r} is newer than {task.version}, the one known here"
    return f"no task {message.task!r} is registered here; known: {', '.join(sorted(tasks)) or 'none'}"


def _fault(signals: Signals) -> Fault | None:
    if signals.unroutable is not None:
        return classify(Unroutable(signals.unroutable), ((Unroutable, Kind.UNROUTABLE),))
    if signals.unreadable is not None:
        return classify(Unreadable(signals.unreadable), ((Unreadable, Kind.UNREADABLE),))
    return None


class Admission:
    """Admits claimed messages on the event loop's thread, and starts them within the limits.

    `admit` returns those that may run. `total` is how many messages this worker runs at once. `start_on_loop` and
    `start` run them on the event loop and elsewhere; `can_isolate` says whether a child process can run a task.
    `set_apart` gets suspects that must not run beside others, `finish` the executions that were not admitted. `gather`
    returns what to start of some executions, with calls for those that it gathers; None where no task gathers.
    """

    def __init__(
        self,
        store: Store,
        admit: Callable[[Sequence[Execution]], list[Execution]],
        start_on_loop: Callable[[Execution], None],
        start: Callable[[Execution], None],
        can_isolate: Callable[[str], bool],
        set_apart: Callable[[Sequence[Execution]], None],
        finish: Callable[[Sequence[Execution]], None],
        total: int,
        gather: Callable[[Sequence[Execution]], list[Execution]] | None = None,
    ) -> None:
        self._store, self._admit, self._total, self._finish = store, admit, total, finish
        self._gather = gather
        self._start_on_loop, self._start, self._can_isolate = start_on_loop, start, can_isolate
        self._set_apart = set_apart

    def admit(self, executions: Sequence[Execution]) -> None:
        """Admit executions; start the admitted ones in order within the limits of their queues, but set
        suspects apart."""
        admitted = self._admit(executions)
        if len(admitted) < len(executions):
            self._finish([execution for execution in executions if execution.decision is not None])
        suspects = [execution for execution in admitted if execution.delivery.message.suspect]
        if suspects:
            apart = {id(execution) for execution in suspects if self._is_set_apart(execution)}
            self._set_apart([execution for execution in suspects if id(execution) in apart])
            admitted = [execution for execution in admitted if id(execution) not in apart]
        if self._gather is not None:
            admitted = self._gather(admitted)
        for queue, of_queue in groupby(admitted, key=_queue_of):
            for execution in queue.limit.enter(list(of_queue)):
                if execution.task.place == "loop" and not execution.apart:
                    self._start_on_loop(execution)
                else:
                    self._start(execution)

    def _is_set_apart(self, execution: Execution) -> bool:
        """Return True if a suspect must run in a group of suspects, with nothing else in this process; set its company,
        and `apart` if a child process can run it. Only a message that `escapes` needs a group in spite of a child
        process."""
        message = execution.delivery.message
        # On SQS each crash costs one of the receives that the queue allows, so a conviction must need fewer.
        few = not self._store.traits.releases
        alone_from = min(ALONE_FROM, execution.task.policy.crashes_alone_max) if few else ALONE_FROM
        execution.company = company_of(message, self._total, alone_from=alone_from)
        if execution.executor == "process":
            return escapes(message)
        execution.apart = self._store.traits.shared and self._can_isolate(message.task)
        return escapes(message) if execution.apart else execution.company < ANY


def _queue_of(execution: Execution) -> WorkerQueue:
    return execution.queue
