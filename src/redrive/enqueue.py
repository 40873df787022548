"""Enqueue messages: the task that users hold, its options, and the commit that concurrent calls share."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, overload

import msgspec
from msgspec.structs import asdict

from .chain import ChainStep, chained, previous
from .codec.annotations import first_type
from .codec.codec import Upcast
from .duration import Duration, milliseconds
from .errors import BlobsUnavailable, ConfigError, StoreError, Unsupported
from .gathered import gathered
from .habits import ATTRIBUTES, USING, with_hints
from .ids import new_id
from .message import NORMAL, PRIORITIES, Draft, Lane, Message, PutResult, labelled
from .ref import Ref as Ref
from .registry import Registry
from .run_context import Context, context, current, enter, leave, refuse_loop
from .stores.validation import admit as check_drafts
from .task import TaskOptions, TaskSpec, are_texts, as_ms, as_text, as_traceparent

if TYPE_CHECKING:
    import asyncio  # imported late, as synchronous producers do not need it

P = ParamSpec("P")
R = TypeVar("R", covariant=True)  # the return type of a call of the task; a coroutine for an async handler
T = TypeVar("T")
U = TypeVar("U", bound=Upcast)


class EnqueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a message beyond its arguments, as `using` sets them."""

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
    traceparent: str | None = None
    keep_ms: int | None = None
    tx: Any = None
    waiting: bool = False
    replace: bool = False


class Bound(Generic[P, R]):
    """A task with options for its messages, as `task.using(…)` returns it."""

    def __init__(self, task: Task[P, R], options: EnqueueOptions) -> None:
        self._task, self._options = task, options

    if not TYPE_CHECKING:  # else type checkers would take any attribute

        def __getattr__(self, name: str) -> Any:
            hint = f"; write {ATTRIBUTES[name]}" if name in ATTRIBUTES else ""
            raise AttributeError(f"a task has no attribute {name!r}{hint}", name=name, obj=self)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """Return the message that a call with these arguments would enqueue, for `app.enqueue_many`, `app.batch` and
        `app.chain`. An argument may be `previous` in a chain: what the step before returned."""
        if self._options.tx is not None:
            self._refuse_tx("a draft has no transaction of its own: give tx= to app.enqueue_many(…)")
        if any(value is previous for value in (*args, *kwargs.values())):
            body, awaits = self._task.codec.encode_step(args, kwargs)
            return ChainStep(**asdict(self._draft(current(), body=body)), awaits=tuple(awaits))
        return self._draft(current(), args, kwargs)

    def _draft(
        self,
        parent: Context | None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = {},
        id: str | None = None,
        body: bytes | None = None,
    ) -> Draft:
        task, o = self._task, self._options
        return Draft(
            id=id,
            task=task.name,
            queue=o.queue or task.queue,
            body=task.codec.encode(args, kwargs) if body is None else body,
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
            traceparent=o.traceparent,
            waiting=o.waiting,
            replace=o.replace,
        )

    @overload
    def enqueue(self: Bound[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Ref[T]: ...

    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ref[R]: ...

    def enqueue(self, *args: Any, **kwargs: Any) -> Ref[Any]:
        """Put a message on the queue; durable when it returns. In asyncio code use `aenqueue`. Raises EnqueueError,
        StoreError, TypeError."""
        draft = self._draft(current(), args, kwargs)
        return put(self._task.app, [draft], self._options.tx)[0]

    @overload
    async def aenqueue(self: Bound[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Ref[T]: ...

    @overload
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ref[R]: ...

    async def aenqueue(self, *args: Any, **kwargs: Any) -> Ref[Any]:
        """Do as `enqueue` does, without blocking the event loop; concurrent calls share a commit."""
        draft = self._draft(current(), args, kwargs)
        return (await aput(self._task.app, [draft], self._options.tx))[0]

    def _refuse_tx(self, why: str) -> NoReturn:
        raise ConfigError(f"task {self._task.name!r}: using(tx=…) has no meaning here: {why}")

    @overload
    def _follow_up(
        self: Bound[P, Coroutine[Any, Any, T]], ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Draft, Ref[T]]: ...

    @overload
    def _follow_up(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Draft, Ref[R]]: ...

    def _follow_up(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Draft, Ref[Any]]:
        """Return the draft of a follow-up, which is written in the commit that settles the run, and its ref. Raises
        here the errors that the store would raise at the settlement."""
        if self._options.tx is not None:
            self._refuse_tx("a follow-up is written with the ack")
        app = self._task.app
        if ctx._task is not None and ctx._task.app is not app:
            raise ConfigError(
                f"task {self._task.name!r} belongs to another app than {ctx._task.name!r}, so they share no commit; "
                "use its own enqueue()"
            )
        draft = self._draft(ctx, args, kwargs, new_id(ctx._now_ms()))
        if app.tracing is not None:
            (draft,) = app.tracing.stamp((draft,))
        check_drafts((draft,), ctx._traits())
        return draft, Ref(draft.id or "", draft.task, draft.queue, False, app)


class Task(TaskSpec, Bound[P, R]):
    """A handler with a stable name, a queue and a policy. Made by `@app.task(…)`; a call calls the handler directly."""

    app: Registry
    called: Callable[..., Any]
    entry: Callable[..., Any]

    def __init__(self, app: Registry, handler: Callable[..., R], name: str | None, options: TaskOptions) -> None:
        TaskSpec.__init__(self, app, handler, name, options)
        Bound.__init__(self, self, EnqueueOptions())
        if options.gather is not None:
            self.called = self.entry = gathered(handler, self)
        if options.takes_context:
            self._check_context()
        self.__name__: Any | str = getattr(handler, "__name__", self.name)
        self.__doc__ = handler.__doc__
        self.__wrapped__ = handler

    def _check_context(self) -> None:
        name, kind = first_type(self.handler)
        if kind is not Any and isinstance(kind, type) and not (issubclass(kind, Context) or issubclass(Context, kind)):
            raise ConfigError(
                f"task {self.name!r}: with ctx=True its first parameter takes the Context, and {name} is of type "
                f"{kind.__name__}; put `ctx: Context` before it, or leave out ctx=True"
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler directly: nothing is queued or retried; it gets a local Context.

        With `idempotency=` it runs once for its key here too: a completed duplicate gets the stored result. Raises
        InProgress while another run holds the key, KeyReused for a key that belongs to other arguments, StoreError.
        """
        if self.is_async:
            return self._call_async(*args, **kwargs)  # type: ignore[return-value]
        made = self._local_context()
        token = enter(made)
        try:
            if self.idempotency is not None:
                from .direct_call import call

                return call(self, made, args, kwargs)  # type: ignore[no-any-return]
            return self.called(*self._with_context(args), **kwargs)  # type: ignore[no-any-return]
        finally:
            leave(token)

    async def _call_async(self, *args: Any, **kwargs: Any) -> Any:
        made = self._local_context()
        token = enter(made)
        try:
            if self.idempotency is not None:
                from .direct_call import acall

                return await acall(self, made, args, kwargs)
            return await self.called(*self._with_context(args), **kwargs)
        finally:
            leave(token)

    def _with_context(self, args: Sequence[Any]) -> Sequence[Any]:
        return (context(), *args) if self.takes_context else args

    def _local_context(self) -> Context:
        now = int(time.time() * 1000)
        id = new_id(now)
        message = Message(id, self.name, self.queue, b"", id, lane=Lane.LEASED, attempt=1, fence=1, enqueued_ms=now)
        return Context(message, time.monotonic() + self.policy.timeout_s, self)

    @with_hints("using(…)", USING)
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
        labels: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        traceparent: str | None = None,
        keep_result: Duration | None = None,
        tx: Any = None,
        unique: Literal["waiting"] | None = None,
        replace: bool = False,
    ) -> Bound[P, R]:
        """Return this task with options for the messages that are enqueued through it.

        `delay` or `at`: when it may run first. `key`: unique per task until the message is done, cancelled or
        discarded, and at least `for_` long. `unique="waiting"`: the key is held only while the message waits, so that
        one more can wait while it runs. `replace=True`: so, too, and what waits gets the new arguments and time (the
        latest wins). `priority` 0 (first) to 3. `deadline`: past it the message dies unrun.
        `labels`, such as {"customer": "7"}, are found by selectors (`label:customer=7`).
        `traceparent`: the sender's context as W3C Trace Context writes it, kept through retries and redrives (default:
        that of the current span, where the app is instrumented). `keep_result`: how long a done message is kept with
        its result, for `ref.wait()`. `tx`: a connection or session of yours on the store's own database: the message
        is written in its transaction, and exists once you commit. Raises ConfigError for invalid values.
        """
        if priority not in PRIORITIES:
            raise ConfigError(f"priority {priority!r}: expected one of {PRIORITIES}, 0 is served first")
        if delay is not None and at is not None:
            raise ConfigError("give delay= or at=, not both")
        if for_ is not None and key is None:
            raise ConfigError("for_= says how long key= is held; give key= too")
        if unique not in (None, "waiting"):
            raise ConfigError(f"unique={unique!r}: expected 'waiting' (None: held until the message is done)")
        if (replace or unique) and (key is None or for_ is not None):
            raise ConfigError("replace= and unique= go with key=, and without for_=: the key is held while it waits")
        if replace and group is not None:
            raise ConfigError("replace= goes without group=, in which each message keeps its place in the order")
        if headers is not None and not are_texts(headers):
            raise ConfigError(f"headers={headers!r}: expected names and values as text")
        options = EnqueueOptions(
            delay_ms=0 if delay is None else milliseconds(delay, "delay"),
            due_ms=as_ms(at, "at"),
            key=as_text(key, "key"),
            key_for_ms=0 if for_ is None else milliseconds(for_, "for_"),
            group=as_text(group, "group"),
            queue=as_text(queue, "queue"),
            priority=priority,
            deadline_ms=as_ms(deadline, "deadline"),
            headers=labelled(headers, labels),
            correlation_id=as_text(correlation_id, "correlation_id"),
            traceparent=as_traceparent(traceparent),
            keep_ms=None if keep_result is None else milliseconds(keep_result, "keep_result"),
            tx=tx,
            waiting=unique is not None,
            replace=replace,
        )
        return Bound(self, options)

    def upcast(self, version: int) -> Callable[[U], U]:
        """Register the function that converts stored arguments from `version` to `version + 1`.

        It gets a dict of arguments by name, as plain JSON values, and returns the next version's dict. A body of an
        older version passes through these functions one after another each time it is read; the stored bytes do not
        change. If a step is missing or fails, the message is dead as `unreadable`, its bytes intact. Raises
        ConfigError for a version that needs no conversion, or that has its function already.

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


class TaskChain:
    """A chain of messages, made by `app.chain(…)`."""

    def __init__(self, app: Registry, steps: Sequence[Draft]) -> None:
        for step in steps:
            task = app.tasks.get(step.task)
            if task is not None and task.idempotency is not None:
                raise ConfigError(
                    f"task {step.task!r} has idempotency=, so it cannot be a step of a chain: a stored result runs no "
                    "handler, and nothing would be enqueued after it"
                )
        self._app, self._first = app, chained(steps)

    def draft(self) -> Draft:
        """Return the draft of the first step, which carries the others, for `app.batch` and `app.enqueue_many`."""
        return self._first

    def enqueue(self, *, tx: Any = None) -> Ref[Any]:
        """Put the first step; durable when it returns its ref. The later steps share its correlation id. Raises as
        `app.enqueue_many`."""
        return put(self._app, [self._first], tx)[0]

    async def aenqueue(self, *, tx: Any = None) -> Ref[Any]:
        """Do as `enqueue` does, without blocking the event loop."""
        return (await aput(self._app, [self._first], tx))[0]


def put(registry: Registry, drafts: Sequence[Draft], tx: Any = None) -> list[Ref[Any]]:
    """Put all drafts in one commit, or in the transaction `tx`. See `App.enqueue_many`."""
    refuse_loop("enqueue()", "await ….aenqueue(…)")
    drafts = drafts if registry.tracing is None else registry.tracing.stamp(drafts)
    return _refs(registry, drafts, registry.put(drafts, tx=tx))


async def aput(registry: Registry, drafts: Sequence[Draft], tx: Any = None) -> list[Ref[Any]]:
    """Do as `put` does, in asyncio code; concurrent calls share a commit."""
    drafts = drafts if registry.tracing is None else registry.tracing.stamp(drafts)
    if tx is not None:  # written at once, as the caller's connection belongs to this thread
        return _refs(registry, drafts, registry.put(drafts, tx=tx))
    return _refs(registry, drafts, await _batch_of(registry, registry._batches).put(drafts))


def _refs(registry: Registry, drafts: Sequence[Draft], puts: Sequence[PutResult]) -> list[Ref[Any]]:
    return [Ref(p.id, d.task, d.queue, p.duplicate, registry, p.replaced) for d, p in zip(drafts, puts, strict=True)]


class PutBatch:
    """Batches the puts of one event loop for one app: drafts that arrive during a commit share the next one."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, registry: Registry, loop: asyncio.AbstractEventLoop) -> None:
        self._registry, self.loop = registry, loop
        self._waiting: list[tuple[Sequence[Draft], asyncio.Future[list[PutResult]]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def put(self, drafts: Sequence[Draft]) -> list[PutResult]:
        future: asyncio.Future[list[PutResult]] = self.loop.create_future()
        self._waiting.append((drafts, future))
        if self._flusher is None:
            self._flusher = self.loop.create_task(self._flush())
        import asyncio

        return await asyncio.shield(future)

    async def _flush(self) -> None:
        import asyncio

        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                for results, future in await asyncio.to_thread(self._write, taken):
                    if isinstance(results, BaseException):
                        future.set_exception(results)
                    else:
                        future.set_result(results)
        finally:
            self._flusher = None

    def _write(
        self, taken: list[tuple[Sequence[Draft], asyncio.Future[list[PutResult]]]]
    ) -> list[tuple[list[PutResult] | Exception, asyncio.Future[list[PutResult]]]]:
        try:
            puts = iter(self._registry.put([draft for drafts, _ in taken for draft in drafts]))
            return [([next(puts) for _ in drafts], future) for drafts, future in taken]
        except (BlobsUnavailable, Unsupported):  # concerns only drafts with large bodies, or with a key or a batch
            return [(self._write_one(drafts), future) for drafts, future in taken]
        except StoreError as error:
            return [(error, future) for _, future in taken]
        except Exception:  # the draft of one caller was refused, so write those of the others
            return [(self._write_one(drafts), future) for drafts, future in taken]

    def _write_one(self, drafts: Sequence[Draft]) -> list[PutResult] | Exception:
        try:
            return self._registry.put(drafts)
        except Exception as error:
            return error


def _batch_of(registry: Registry, batches: dict[int, PutBatch]) -> PutBatch:
    """Return the PutBatch of the running event loop: that in `batches`, or a new one, which is added."""
    import asyncio

    loop = asyncio.get_running_loop()
    current = batches.get(id(loop))
    if current is None:
        for key, batch in [*batches.items()]:  # a batch keeps its loop alive, so the id of the loop is not reused
            if batch.loop.is_closed():
                batches.pop(key, None)
        current = batches[id(loop)] = PutBatch(registry, loop)
    return current
