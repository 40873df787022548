"""The context of a run: the message, its progress, follow-ups and cancellation. A handler gets it from
`redrive.context()`, or as its first argument with `ctx=True`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from contextvars import ContextVar, Token
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .chain import joining
from .codec import to_json
from .errors import Cancelled, ConfigError, Conflict, EnqueueError, LeaseLost, TooLarge
from .idempotency import Claim
from .ids import wholes_of
from .message import BATCH_HEADER, BatchCounts, Draft, Message, Receipt
from .store import Store, Traits

P = ParamSpec("P")
R = TypeVar("R")
RefT = TypeVar("RefT")
Made = TypeVar("Made", covariant=True)
EPISODE_HEADER = "redrive-episode"  # header of a callback with the episode of the batch in which it was due
WHY_MAX = 500  # the most characters of the reason of a partial result
FOLLOW_UPS_MAX = 10_000  # the most follow-ups of one run, as they are in memory and are written in one commit
_LOCAL = Traits(name="a direct call")
_making = threading.Lock()


class Extras(Struct, eq=False):
    """The facts that a handler reports beside its return value; created at first use."""

    follow_ups: list[Draft] = []
    progress: bytes | None = None  # the state of the last checkpoint of this run
    degraded: str | None = None  # why the result is partial
    partial: Any = None  # the partial result
    completed: bool = False  # True if the handler completed the key in its own transaction, with the follow-ups so far
    result: Any = None  # the handler's return value, for the wraps around the handler
    spent: dict[str, float] = {}  # what the run cost, by the unit of rates; "" for all of them


class Enqueues(Protocol[P, Made]):
    """An argument of `ctx.enqueue`: a task, or a task with options."""

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft: ...

    def _follow_up(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Draft, Made]: ...


class Context(Struct, eq=False):
    """The run of one message. A worker creates it; a direct call of a task gets a local one."""

    message: Message
    _deadline_s: float = float("inf")  # time.monotonic() at which the run's timeout ends
    _task: Any = None  # the Task whose handler runs
    _receipt: Receipt | None = None  # the receipt of the claim; None in a direct call
    _stop: str | None = None  # why the run is to end: "cancel", "lease" or "drain"; None: it is not
    _over: bool = False
    _extras: Extras | None = None
    _claim: Claim | None = None  # the claim of the run's idempotency key
    _trace: Any = None  # the trace context of the run's span, if traced; in a child process, its traceparent

    def __repr__(self) -> str:
        return f"<redrive context of message {self.message.id}>"

    @property
    def message_id(self) -> str:
        """The message's id, the same through every retry and redrive."""
        return self.message.id

    @property
    def attempt(self) -> int:
        """The number of this run among those that count, from 1."""
        return self.message.attempt

    @property
    def crashes(self) -> int:
        """The number of times that a worker died, or lost its lease, while holding this message."""
        return self.message.crashes

    @property
    def fence(self) -> int:
        """A number that rises with every claim of the message: pass it to systems that can refuse an older one."""
        return self.message.fence

    @property
    def runs(self) -> tuple[Context, ...]:
        """The context of each message of a call that gathers several (`gather=`), in the order of the handler's list;
        otherwise this one."""
        return (self,)

    @property
    def correlation_id(self) -> str:
        """The id that this message shares with the work that caused it, and passes on to its follow-ups."""
        return self.message.correlation_id

    @property
    def idempotency_key(self) -> str:
        """The same through every retry and redrive of this message: hand it to the service you call. The task's own
        key where it has `idempotency=`, else the message's id."""
        claim = self._claim
        return self.message.id if claim is None else claim.key

    @property
    def progress(self) -> Any:
        """The last checkpoint's state, this run's or an earlier attempt's, as plain JSON values; None if there is none.
        A state that is not JSON comes as bytes."""
        extras = self._extras
        kept = None if extras is None else extras.progress
        return progress_of(self.message.progress if kept is None else kept)

    def checkpoint(self, state: Any) -> None:
        """Keep `state`, any JSON value, with the message: once this returns the next attempt finds it in `progress`,
        however this one ends. Each replaces the one before.

        For sync handlers and threads; in a coroutine use `await ctx.acheckpoint(state)`. A direct call keeps it in this
        context only. Raises LeaseLost when the message is no longer this worker's, EncodeError or TooLarge for a state
        that cannot be kept, StoreError when the store failed, RuntimeError inside a running event loop.
        """
        refuse_loop("ctx.checkpoint()", "await ctx.acheckpoint(…)")
        self._keep(self._state(state))

    async def acheckpoint(self, state: Any) -> None:
        """Do as `checkpoint` does, without blocking the event loop."""
        import asyncio

        written = self._state(state)
        await asyncio.to_thread(self._keep, written)

    def _state(self, state: Any) -> bytes:
        written = to_json(state, f"a checkpoint of message {self.message.id}")
        most = self._state_bytes_max
        if len(written) > most:
            raise TooLarge(
                f"a checkpoint of message {self.message.id} has {len(written)} bytes; this store takes {most}"
            )
        return written

    def _keep(self, state: bytes) -> None:
        if self._receipt is not None and not self._write_checkpoint(self._receipt, state):
            self._stop = self._stop or "lease"
            raise LeaseLost(f"message {self.message.id} is no longer leased to this worker: its checkpoint is not kept")
        self._own_extras().progress = state

    def _write_checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        written: bool = self._task.app.store.checkpoint(receipt, state)
        return written

    @property
    def remaining(self) -> float:
        """Seconds until this run's timeout, never below 0. A direct call has the timeout too, but nothing ends it."""
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once this run should end: it was cancelled, its timeout is over, its lease is lost or the worker
        stops."""
        return self._stop is not None or time.monotonic() >= self._deadline_s

    def check(self) -> None:
        """Raise if this run should end (see `cancelled`): TimeoutError, LeaseLost or Cancelled."""
        if self._stop == "lease":
            raise LeaseLost(f"message {self.message.id} is no longer leased to this worker")
        if time.monotonic() >= self._deadline_s:
            raise TimeoutError("the run's timeout is over")
        if self._stop is not None:
            raise Cancelled(f"message {self.message.id}: {self._stop} was asked for")

    def enqueue(self, task: Enqueues[P, RefT], /, *args: P.args, **kwargs: P.kwargs) -> RefT:
        """Enqueue a follow-up with this message's ack: both or neither. From coroutines and any thread of the handler.

        `task` is a task of the same app, or `task.using(…)`. The follow-up is written when the handler has returned
        and its message is settled as done, and is dropped if the run fails or its lease is lost: a retry makes its
        own. The ref has its id at once, though nothing is stored under it until then; where the follow-up's key is
        held by then, it is dropped as a duplicate. In a direct call nothing is queued: see `follow_ups`. Raises
        TypeError or EnqueueError for what cannot be enqueued, RuntimeError after `complete` or once the run is over.
        """
        if not hasattr(task, "_follow_up"):
            raise TypeError(f"ctx.enqueue({task!r}, …): expected a task, or task.using(…), before its arguments")
        draft, ref = task._follow_up(self, args, kwargs)
        self._follow(draft)
        return ref

    def _follow(self, *drafts: Draft) -> None:
        extras = self._own_extras()
        if extras.completed:
            raise RuntimeError("ctx.enqueue() comes too late after ctx.complete(): follow-ups go with its transaction")
        follow_ups = extras.follow_ups
        if len(follow_ups) + len(drafts) > FOLLOW_UPS_MAX:
            raise EnqueueError(
                f"message {self.message.id} has more than {FOLLOW_UPS_MAX} follow-ups, what one commit may carry; "
                "enqueue fewer, and let each enqueue its part"
            )
        follow_ups.extend(drafts)
        self._refuse_over("a follow-up")  # last: a follow-up that was appended before the run ended belongs to it

    @property
    def follow_ups(self) -> tuple[Draft, ...]:
        """The drafts that `enqueue` collected so far, in order."""
        extras = self._extras
        return () if extras is None else tuple(extras.follow_ups)

    @property
    def batch(self) -> RunBatch | None:
        """The batch that this message is a member of, or, in a callback, the batch whose callback it is; else None."""
        member = self.message.batch
        id = member or self.message.headers.get(BATCH_HEADER)
        return None if id is None else RunBatch(id, self, member is not None)

    @property
    def result(self) -> Any:
        """What the handler returned, in a wrap after its yield (see `App.wrap`); None before that."""
        extras = self._extras
        return None if extras is None else extras.result

    def partial(self, result: R, why: str) -> R:
        """Mark this run's result as partial: `return ctx.partial(result, "no prices")`.

        The message is then done but degraded: its event carries `why` (the first 500 characters), metrics count it, and
        a kept message has the reason `degraded`. Returns `result`, which is the run's result also where the handler
        returns None. No effect if the run fails.
        """
        said = self._own_extras()
        text = str(why).encode(errors="backslashreplace").decode()  # an unpaired surrogate could not be encoded
        said.partial, said.degraded = result, text[:WHY_MAX] or "partial"
        return result

    def spend(self, permits: float, unit: str | None = None) -> None:
        """Report what the call really cost, in place of the estimate of `Rate(cost=…)`: `ctx.spend(answer.tokens)`.

        Several reports of a run add up. Once the run has ended, also by a failure, the difference is given back to the
        rates, or taken from them: later calls of all workers wait until it is paid, within about a second. Without a
        report the estimate stays, as when the worker dies. `unit` selects the rates of this unit; without it, all with
        a cost. Raises ValueError or TypeError unless `permits` is a finite number from 0, ConfigError if no rate of
        this task has the unit.
        """
        from .flow.weights import checked  # not at the top, to start faster

        spent, units = self._own_extras().spent, self._units()
        if unit is not None and self._receipt is not None and unit not in units:
            known = ", ".join(sorted(repr(each) for each in units if each)) or "none"
            raise ConfigError(f"ctx.spend(…, {unit!r}): no rate with a cost here has this unit; known: {known}")
        self._refuse_over("a cost")
        spent[unit or ""] = spent.get(unit or "", 0.0) + checked(permits, "ctx.spend: the cost")

    def _units(self) -> set[str | None]:
        """Return the units of the rates with a cost that this message's call has to keep."""
        if self._task is None:
            return set()
        app, name, queue = self._task.app, self._task.name, self.message.queue
        rules = (app.dependencies.get(self._task.dependency or name), app.queues.get(queue), self._task)
        rates = [rule.rate for rule in rules if rule is not None and rule.rate is not None]
        return {each.unit for rate in rates for each in rate.all if each.cost is not None}

    def complete(self, result: R, *, tx: Any) -> R:
        """Complete the idempotency key in your transaction, with the effect: `return ctx.complete(result, tx=…)`.

        `tx`: a connection or session of yours on the store's own database, as in `using(tx=…)`. Once you commit, the
        key is done with this result, and the follow-ups enqueued so far are there; if the run fails or its worker dies
        after that, the message is done all the same when it comes again. Commit before the handler returns: a run
        whose completion was not committed has failed. A rollback undoes the completion. Raises
        ConfigError where the task has no `idempotency=`, LeaseLost if another run has taken over the key or the key is
        complete, RuntimeError if this run is over, EncodeError or TooLarge for a result that cannot be stored,
        EnqueueError, Unsupported or StoreError as `using(tx=…)`.
        """
        claim = self._claim
        if claim is None:
            raise ConfigError("ctx.complete(…) has no key to complete: the task needs idempotency=Idempotency(key=…)")
        self._refuse_over("a completion")
        store, extras = self._task.app.store, self._own_extras()
        claim.box = store.box  # a claim comes to a child process without it
        swap = claim.completing(self._encode_result(result), extras.degraded, store.now_ms())
        follow_ups = () if self._receipt is None else tuple(extras.follow_ups)
        try:
            self._task.app.put(follow_ups, swaps=[swap], tx=tx)
        except Conflict:
            self._stop = self._stop or "lease"
            raise LeaseLost(
                f"message {self.message.id} no longer holds idempotency key {claim.key!r}: roll back; its run took too "
                "long and another one has taken it over, or it is complete already"
            ) from None
        claim.committed = True
        extras.completed = True
        return result

    def _encode_result(self, result: Any) -> bytes:
        written: bytes = self._task.codec.encode_result(result)
        most = self._traits().state_bytes_max
        if len(written) > most:
            raise TooLarge(f"task {self._task.name!r}: its result has {len(written)} bytes; this store takes {most}")
        return written

    def _own_extras(self) -> Extras:
        extras = self._extras
        if extras is None:
            with _making:
                extras = self._extras  # another thread of the handler may have created it
                if extras is None:
                    extras = self._extras = Extras()
        return extras

    def _refuse_over(self, what: str) -> None:
        if self._over:
            raise RuntimeError(f"the run of message {self.message.id} is over: {what} can no longer go with its end")

    def _traits(self) -> Traits:
        """Return the traits of the store that gets this run's follow-ups; in a direct call, those of no store."""
        traits: Traits = _LOCAL if self._receipt is None else self._task.app.store.traits
        return traits

    @property
    def _state_bytes_max(self) -> int:
        """The most bytes of a checkpoint or a result of this run."""
        return self._traits().state_bytes_max

    def _now_ms(self) -> int:
        now_ms: int = time.time_ns() // 1_000_000 if self._receipt is None else self._task.app.store.now_ms()
        return now_ms

    def stop(self, why: str) -> None:
        """Ask the handler to end, for the reason `why`. Called by the worker."""
        self._stop = why

    def end(self) -> Extras | None:
        """Close the context and return what the handler reported. Called by the worker."""
        self._over = True
        return self._extras


class RunBatch(Struct, frozen=True, eq=False):
    """The batch of a run: `ctx.batch`. In a step of a workflow `id` and `counts` are the step's, `state` and `episode`
    the workflow's."""

    id: str
    _context: Context
    _is_member: bool

    @property
    def counts(self) -> BatchCounts:
        """The members by what became of them, as `BatchRef.counts`; a member is open itself. Raises StoreError."""
        counts: BatchCounts = self._ref(self.id).counts
        return counts

    @property
    def state(self) -> str:
        """The state now, as `BatchRef.state`. Raises as that."""
        state: str = self._info.state.value
        return state

    @property
    def episode(self) -> int:
        """The number of the episode, from 1: in a callback that in which it was due, in a member the present one.
        Raises as `state`."""
        due = self._context.message.headers.get(EPISODE_HEADER, "")
        return int(due) if due.isdecimal() and not self._is_member else self._info.episode

    def results(self) -> Iterator[tuple[Message, Any]]:
        """Yield the members that are done, each with what it returned, as `BatchRef.results`. Raises as that."""
        results: Iterator[tuple[Message, Any]] = self._ref(self.id).results()
        return results

    @property
    def _info(self) -> Any:
        """How the batch stands; for a step, its workflow, as a step has no state of its own."""
        *parts, whole = wholes_of(self.id)
        for id in parts:
            with suppress(ConfigError):
                return self._ref(id).info()
        return self._ref(whole).info()

    def _ref(self, id: str) -> Any:
        return self._context._task.app.batch_ref(id)

    def add(self, *drafts: Draft) -> None:
        """Add members: they are written with this message's ack, so the batch cannot end before. They are dropped if
        the run fails: a retry makes its own. They have the labels of this message that they
        do not set themselves, and their results are kept if this one's is for the batch. Raises ConfigError in a
        callback, which is no member."""
        if not self._is_member:
            raise ConfigError(f"message {self._context.message_id} is no member of batch {self.id}: only members add")
        message = self._context.message
        self._context._follow(*(joining(replace(draft, batch=self.id), message) for draft in drafts))


class Tracing(Protocol):
    """Makes the spans of an app; implemented by `observe.otel`."""

    def wrap(self, store: Store) -> Store:
        """Return the store wrapped, so that puts and settlements have spans."""
        ...

    def gap(self) -> str | None:
        """Return why spans are not exported, and the fix; None if they are exported."""
        ...

    def stamp(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Return the drafts with the trace context of the enqueuing code."""
        ...

    def begin(self, context: Context, call: Context | None = None) -> str:
        """Begin the span of a run that a child process executes, or that is gathered in the `call` of another; return
        its traceparent, to be sent to the child."""
        ...

    def enter(self, context: Context) -> Any:
        """Begin the span of a run in this process and make it the current one; return the token for `leave`."""
        ...

    def leave(self, context: Context, token: Any = None) -> None:
        """Note the end of the handler, and undo `enter`."""
        ...


#: An argument of `app.wrap`: a generator function of the Context that yields once, sync or async, with or without
#: contextlib's decorator.
Wrap = (
    Callable[[Context], Iterator[None]]
    | Callable[[Context], AsyncIterator[None]]
    | Callable[[Context], AbstractContextManager[None]]
    | Callable[[Context], AbstractAsyncContextManager[None]]
)

_current: ContextVar[Context | None] = ContextVar("redrive_context", default=None)
current: Callable[[], Context | None] = _current.get
enter: Callable[[Context | None], Token[Context | None]] = _current.set
leave: Callable[[Token[Context | None]], None] = _current.reset


def context() -> Context:
    """Return the context of the message being handled here. Raises RuntimeError outside of a handler."""
    current = _current.get()
    if current is None:
        raise RuntimeError(
            f"no redrive message is being handled in this task or thread ({threading.current_thread().name})"
        )
    return current


def progress_of(kept: bytes | None) -> Any:
    """Return a checkpoint as plain JSON values; as bytes if it is not JSON."""
    try:
        return None if kept is None else msgspec.json.decode(kept)
    except (ValueError, RecursionError):
        return kept


def refuse_loop(what: str, instead: str) -> None:
    """Raise RuntimeError inside a running event loop, which the blocking call `what` would stop; the text suggests
    `instead`. Imports no asyncio."""
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)  # None while asyncio is imported
    if running is not None and running() is not None:
        raise RuntimeError(
            f"{what} was called inside a running event loop, which it would block; use `{instead}` there"
        )
