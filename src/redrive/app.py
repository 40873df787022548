"""An App names a store and holds the tasks that run on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from .codec.routing import Route, Routes, check_route
from .config.resolve import settings, some_size
from .decide import Policy
from .duration import Duration, milliseconds, seconds
from .errors import ConfigError
from .events import Events, Notify, Observer
from .fault import check_rules
from .message import Counts, Draft, GroupOrder, Message, OnDead
from .policy.policies import Poison, Retry, presets
from .policy.retention import Retention
from .redact import redact
from .run_context import Context, Wrap, refuse_loop
from .store import Store
from .stores import open_store
from .stores.validation import word
from .task import Ref, Task, as_text

if TYPE_CHECKING:
    from .audit.log import Audit
    from .aws.dead_letters.ingest import Ingesting
    from .aws.lambda_handlers import LambdaHandler
    from .aws.sns.topic import Topic
    from .crypto import Box, Encrypt
    from .flow.breaker import Breaker
    from .flow.budget import Budget
    from .flow.dependency import Dependency
    from .flow.idempotency import Idempotency
    from .flow.limits import Aimd, Rate
    from .observe.alerts import Alert
    from .schedule import Schedule, Scheduler
    from .triage.auto.auto_redrive import AutoRedrive
    from .triage.controls import Controls
    from .triage.dlq import DeadLetters
    from .triage.redrive.health import Healths
    from .triage.service import RedriveService
    from .worker.middleware import Opener
    from .worker.store_loop import Worker

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", bound=Wrap)
A = TypeVar("A", bound="Callable[[Alert], Any]")
DEFAULT_CONCURRENCY = 10
RETRY_SHARE = 0.2  # of the claims from a backlog
_POISON = Poison()


class Queue(Struct, frozen=True):
    """What the app says of one queue: how many of its messages one worker process runs at once, its weight among
    queues, how its groups are served (None: as the store has it), what it keeps of what is over, whether its dead
    messages are driven back by themselves, which task takes what others send there, and the share of a backlog's claims
    that goes to due retries.
    """

    name: str
    concurrency: int = DEFAULT_CONCURRENCY
    weight: int = 1
    group_width: int | None = None
    group_order: GroupOrder | None = None
    on_dead: OnDead | None = None
    retention: Retention = Retention()
    rate: Rate | None = None
    auto_redrive: AutoRedrive | None = None
    foreign: str | Route | None = None
    retry_share: float = RETRY_SHARE

    def __post_init__(self) -> None:
        self._check_types()
        if not 0 <= self.retry_share <= 1:
            raise ConfigError(
                f"queue {self.name!r}: retry_share={self.retry_share!r}; expected a share of the claims from 0 to 1"
            )
        if self.concurrency < 1 or self.weight < 1:
            raise ConfigError(
                f"queue {self.name!r}: concurrency={self.concurrency} weight={self.weight}; expected 1 or more"
            )
        strict = self.group_order is GroupOrder.STRICT
        if self.group_width is not None and (self.group_width < 1 or (strict and self.group_width > 1)):
            expected = "1 where group_order is 'strict': one after another" if strict else "1 or more"
            raise ConfigError(f"queue {self.name!r}: group_width={self.group_width}; expected {expected}")
        if self.on_dead is OnDead.BLOCK and not strict:
            raise ConfigError(
                f"queue {self.name!r}: on_dead='block' holds a group for its dead head, and only a queue with "
                "group_order='strict' has one"
            )

    def _check_types(self) -> None:
        as_text(self.name or "", "queue name")
        for what in ("concurrency", "weight", "group_width"):
            value = getattr(self, what)
            if not isinstance(value, int) and not (value is None and what == "group_width"):
                raise ConfigError(f"queue {self.name!r}: {what}={value!r}; expected a whole number from 1 up")
        share: object = self.retry_share
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ConfigError(f"queue {self.name!r}: retry_share={share!r}; expected a number from 0 to 1")
        retention: object = self.retention
        if not isinstance(retention, Retention):
            meant = "expected a Retention, such as Retention(keep_done=100)"
            raise ConfigError(f"queue {self.name!r}: retention={retention!r}; {meant}")
        if self.auto_redrive is not None:
            _check_auto(self.name, self.auto_redrive)

    def tell(self, store: Store) -> None:
        """Set in the store what is declared of the groups, and what follows from it."""
        width, order, on_dead = self.group_width, self.group_order, self.on_dead
        if order is GroupOrder.STRICT:
            width = 1
        elif order is GroupOrder.TURNS or (width or 1) > 1:
            order, on_dead = GroupOrder.TURNS, OnDead.SKIP
        if (width, order, on_dead) != (None, None, None):
            store.configure(self.name, group_width=width, group_order=order, on_dead=on_dead)
        routes: Routes | None = getattr(store, "routes", None)  # only where others send too
        if routes is not None and self.foreign is not None:
            routes.add(self.name, self.foreign)


class App:
    """Tasks and the store they run on.

    `url`: `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`. The store is opened when it is first
    needed, so declaring tasks touches no file. Raises ConfigError for a URL it does not know, then.

    `park_for`: how long a message whose task, or whose version or arguments of it, no worker here knows waits for a
    newer worker before it is dead as `unroutable` (default: the setting `park_for`, 5m; 0: at once).

    `blobs`: `file:///srv/blobs` keeps bodies over `blob_threshold` (200 KB) as files in that directory,
    `s3://bucket/prefix?region=eu-central-1` as objects of S3; every producer and worker of the store must reach it. By
    default bodies lie in the store, which bounds their size.

    `recycle_after`, `recycle_memory`: a child process of a task with `isolation="process"` is replaced after that many
    messages, or once it had that much resident memory, such as "1GiB" (default: the settings of these names; never).

    `encrypt`: Keys, such as `Keys.from_env()`, or a function from a key's id to a Key (of None: to the one that
    writes). Bodies, results, checkpoints and texts of faults are then encrypted before the store gets them. By default
    they are not.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
        park_for: Duration | None = None,
        blobs: str | None = None,
        recycle_after: int | None = None,
        recycle_memory: str | int | None = None,
        encrypt: Encrypt | None = None,
    ) -> None:
        if url is not None and not isinstance(url, str):
            raise ConfigError(f"url={redact(repr(url))}: expected the store's URL as text, such as 'sqlite:///work.db'")
        self.url = url if url is not None or store is not None else settings().url
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.queues: dict[str, Queue] = {}
        self.dependencies: dict[str, Dependency] = {}
        self.spec: str | None = None  # MODULE:APP, where a command imported it
        after: object = recycle_after
        if after is not None and (type(after) is not int or after < 1):
            raise ConfigError(f"recycle_after={recycle_after!r}: expected a whole number of messages from 1 up")
        self.recycle_after = recycle_after
        self.recycle_memory = None if recycle_memory is None else _bytes(recycle_memory, "recycle_memory")
        self.park_for_s = None if park_for is None else seconds(park_for, "park_for")
        self._wraps: list[Opener] = []
        self.schedules: dict[str, Schedule] = {}
        self.events = Events()
        self.producer = f"{os.uname().nodename}:{os.getpid()}"
        self.blobs = blobs
        self._box = None if encrypt is None else _box(encrypt)
        self._store = None if store is None else _fronted(store, self._box, blobs)
        self._untold: set[str] = set()  # queues whose declared settings the store does not know yet
        self._lock = threading.Lock()
        self._batches: dict[int, Any] = {}
        self._healths: Healths | None = None

    @classmethod
    def from_env(cls) -> App:
        """An app on the store that `REDRIVE_URL`, or `url` in redrive.toml or `[tool.redrive]`, names."""
        return cls(settings().url)

    @property
    def store(self) -> Store:
        """The store, opened at first use. It is told then of the groups' settings that the app declares."""
        store = self._store
        return self._opened() if store is None or self._untold else store

    def _opened(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = _fronted(open_store(self.url or settings().url), self._box, self.blobs)
            for name in sorted(self._untold):
                if not self._store.traits.read_only:  # who only looks tells it nothing
                    self.queues[name].tell(self._store)
                self._untold.discard(name)
            return self._store

    # -- declaring

    @overload
    def task(
        self,
        *,
        ctx: Literal[True],
        name: str | None = ...,
        queue: str = ...,
        timeout: Duration = ...,
        retry: Retry | str | None = ...,
        rules: Sequence[Any] = ...,
        version: int = ...,
        keep_result: Duration | None = ...,
        on_dead: Task[..., Any] | str | None = ...,
        poison: Poison = ...,
        dependency: str | None = ...,
        rate: Rate | str | None = ...,
        idempotency: Idempotency | None = ...,
        isolation: Literal["process"] | None = ...,
        memory: str | int | None = ...,
    ) -> Callable[[Callable[Concatenate[Context, P], R]], Task[P, R]]: ...

    @overload
    def task(
        self,
        *,
        ctx: Literal[False] = ...,
        name: str | None = ...,
        queue: str = ...,
        timeout: Duration = ...,
        retry: Retry | str | None = ...,
        rules: Sequence[Any] = ...,
        version: int = ...,
        keep_result: Duration | None = ...,
        on_dead: Task[..., Any] | str | None = ...,
        poison: Poison = ...,
        dependency: str | None = ...,
        rate: Rate | str | None = ...,
        idempotency: Idempotency | None = ...,
        isolation: Literal["process"] | None = ...,
        memory: str | int | None = ...,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        *misplaced: object,
        ctx: bool = False,
        name: str | None = None,
        queue: str = "default",
        timeout: Duration = "5m",
        retry: Retry | str | None = None,
        rules: Sequence[Any] = (),
        version: int = 1,
        keep_result: Duration | None = None,
        on_dead: Task[..., Any] | str | None = None,
        poison: Poison = _POISON,
        dependency: str | None = None,
        rate: Rate | str | None = None,
        idempotency: Idempotency | None = None,
        isolation: Literal["process"] | None = None,
        memory: str | int | None = None,
    ) -> Callable[[Callable[..., R]], Task[..., R]]:
        """Register a handler, `def` or `async def`.

        `name` stays the same for as long as messages of the task may be stored (default: module and name of the
        function). `timeout` bounds one run. `retry` is a Retry or a preset's name. `rules` classify its exceptions
        first: (exception class, pattern or predicate, fault kind). `ctx=True` passes a Context as the first argument.
        `version` is that of the parameters: raise it when they change, and lift stored messages by `@task.upcast(…)`;
        a message of a newer version than this waits for a newer worker (see `park_for`).
        `keep_result` keeps done messages of the task that long, with what the handler returned, for `ref.wait()`.
        `on_dead` is a task, or its name, with the same parameters: it is enqueued with the death of a message of this
        one, in the same commit, and gets its arguments; `context().message.headers` says why (`redrive-dead-id`,
        `redrive-dead-reason`, `redrive-dead-error`).
        `poison` says when a message that kills its process is quarantined (default: after three crashes alone).
        `dependency` names what the handler calls: its retry budget and circuit breaker, both on by default, and
        whatever `app.dependency(…)` says of it hold for this task. `rate` bounds its runs, over all workers.
        `idempotency=Idempotency(key=…)` runs it once for each key, a function of its arguments: a duplicate gets the
        stored result, in direct calls too.
        `isolation="process"` runs it in a child process of the worker's, one message at a time, so that what kills
        the process, exhausts its memory or never returns ends that run and nothing else: past its timeout it is
        killed. `memory="512MiB"` bounds the child's address space, the interpreter included.
        Raises ConfigError for a name that is taken, or a signature that cannot be stored.
        """
        if misplaced:
            raise ConfigError("write @app.task(…) with parentheses, also when nothing stands between them")
        as_text(name, "task name")
        as_text(queue or "", "task queue")
        keep_ms = 0 if keep_result is None else milliseconds(keep_result, "keep_result")
        found: object = poison
        if not isinstance(found, Poison):
            raise ConfigError(f"poison={poison!r}: expected a Poison, such as Poison(crashes=3, within='1h')")
        policy = Policy(
            retry=_retry(retry),
            timeout_s=seconds(timeout, "timeout"),
            crashes_alone_max=poison.crashes,
            crashes_within_s=poison.within,
        )
        if policy.timeout_s <= 0:
            raise ConfigError(f"timeout={timeout!r}: expected more than 0, as it bounds each run")
        memory_bytes = _isolated(isolation, memory)
        if not isinstance(on_dead, Task | str | None):
            raise ConfigError(f"on_dead={on_dead!r}: expected a task of this app, or its name")
        if idempotency is not None:
            _check_idempotency(idempotency)

        def register(handler: Callable[..., R]) -> Task[..., R]:
            called = name or _name(handler)
            checked = check_rules(rules, f"rules of task {called!r}")
            task: Task[..., R] = Task(
                self, handler, called, queue, policy, checked, ctx, on_dead, version, keep_ms, isolation, memory_bytes
            )
            task.dependency, task.rate = as_text(dependency, "dependency"), _rate(rate)
            task.idempotency = idempotency
            if task.name in self.tasks:
                raise ConfigError(f"task {task.name!r} is registered twice; give one of them another name=")
            if isinstance(on_dead, Task):
                if on_dead.app is not self:
                    raise ConfigError(f"task {called!r}: on_dead={on_dead.name!r} belongs to another app")
                task.check_takes_over(on_dead)
            self._surround(task, self._wraps)
            self.tasks[task.name] = task
            return task

        return register

    def wrap(self, fn: W) -> W:
        """Run `fn(ctx)` around every handler a worker of this app runs: a generator function that yields once, where
        the handler runs; `@contextmanager` may stand on it. Usable as a decorator; the first one is outermost.

        For sessions, tracing, tenants: a failure of the handler is raised at the yield, so that it can be seen and
        cleaned up after, but it stands whatever the wrap makes of it. An error of the wrap's own, before the yield or
        after a handler that returned, is that run's failure and is retried as such: a commit that failed was no
        success. Async handlers take sync and async wraps, sync handlers only sync ones: ConfigError otherwise, here or
        where the task is declared. A direct call of a task runs no wraps.
        """
        from .worker.middleware import Opener

        wraps = [*self._wraps, Opener(fn)]
        for task in self.tasks.values():  # all checked before any is changed
            self._refuse_wraps(task, wraps)
        for task in self.tasks.values():
            self._surround(task, wraps)
        self._wraps = wraps
        return fn

    def _surround(self, task: Task[Any, Any], wraps: Sequence[Opener]) -> None:
        if wraps:
            from .worker.middleware import around

            self._refuse_wraps(task, wraps)
            task.entry = around(task.handler, task.is_async, wraps)

    def _refuse_wraps(self, task: Task[Any, Any], wraps: Sequence[Opener]) -> None:
        for opener in wraps if not task.is_async else ():
            opener.refuse(task.name)

    def queue(
        self,
        name: str,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        weight: int = 1,
        group_width: int | None = None,
        group_order: Literal["turns", "strict"] | None = None,
        on_dead: Literal["skip", "block"] | None = None,
        retention: Retention | None = None,
        rate: Rate | str | None = None,
        auto_redrive: AutoRedrive | None = None,
        foreign: Task[..., Any] | str | Route | None = None,
        retry_share: float = RETRY_SHARE,
    ) -> Queue:
        """Say how a queue is worked: `concurrency` messages at once per worker process; `weight` shares a worker's
        total among queues.

        While more messages are due than workers have room for, `retry_share` of what they claim are retries that are
        due: so a retry waits for its delay, and not for the whole backlog. Priorities, and the order of groups, stand
        above that. 0 makes retries wait their turn. SQS gives messages in an order of its own.

        Of messages with the same `group`, `group_width` run at once over all workers (1 unless said otherwise), and
        groups take turns. `group_order="strict"`: one after another in the order of enqueue, a retry before what came
        later; with `on_dead="block"` a dead one holds its group until it is redriven or discarded, or the group is
        resumed, with `"skip"` the next goes on. These are settings of the store: set when the app opens it, for every
        process; None leaves one as it is. `retention` bounds what is kept of done and dead messages. `rate`, such as
        "100/s", bounds the runs of the queue's messages over all workers. `auto_redrive=AutoRedrive(…)` drives its dead
        messages back by itself, or gives them up as poison.

        `foreign` leads messages that redrive did not write to a task, on SQS: a task, its name, or
        `fn(body, attributes)` that returns a name, or None for "dead, as unroutable". `body` is what the JSON stands
        for, or the text or bytes that came; `attributes` are the message attributes, by name, as text. A message
        attribute `task` names it where `foreign` does not. Raises ConfigError for what cannot be meant.
        """
        order = word(GroupOrder, group_order, f"queue {name!r}: group_order")
        dead = word(OnDead, on_dead, f"queue {name!r}: on_dead")
        kept, bound = retention or Retention(), _rate(rate)
        route = foreign.name if isinstance(foreign, Task) else foreign
        if route is not None:
            check_route(name, route)
        self.queues[name] = Queue(
            name, concurrency, weight, group_width, order, dead, kept, bound, auto_redrive, route, retry_share
        )
        self._untold.add(name)
        return self.queues[name]

    def dependency(
        self,
        name: str,
        *,
        budget: Budget | UnsetType | None = UNSET,
        breaker: Breaker | UnsetType | None = UNSET,
        rate: Rate | str | None = None,
        concurrency: Aimd | None = None,
        per: str | None = None,
    ) -> Dependency:
        """Say how something that tasks call is spared, by all workers together. It is the dependency of the tasks that
        name it (`@app.task(dependency=…)`), and of the task of that name where that one names none.

        `budget` bounds its retries and `breaker` stops calling it while it fails: both as by default unless given, None
        turns one off. `rate`, such as "100/s", spaces the runs that call it, `concurrency` adapts how many do at once.
        A wait it asks for (Retry-After) holds all of its messages. `per` does all of that for each key by itself:
        "group" for the messages' groups, "args.account" for an argument. What is held waits in the queue, and spends no
        attempt. Raises ConfigError for what cannot be meant.
        """
        from .flow.breaker import Breaker
        from .flow.budget import Budget
        from .flow.dependency import Dependency

        as_text(name or "", "dependency name")
        if budget is UNSET:
            budget = Budget()
        if breaker is UNSET:
            breaker = Breaker()
        found = self.dependencies[name] = Dependency(name, budget, breaker, _rate(rate), concurrency, per)
        return found

    def periodic(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        tz: str = "UTC",
        name: str | None = None,
        missed: str = "last",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        key: str | None = None,
        group: str | None = None,
        jitter: Duration = 0,
        **task_options: Any,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Enqueue a task by the clock, each tick once, while at least one scheduler runs (`redrive scheduler`,
        `redrive worker --scheduler`, `app.run_scheduler()`, `async with app.scheduler()`).

        Stands above `@app.task(…)`, or above a plain function, which it registers; `**task_options` (`retry=`,
        `timeout=`, …) are then those of `app.task`, and `name` and `queue` go to the task too.

        `cron`: five fields, six with seconds first, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`; read by
        the clocks of `tz`. `every="30s"` instead: the multiples of a period since the epoch. Where clocks change, an
        expression that names minute and hour keeps Debian's rule: in the hour that is left out it runs when that hour
        is over, in the one that comes twice the first time only. One with `*` as its minute or hour, or with seconds,
        follows the clock: nothing runs in the hour that is left out, and the hour that comes twice runs twice.

        `missed` says what becomes of ticks at which no scheduler ran, or the schedule was paused: `last` enqueues the
        latest one, `all` each (at most the last 1,000), `skip` none. A schedule that is new, or whose expression
        changed, starts from now. A parameter `tick: datetime` is given the tick's time, with its zone's offset;
        `args` and `kwargs` are the same each time. Messages carry the headers `redrive-schedule` and `redrive-tick`.

        `name` (default: the task's) is that of the schedule: its state is kept by it. `queue`, `priority`, `key` and
        `group` are as in `using`: with a `key`, a tick is left out while the message of an earlier one is not done.
        `jitter` spreads the messages over that long after their ticks. Raises ConfigError for what cannot be meant.
        """
        from .schedule import periodic

        declare: Callable[[Callable[P, R]], Task[P, R]] = periodic(
            self,
            cron,
            every=every,
            tz=tz,
            name=name,
            missed=missed,
            args=args,
            kwargs=kwargs,
            queue=queue,
            jitter=jitter,
            using={"priority": priority, "key": key, "group": group},
            task_options=task_options,
        )
        return declare

    # -- enqueueing

    def enqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Ref]:
        """Put all drafts in one commit; durable when it returns. With `tx`, a connection or session of yours on the
        store's own database, they are written in its transaction: there with your data, or not at all.

        Raises EnqueueError for a draft no store could take, StoreError when nothing was written, RuntimeError inside a
        running event loop: use `aenqueue_many` there.
        """
        refuse_loop("enqueue()", "await ….aenqueue(…)")
        listed = list(drafts)
        return self._refs(listed, self.store.put(listed) if tx is None else self.store.put(listed, tx=tx))

    async def aenqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Ref]:
        """As `enqueue_many`, for asyncio code; concurrent calls share a commit."""
        from .enqueue_batch import batch_of

        listed = list(drafts)
        if tx is not None:  # here and now: nothing is committed, and what it writes to belongs to this thread
            return self._refs(listed, self.store.put(listed, tx=tx))
        return self._refs(listed, await batch_of(self.store, self._batches).put(listed))

    def _refs(self, drafts: Sequence[Draft], puts: Sequence[Any]) -> list[Ref]:
        return [Ref(p.id, d.task, d.queue, p.duplicate, self) for d, p in zip(drafts, puts, strict=True)]

    def topic(self, name: str, *, bytes_max: int = 256 * 1024) -> Topic:
        """A topic of SNS, to publish events that several queues get, and to subscribe queues of this app.

        `name` is the topic's after the prefix of the app's queues, as `PREFIX-NAME`, ending in `.fifo` for a FIFO
        topic; or its ARN. With `create=true` in the app's URL it is made. `bytes_max` is the topic's own bound on an
        event with its attributes (`MaximumMessageSize`, 1 MiB at most). Raises ConfigError.
        """
        from .aws.sns.topic import topic_of

        return topic_of(self, name, bytes_max)

    # -- looking and changing

    def counts(self, queue: str | None = None) -> Counts:
        """How many messages lie in each lane, of one queue or all."""
        return self.store.counts(queue)

    def job(self, id: str) -> Message | None:
        """The message with this id, or None: unknown, or done and deleted; on SQS without `track=true` also one that
        waits, or runs elsewhere."""
        return self.store.find([id])[0]

    def cancel(self, id: str, *, reason: str = "", actor: str | None = None) -> str:
        """End a waiting message, or ask a running one to stop: `cancelled`, `requested`, `too_late` (it rests or is
        done) or `unknown`. One commit with its entry in the audit log. Raises Unsupported where the store cannot find
        it (SQS without `track=true`).
        """
        from .triage.pauses import cancel

        return cancel(self.store, [id], actor=actor, reason=reason)[0].value

    def body(self, message: Message) -> bytes:
        """The message's body as it was enqueued: from blob storage where it lies there, and `message.body` is but a
        reference. Raises Unreadable if the blob is missing or damaged, BlobsUnavailable."""
        from .blobs import whole_body

        return whole_body(self.store, message)

    def collect_blobs(self, older_than: Duration = "1h") -> int:
        """Remove blobs that no message refers to and that were written longer ago than that; returns how many.

        What a crash left behind: workers do the same once an hour. A put, or the transaction it is part of, must not
        take longer than `older_than`. Raises ConfigError where no `blobs` are set, StoreError.
        """
        from .blobs import collect

        return collect(self.store, milliseconds(older_than, "older_than"))

    @property
    def audit(self) -> Audit:
        """Who changed what, when and why: iterating yields the entries, the newest first; `verify` finds changed
        ones."""
        from .audit.log import Audit

        return Audit(self.store)

    @property
    def dlq(self) -> DeadLetters:
        """The dead lane: list, show, retry, and plan redrives."""
        from .triage.dlq import DeadLetters

        return DeadLetters(self.store, self)

    @property
    def flow(self) -> Controls:
        """What flow control knows of each dependency: list, show, and hold breakers open or closed."""
        from .triage.controls import Controls

        return Controls(self.store, self)

    @property
    def healths(self) -> Healths:
        """The health checks that gates ask: `app.dlq.health` adds one."""
        from .triage.redrive.health import Healths

        with self._lock:
            if self._healths is None:
                self._healths = Healths()
            return self._healths

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer(events)` with every batch of events of this app's workers; returns the call that ends it."""
        return self.events.subscribe(observer)

    @overload
    def on(self, name: str, fn: Callable[[Alert], Any], *, every: Duration = ...) -> Callable[[], None]: ...

    @overload
    def on(self, name: str, *, every: Duration = ...) -> Callable[[A], A]: ...

    def on(self, name: str, fn: Callable[[Alert], Any] | None = None, *, every: Duration = "10m") -> Any:
        """Call `fn(alert)` when something of this app's workers needs a person: `dead_growth` (messages died),
        `quarantined` (a message was found to be poison), `breaker_opened` (a dependency is left alone) or `run_stopped`
        (a redrive run stopped itself). Returns the call that ends it; without `fn` it is a decorator.

        What happens within a second is told together, and the same (per task, queue and failure; per dependency; per
        run) again at most `every` so long, with how often it happened meanwhile: over all processes that share the
        store. `fn`, `def` or `async def`, runs on a thread of its own, never holds up a worker, and what it raises is
        printed. Raises ConfigError for a name it does not know. `redrive worker --notify URL` posts the same to a
        webhook.
        """
        from .observe.alerts import on

        if fn is not None:
            return on(self, name, fn, every)

        def listen(fn: A) -> A:
            on(self, name, fn, every)
            return fn

        return listen

    # -- working

    def worker(
        self,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        *,
        concurrency: int | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
        prefetch: int | None = None,
        burst: bool = False,
        drain: bool = False,
        name: str | None = None,
        ingest: bool | None = None,
        suspect_processes: int | None = None,
    ) -> Worker:
        """A worker to embed: `async with app.worker(queues=["crm"]):` runs it on this event loop until the block ends.

        `queues`: names in order of preference (default: all that tasks name), or a mapping to their concurrency.
        `concurrency` bounds the messages that run at once over all queues. `lease` is how long a claim holds unless
        renewed. `prefetch` messages wait claimed. `ingest`: on sqs://, take the dead letters of these queues out of SQS
        into the triage store beside the work. `suspect_processes` bounds the child processes, where they can be had,
        that run what a killed worker left (default: two for each processor). Raises ConfigError for values that cannot
        be meant, Refused where the store says that it cannot carry these tasks (SQS: maxReceiveCount, retention, FIFO,
        cells).
        """
        from .worker.executors.app_import import refuse_in_child
        from .worker.preflight import vet
        from .worker.store_loop import Worker

        refuse_in_child("app.worker()")
        for task in self.tasks.values():
            task.check_on_dead()
        chosen = settings()
        if lease is not None and seconds(lease, "lease") <= 0:
            raise ConfigError(f"lease={lease!r}: expected more than 0")
        if (concurrency is not None and concurrency < 1) or (prefetch is not None and prefetch < 0):
            raise ConfigError(f"{concurrency=}, {prefetch=}: expected concurrency from 1 up and prefetch from 0 up")
        if suspect_processes is not None and suspect_processes < 1:
            raise ConfigError(f"{suspect_processes=}: expected 1 or more")
        lease_s = chosen.lease_s if lease is None else seconds(lease, "lease")
        for task in self.tasks.values():
            task.check_poison(lease_s)
        worked = self._worked(queues)
        vet(self, self.store, [queue.name for queue in worked])
        return Worker(
            self,
            worked,
            total=concurrency,
            lease_s=lease_s,
            grace_s=chosen.grace_s if grace is None else seconds(grace, "grace"),
            prefetch=prefetch,
            burst=burst or drain,
            drain=drain,
            name=name,
            ingest=chosen.ingest if ingest is None else ingest,
            suspect_processes=suspect_processes or chosen.suspect_processes,
            recycle=(self.recycle_after or chosen.recycle_after, self.recycle_memory or chosen.recycle_memory),
            park_for_s=chosen.park_for_s if self.park_for_s is None else self.park_for_s,
        )

    def run_worker(self, queues: Sequence[str] | Mapping[str, int] | None = None, **options: Any) -> None:
        """Work until SIGTERM or SIGINT; options as `worker`. `burst=True` returns when nothing is due or leased, but
        for what an open breaker or a cool-down holds; `drain=True` also waits for that and for scheduled ones.
        """
        from .worker.process import run

        refuse_loop("run_worker()", "async with app.worker(…)")
        run(self.worker(queues, **options))

    def lambda_handler(
        self, *, concurrency: int | None = None, margin: Duration = "2s", metrics: bool = True
    ) -> LambdaHandler:
        """A function for AWS Lambda that works messages of SQS: `handler = app.lambda_handler()`.

        Give it an event source mapping of the queue with `ReportBatchItemFailures`. Handlers, policies and flow control
        are a worker's. What is done Lambda deletes; what is to be retried is hidden until then, and what dies is sent
        on first. Runs end, and their idempotency keys are held, no longer than the invocation lasts, less `margin` (of
        a short one, a third): what has not begun by then goes back uncounted, what still runs is cancelled and retried.
        Of a FIFO queue the rest of a group goes back when one of it is to be retried.

        `concurrency` bounds how many messages of an event run at once (default: as `app.queue` says). `metrics` writes
        those of `redrive.aws.cloudwatch` to the log. At its first event it raises ConfigError for an app that is not on
        `sqs://`, and for a task with `isolation="process"`.
        """
        from .aws.lambda_handlers import LambdaHandler

        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"{concurrency=}: expected 1 or more")
        return LambdaHandler(self, concurrency=concurrency, margin_s=seconds(margin, "margin"), metrics=metrics)

    def scheduler(self) -> Scheduler:
        """A scheduler to embed: `async with app.scheduler():` enqueues the ticks of `app.schedules` until the block
        ends."""
        from .schedule import Scheduler

        return Scheduler(self)

    def run_scheduler(self) -> None:
        """Enqueue the ticks of `app.schedules` until SIGTERM or SIGINT. Any number may run: each tick comes once."""
        from .schedule.scheduler import run

        refuse_loop("run_scheduler()", "async with app.scheduler()")
        run(self.scheduler())

    def _carrying(self, owner: str, notice: Notify) -> RedriveService:
        from .triage.service import RedriveService

        return RedriveService(self, owner, notice)

    def _ingesting(self, queues: Sequence[str], notice: Notify) -> Ingesting:
        from .aws.dead_letters.ingest import Ingesting
        from .aws.dead_letters.sources import ingest_of, sources, sqs_of

        store = sqs_of(self.store)
        return Ingesting(ingest_of(store), sources(store, queues), notice)

    def _worked(self, queues: Sequence[str] | Mapping[str, int] | None) -> list[Queue]:
        if isinstance(queues, str):
            raise ConfigError(f"queues={queues!r}: expected a list of names, such as [{queues!r}]")
        named = {t.queue for t in self.tasks.values()} | {s.queue for s in self.schedules.values()} | set(self.queues)
        names = list(queues) if queues else sorted(named) or ["default"]
        sizes = queues if isinstance(queues, Mapping) else {}
        known = [self.queues.get(name) or Queue(name) for name in names]
        return [q if (n := sizes.get(q.name)) is None else replace(q, concurrency=n) for q in known]


def _box(encrypt: Encrypt) -> Box:
    from .crypto import Box

    return Box(encrypt)


def _fronted(store: Store, box: Box | None, blobs: str | None) -> Store:
    """The store behind what encrypts, and that behind what keeps large bodies elsewhere."""
    if box is not None:
        from .crypto import sealed_by

        store = sealed_by(store, box)
    return _with_blobs(store, blobs)


def _with_blobs(store: Store, url: str | None) -> Store:
    url = url or settings().blobs
    if url is None:
        return store
    from .blobs import with_blobs

    return with_blobs(store, url)


def _rate(rate: Rate | str | None) -> Rate | None:
    if rate is None:
        return None
    from .flow.limits import Rate

    if not isinstance(rate, Rate | str):
        raise ConfigError(f"rate={rate!r}: expected text such as '100/s', or a Rate")
    return Rate(rate) if isinstance(rate, str) else rate


def _retry(retry: Retry | str | None) -> Retry:
    if retry is None:
        return Retry()
    if isinstance(retry, str):
        if retry not in presets:
            raise ConfigError(f"retry={retry!r}: no such preset; known: {', '.join(presets)}")
        return presets[retry]
    if not isinstance(retry, Retry):
        raise ConfigError(f"retry={retry!r}: expected a Retry, such as Retry(max_attempts=8), or a preset's name")
    return retry


def _check_auto(queue: str, given: object) -> None:
    from .triage.auto.auto_redrive import AutoRedrive

    if not isinstance(given, AutoRedrive):
        raise ConfigError(f"queue {queue!r}: auto_redrive={given!r}; expected an AutoRedrive, such as AutoRedrive()")


def _check_idempotency(given: object) -> None:
    from .flow.idempotency import Idempotency

    if not isinstance(given, Idempotency):
        raise ConfigError(
            f"idempotency={given!r}: expected an Idempotency, such as Idempotency(key=lambda order_id: order_id)"
        )


def _isolated(isolation: object, memory: object) -> int | None:
    """How many bytes a child of that task may have."""
    if isolation not in (None, "process"):
        raise ConfigError(f"isolation={isolation!r}: expected 'process', or None for the worker's own process")
    if memory is None:
        return None
    if isolation is None:
        raise ConfigError(f"memory={memory!r} bounds a child process; give isolation='process' too")
    return _bytes(memory, "memory")


def _bytes(value: object, what: str) -> int:
    try:
        return some_size(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{what}={value!r}: {error}; expected bytes, or a size such as '512MiB'") from None


def _name(handler: Callable[..., Any]) -> str:
    module, name = getattr(handler, "__module__", ""), getattr(handler, "__qualname__", type(handler).__qualname__)
    return name if module in ("__main__", "__mp_main__", "", None) else f"{module}.{name}"
