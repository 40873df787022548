"""Enqueue messages: the task that users hold, its options, and the reference to what was enqueued."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import msgspec

from .codec.codec import Upcast
from .duration import Duration, milliseconds, seconds
from .errors import ConfigError, NotDone, Unsupported
from .ids import new_id
from .message import ABSENT, NORMAL, PRIORITIES, RESTING, Draft, Lane, Message, Put
from .registry import Registry
from .run_context import Context, context, current, enter, leave, progress_of, refuse_loop
from .stores.validation import admit as check_drafts
from .task import TaskOptions, TaskSpec, as_text

LOOK_S = (0.005, 0.25)  # how long ref.wait pauses between its first two looks, and at most
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
P = ParamSpec("P")
R = TypeVar("R")
U = TypeVar("U", bound=Upcast)


class Ref(msgspec.Struct, frozen=True):
    """A message that was enqueued. `duplicate`: an earlier message holds the key, and this is a ref to that one."""

    id: str
    task: str
    queue: str
    duplicate: bool
    _app: Registry

    @property
    def state(self) -> str:
        """Its state now: ready, scheduled, leased, dead, quarantine, done or cancelled. Done messages are deleted, so
        one that is gone is done; Unsupported is raised where a store cannot tell (SQS)."""
        message = self._look()
        return "done" if message is None else message.state(self._app.store.now_ms())

    def _look(self) -> Message | None:
        """Raises Unsupported where a store that does not find it cannot tell whether it is done or waits."""
        message: Message | None = self._app.job(self.id)
        traits = self._app.store.traits
        if message is None and not traits.finds:
            raise Unsupported(
                f"message {self.id} of task {self.task!r}: store {traits.name} cannot look up what waits or runs, "
                "so it cannot tell whether this is done; have the handler write down or send on what you wait for"
            )
        return message

    @property
    def progress(self) -> Any:
        """The last checkpoint's state, as plain JSON values; None if there is none, or the message is gone."""
        message = self._look()
        if message is not None and message.content == ABSENT:
            raise Unsupported(f"message {self.id} of task {self.task!r} is known by its record, without its checkpoint")
        return None if message is None else progress_of(message.progress)

    def wait(self, timeout: Duration | None = None) -> Any:
        """Wait until the message is done, and return its result: what the handler returned, read by its return
        annotation, where `keep_result=` keeps it; else None.

        Looks every few milliseconds at first, four times a second in the end. Raises NotDone when the message is dead
        or cancelled (a redrive may still bring it back), TimeoutError after `timeout`, RuntimeError inside a running
        event loop: use `await_` there. A message that is gone counts as done; where a store cannot look up what waits
        or runs (SQS), this raises Unsupported instead.
        """
        refuse_loop("ref.wait()", "await ref.await_(…)")
        pauses = self._pauses(timeout)
        while (message := self._look()) is not None and message.lane is not Lane.DONE:
            self._refuse_resting(message)
            time.sleep(next(pauses))
        return self._result(message)

    async def await_(self, timeout: Duration | None = None) -> Any:
        """As `wait`, for asyncio code."""
        import asyncio

        pauses = self._pauses(timeout)
        while (message := await asyncio.to_thread(self._look)) is not None and message.lane is not Lane.DONE:
            self._refuse_resting(message)
            await asyncio.sleep(next(pauses))
        return self._result(message)

    def _pauses(self, timeout: Duration | None) -> Iterator[float]:
        """The seconds to wait before each further look. Raises TimeoutError when the time is over."""
        timeout_s = math.inf if timeout is None else seconds(timeout, "timeout")
        end_s, pause_s = time.monotonic() + timeout_s, LOOK_S[0]
        while (left_s := end_s - time.monotonic()) > 0:
            yield min(pause_s, left_s)
            pause_s = min(pause_s * 1.5, LOOK_S[1])
        raise TimeoutError(f"message {self.id} of task {self.task!r} was not done within {timeout_s:g} s")

    def _refuse_resting(self, message: Message) -> None:
        if message.lane in RESTING:
            last = message.faults[-1] if message.faults else None
            text = "" if last is None else f"{last.error}: {last.text}"
            raise NotDone(self.id, self.task, message.lane.value, message.reason, text)

    def _result(self, message: Message | None) -> Any:
        if message is None:
            return None
        if message.reason == "cancelled":
            raise NotDone(self.id, self.task, "cancelled")
        task = self._app.tasks.get(self.task)
        if message.result is None:
            return None
        return msgspec.json.decode(message.result) if task is None else task.codec.decode_result(message.result)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a message is put, beyond its arguments: what `using` sets."""

    delay_ms: int = 0
    due_ms: int | None = None
    key: str | None = None
    key_for_ms: int = 0
    group: str | None = None
    queue: str | None = None
    priority: int = NORMAL
    deadline_ms: int | None = None
    headers: dict[str, str] | None = None
    correlation_id: str | None = None
    keep_ms: int | None = None
    tx: Any = None


class Task(TaskSpec, Generic[P, R]):
    """A handler with a stable name, a queue and a policy. Made by `@app.task(…)`; calling it calls the handler, here
    and now."""

    app: Registry

    def __init__(self, app: Registry, handler: Callable[..., R], name: str | None, options: TaskOptions) -> None:
        super().__init__(app, handler, name, options)
        self.__name__ = getattr(handler, "__name__", self.name)
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler
        self._bound: Bound[P, R] = Bound(self, Options())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler directly: nothing is queued or retried; it gets a local Context.

        With `idempotency=` it runs once for its key here too: a completed duplicate gets the stored result. Raises
        InProgress where another one is at it, KeyReused where the key stands for other arguments, StoreError.
        """
        if self.is_async:
            return self._call_async(*args, **kwargs)  # type: ignore[return-value]
        made = self._local_context()
        token = enter(made)
        try:
            if self.idempotency is not None:
                from .idempotency.direct import call

                return call(self, made, args, kwargs)  # type: ignore[no-any-return]
            return self.handler(*self._with_context(args), **kwargs)  # type: ignore[no-any-return]
        finally:
            leave(token)

    async def _call_async(self, *args: Any, **kwargs: Any) -> Any:
        made = self._local_context()
        token = enter(made)
        try:
            if self.idempotency is not None:
                from .idempotency.direct import acall

                return await acall(self, made, args, kwargs)
            return await self.handler(*self._with_context(args), **kwargs)
        finally:
            leave(token)

    def _with_context(self, args: Sequence[Any]) -> Sequence[Any]:
        return (context(), *args) if self.takes_context else args

    def _local_context(self) -> Context:
        now = int(time.time() * 1000)
        id = new_id(now)
        message = Message(id, self.name, self.queue, b"", id, lane=Lane.LEASED, attempt=1, fence=1, enqueued_ms=now)
        return Context(message, time.monotonic() + self.policy.timeout_s, self)

    def using(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        key: str | None = None,
        for_: Duration | None = None,
        group: str | None = None,
        queue: str | None = None,
        priority: int = NORMAL,
        deadline: datetime | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        keep_result: Duration | None = None,
        tx: Any = None,
    ) -> Bound[P, R]:
        """This task with settings for what is enqueued through it.

        `delay` or `at`: when it may run first. `key`: unique per task until the message is done, cancelled or
        discarded, and at least `for_` long. `priority` 0 (first) to 3. `deadline`: past it the message dies unrun.
        `keep_result`: how long the message is kept with its result once it is done, for `ref.wait()`. `tx`: a
        connection or session of yours on the store's own database: the message is written in its transaction, and
        there once you commit. Raises ConfigError for values that cannot be meant.
        """
        if priority not in PRIORITIES:
            raise ConfigError(f"priority {priority!r}: expected one of {PRIORITIES}, 0 is served first")
        if delay is not None and at is not None:
            raise ConfigError("give delay= or at=, not both")
        if for_ is not None and key is None:
            raise ConfigError("for_= says how long key= is held; give key= too")
        if headers is not None and not _are_texts(headers):
            raise ConfigError(f"headers={headers!r}: expected names and values as text")
        options = Options(
            delay_ms=0 if delay is None else milliseconds(delay, "delay"),
            due_ms=_ms(at, "at"),
            key=as_text(key, "key"),
            key_for_ms=0 if for_ is None else milliseconds(for_, "for_"),
            group=as_text(group, "group"),
            queue=as_text(queue, "queue"),
            priority=priority,
            deadline_ms=_ms(deadline, "deadline"),
            headers=headers,
            correlation_id=as_text(correlation_id, "correlation_id"),
            keep_ms=None if keep_result is None else milliseconds(keep_result, "keep_result"),
            tx=tx,
        )
        return Bound(self, options)

    def upcast(self, version: int) -> Callable[[U], U]:
        """Declare the function that lifts stored arguments of `version` to `version + 1`.

        It gets a dict of arguments by name, as plain JSON values, and returns the next version's dict. A body of an
        older version goes through these functions one after another each time it is read; the stored bytes stay as
        they are. Where a step is missing or fails the message is dead, `unreadable`, its bytes intact. Raises
        ConfigError for a version that needs no lifting, or that has its function already.

        @push.upcast(1)
        def _(old: dict[str, Any]) -> dict[str, Any]:
            return {"record_id": old["id"]}
        """

        if not isinstance(version, int):
            raise ConfigError(
                f"task {self.name!r}: write @task.upcast(1), with the version that the function gets; got {version!r}"
            )

        def register(step: U) -> U:
            self.codec.upcast(version, step)
            return step

        return register

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """The message a call with these arguments would enqueue, for `app.enqueue_many`."""
        return self._bound.draft(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ref:
        """Put a message on the queue; durable when it returns. In asyncio code use `aenqueue`. Raises EnqueueError,
        StoreError, TypeError."""
        return self._bound.enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ref:
        """As `enqueue`, without holding up the event loop; concurrent calls share a commit."""
        return await self._bound.aenqueue(*args, **kwargs)

    def _follow_up(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Draft, Ref]:
        return self._bound._follow_up(ctx, args, kwargs)


class Bound(Generic[P, R]):
    """A task with options: what `task.using(…)` returns."""

    def __init__(self, task: Task[P, R], options: Options) -> None:
        self._task, self._options = task, options

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """As `Task.draft`."""
        if self._options.tx is not None:
            self._refuse_tx("a draft is written by whoever puts it: give tx= to app.enqueue_many(…)")
        return self._draft(current(), args, kwargs)

    def _draft(
        self, parent: Context | None, args: Sequence[Any], kwargs: Mapping[str, Any], id: str | None = None
    ) -> Draft:
        task, o = self._task, self._options
        return Draft(
            id=id,
            task=task.name,
            queue=o.queue or task.queue,
            body=task.codec.encode(args, kwargs),
            delay_ms=o.delay_ms,
            due_ms=o.due_ms,
            priority=o.priority,
            key=o.key,
            key_for_ms=o.key_for_ms,
            group=o.group,
            deadline_ms=o.deadline_ms,
            keep_ms=task.keep_ms if o.keep_ms is None else o.keep_ms,
            version=task.version,
            headers=o.headers,
            correlation_id=o.correlation_id or (parent.correlation_id if parent else None),
            causation_id=parent.message_id if parent else None,
            producer=task.app.producer,
        )

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ref:
        """As `Task.enqueue`."""
        draft = self._draft(current(), args, kwargs)
        return put(self._task.app, [draft], self._options.tx)[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ref:
        """As `Task.aenqueue`."""
        draft = self._draft(current(), args, kwargs)
        return (await aput(self._task.app, [draft], self._options.tx))[0]

    def _refuse_tx(self, why: str) -> NoReturn:
        raise ConfigError(f"task {self._task.name!r}: using(tx=…) has no meaning here: {why}")

    def _follow_up(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Draft, Ref]:
        """A draft to go with the end of that run, refused here if the store would: then, it would be too late."""
        if self._options.tx is not None:
            self._refuse_tx("a follow-up is written with the ack")
        app = self._task.app
        if ctx._task is not None and ctx._task.app is not app:
            raise ConfigError(
                f"task {self._task.name!r} belongs to another app than {ctx._task.name!r}, so they share no commit; "
                "use its own enqueue()"
            )
        draft = self._draft(ctx, args, kwargs, new_id(ctx._now_ms()))
        check_drafts((draft,), ctx._traits())
        return draft, Ref(draft.id or "", draft.task, draft.queue, False, app)


def put(registry: Registry, drafts: Sequence[Draft], tx: Any = None) -> list[Ref]:
    """Put all drafts in one commit, or in the transaction `tx`. See `App.enqueue_many`."""
    refuse_loop("enqueue()", "await ….aenqueue(…)")
    store = registry.store
    return _refs(registry, drafts, store.put(drafts) if tx is None else store.put(drafts, tx=tx))


async def aput(registry: Registry, drafts: Sequence[Draft], tx: Any = None) -> list[Ref]:
    """As `put`, for asyncio code; concurrent calls share a commit."""
    from .enqueue_batch import batch_of  # it brings asyncio

    store = registry.store
    if tx is not None:  # here and now: nothing is committed, and the connection belongs to this thread
        return _refs(registry, drafts, store.put(drafts, tx=tx))
    return _refs(registry, drafts, await batch_of(store, registry._batches).put(drafts))


def _refs(registry: Registry, drafts: Sequence[Draft], puts: Sequence[Put]) -> list[Ref]:
    return [Ref(p.id, d.task, d.queue, p.duplicate, registry) for d, p in zip(drafts, puts, strict=True)]


def _are_texts(headers: Any) -> bool:
    return isinstance(headers, Mapping) and all(isinstance(text, str) for item in headers.items() for text in item)


def _ms(when: datetime | None, what: str) -> int | None:
    if when is None:
        return None
    if not isinstance(when, datetime):
        raise ConfigError(f"{what}={when!r}: expected a datetime with a time zone, such as datetime.now(UTC) + …")
    if when.tzinfo is None:
        raise ConfigError(f"{what}={when!r} has no time zone; give datetime.now(UTC) + … or another aware datetime")
    return -((_EPOCH - when) // timedelta(milliseconds=1))  # rounded up, so that nothing is early
