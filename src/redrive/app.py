"""Declare tasks and queues on a store, enqueue, work, and handle dead letters: the public face of redrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from msgspec.structs import replace

from .config.resolve import settings
from .duration import Duration, milliseconds, seconds
from .enqueue import Ref, Task, aput, put
from .errors import ConfigError
from .events import Notify
from .message import Draft, Message
from .policy.policies import Poison, Retry
from .registry import Queue as Queue
from .registry import Registry
from .run_context import Context, Wrap, refuse_loop
from .task import as_text, task_options

if TYPE_CHECKING:  # for start-up time: all of these are below
    from .audit.log import Audit
    from .aws.lambda_handlers import LambdaHandler
    from .aws.sns.topic import Topic
    from .flow.idempotency import Idempotency
    from .flow.limits import Rate
    from .observe.alerts import Alert
    from .schedule import Schedule, Scheduler
    from .triage.controls import Controls
    from .triage.dlq import DeadLetters
    from .worker.middleware import Opener
    from .worker.services import Service
    from .worker.store_loop import Worker

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", bound=Wrap)
A = TypeVar("A", bound="Callable[[Alert], Any]")


class TaskKeywords(TypedDict, total=False):
    """The keywords of `@app.task(…)`, all but `ctx`."""

    name: str | None
    queue: str
    timeout: Duration
    retry: Retry | str | None
    rules: Sequence[Any]
    version: int
    keep_result: Duration | None
    on_dead: Task[..., Any] | str | None
    poison: Poison
    dependency: str | None
    rate: Rate | str | None
    idempotency: Idempotency | None
    isolation: Literal["process"] | None
    memory: str | int | None


class App(Registry):
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

    tasks: dict[str, Task[Any, Any]]
    schedules: dict[str, Schedule]

    @classmethod
    def from_env(cls) -> App:
        """An app on the store that `REDRIVE_URL`, or `url` in redrive.toml or `[tool.redrive]`, names."""
        return cls(settings().url)

    # -- declaring

    @overload
    def task(
        self, *, ctx: Literal[True], **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[Concatenate[Context, P], R]], Task[P, R]]: ...

    @overload
    def task(
        self, *, ctx: Literal[False] = ..., **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self, *misplaced: object, ctx: bool = False, name: str | None = None, **options: Any
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
        checked = task_options(ctx=ctx, **options)

        def register(handler: Callable[..., R]) -> Task[..., R]:
            task: Task[..., R] = Task(self, handler, name, checked)
            if task.name in self.tasks:
                raise ConfigError(f"task {task.name!r} is registered twice; give one of them another name=")
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
            self.task,
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
        return put(self, list(drafts), tx)

    async def aenqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Ref]:
        """As `enqueue_many`, for asyncio code; concurrent calls share a commit."""
        return await aput(self, list(drafts), tx)

    def topic(self, name: str, *, bytes_max: int = 256 * 1024) -> Topic:
        """A topic of SNS, to publish events that several queues get, and to subscribe queues of this app.

        `name` is the topic's after the prefix of the app's queues, as `PREFIX-NAME`, ending in `.fifo` for a FIFO
        topic; or its ARN. With `create=true` in the app's URL it is made. `bytes_max` is the topic's own bound on an
        event with its attributes (`MaximumMessageSize`, 1 MiB at most). Raises ConfigError.
        """
        from .aws.sns.topic import topic_of

        return topic_of(self, name, bytes_max)

    # -- looking and changing

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
        from .triage.service import RedriveService
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
        names = [queue.name for queue in worked]
        vet(self, self.store, names)
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
            suspect_processes=suspect_processes or chosen.suspect_processes,
            recycle=(self.recycle_after or chosen.recycle_after, self.recycle_memory or chosen.recycle_memory),
            park_for_s=chosen.park_for_s if self.park_for_s is None else self.park_for_s,
            runs=partial(RedriveService, self),
            ingesting=self._ingesting(names) if (chosen.ingest if ingest is None else ingest) else None,
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

    def _ingesting(self, queues: Sequence[str]) -> Callable[[Notify], Service]:
        from .aws.dead_letters.sources import ingesting

        return partial(ingesting, self.store, queues)

    def _worked(self, queues: Sequence[str] | Mapping[str, int] | None) -> list[Queue]:
        if isinstance(queues, str):
            raise ConfigError(f"queues={queues!r}: expected a list of names, such as [{queues!r}]")
        named = {t.queue for t in self.tasks.values()} | {s.queue for s in self.schedules.values()} | set(self.queues)
        names = list(queues) if queues else sorted(named) or ["default"]
        sizes = queues if isinstance(queues, Mapping) else {}
        known = [self.queues.get(name) or Queue(name) for name in names]
        return [q if (n := sizes.get(q.name)) is None else replace(q, concurrency=n) for q in known]
