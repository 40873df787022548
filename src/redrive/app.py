"""The public API of redrive: declare tasks and queues on a store, enqueue, run workers, and handle dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from .config import settings
from .duration import Duration, milliseconds, seconds
from .enqueue import Ref, Task, TaskChain, aput, put
from .errors import ConfigError
from .gathered import gathered
from .message import Draft, Message
from .read_model import ReadModel
from .registry import Queue as Queue
from .run_context import Context, Tracing, Wrap, refuse_loop
from .system import need_posix
from .task import AlertKeywords, TaskKeywords, as_text, task_options

if TYPE_CHECKING:  # not imported at run time, to start faster
    from .aws.lambda_handlers import LambdaHandler
    from .aws.sns import Topic
    from .batch import Batch, BatchInfo, BatchRef
    from .observe.alerts import Alert
    from .schedule import Schedule, Scheduler
    from .status import RunNow
    from .worker import MakeService, Worker
    from .worker.middleware import Opener
    from .workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W", bound=Wrap)
A = TypeVar("A", bound="Callable[[Alert], Any]")
#: An ASGI application: scope, receive, send.
Asgi = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]


class App(ReadModel):
    """Tasks and the store they run on.

    `url`: `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`, or that of a server. The store is opened at
    its first use, so declaring tasks touches no file; an unknown URL raises ConfigError then.

    `park_for`: how long a message waits for a newer worker while no worker here knows its task, version or arguments;
    after that it is dead as `unroutable` (default: the setting `park_for`, 5m; 0: at once).

    `blobs`: `file:///srv/blobs` keeps bodies over `blob_threshold` (200 KB) as files in that directory,
    `s3://bucket/prefix?region=eu-central-1` as objects of S3. Every producer and worker of the store must reach it. By
    default bodies are in the store, which limits their size.

    `recycle_after`, `recycle_memory`: replace a child process of a task with `isolation="process"` after that many
    messages, or once its resident memory reaches a size such as "1GiB" (default: the settings of these names; never).

    `encrypt`: Keys, such as `Keys.from_env()`, or a function from a key's id to a Key (from None to the key that
    writes). Bodies, results, checkpoints and the texts of faults are then encrypted before the store gets them.

    `release`: the release of your program, such as "2.4.1". Faults record it, and failure groups can be resolved in it.
    `known_for`: how long `redrive job show` says of a done message when, where and how long it ran, though it is
    deleted: about 20 bytes a message, 60 MiB an hour at most (0: not at all; 24h at most; never on SQS).
    """

    tracing: Tracing | None

    tasks: dict[str, Task[Any, Any]]
    schedules: dict[str, Schedule]

    @classmethod
    def from_env(cls) -> App:
        """Return an app on the store that `REDRIVE_URL`, or `url` in redrive.toml or `[tool.redrive]`, names."""
        return cls(settings().url)

    @overload
    def task(
        self, *, gather: int, ctx: Literal[True], **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[[Context, list[T]], Any]], Task[[T], Any]]: ...

    @overload
    def task(
        self, *, gather: int, ctx: Literal[False] = ..., **options: Unpack[TaskKeywords]
    ) -> Callable[[Callable[[list[T]], Any]], Task[[T], Any]]: ...

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

        `name` must stay the same while messages of the task may be stored (default: module and name of the function).
        `timeout` bounds one run. `retry` is a Retry or a preset's name. `rules` classify its exceptions first:
        (exception class, pattern or predicate, fault kind). `ctx=True` passes a Context as the first argument.
        `version` is that of the parameters: raise it when they change, and convert stored messages with
        `@task.upcast(…)`; a message of a newer version waits for a newer worker (see `park_for`).
        `keep_result` keeps done messages that long, with the handler's return value, for `ref.wait()`.
        `on_dead` is a task, or its name, with the same parameters. When a message dies, it is enqueued with the same
        arguments in the same commit; `context().message.headers` has the reason (`redrive-dead-id`,
        `redrive-dead-reason`, `redrive-dead-error`).
        `poison` says when a message that kills its process is quarantined (default: after three crashes alone).
        `dependency` names what the handler calls. Its retry budget and circuit breaker, both on by default, and the
        rest of `app.dependency(…)` apply. `rate` bounds its runs over all workers.
        `idempotency=Idempotency(key=…)` runs it once for each key, a function of its arguments: a duplicate gets the
        stored result, in direct calls too.
        `isolation="process"` runs it in a child process, one message at a time, and kills that past the timeout: a
        crash, a leak or an endless loop ends that run and nothing else. `memory="512MiB"` bounds the child's address
        space, the interpreter included.
        `gather=50` calls the handler with a list, `def push(items: list[Item])`: one item for each of up to 50
        messages, each enqueued with its own (`push.enqueue(item)`). It returns None, or a list as long: for each
        message its result, or the exception with which it failed. What it raises fails all of them. `linger="200ms"`
        is how long the first may wait for others (default: not at all).
        `slo=SLO("99.9% within 30s")` is its objective, which `app.slo()` measures.
        `accepts={"no-spread": "ten messages a night"}` accepts findings of `redrive policy check`, with reasons.
        Raises ConfigError for a name that is taken, or a signature that cannot be stored."""
        if misplaced:
            raise ConfigError("write @app.task(…) with parentheses, also when nothing stands between them")
        as_text(name, "task name")
        checked = task_options(ctx=ctx, **options)

        def register(handler: Callable[..., R]) -> Task[..., R]:
            task: Task[..., R] = Task(self, handler, name, checked)
            if task.name in self.tasks:
                raise ConfigError(f"task {task.name!r} is registered twice; give one of them another name=")
            if self._wraps or self.tracing is not None:
                task.entry = self._entry(task, self._wraps)
            self.tasks[task.name] = task
            return task

        return register

    def wrap(self, fn: W) -> W:
        """Run `fn(ctx)` around every handler that a worker of this app runs: a generator function that yields once,
        where the handler runs; with or without `@contextmanager`. Usable as a decorator; the first one is outermost.

        Use it for sessions, tracing and tenants. A failure of the handler is raised at the yield, for clean-up; the
        wrap cannot turn it into a success. An error of the wrap itself, before the yield or after the handler, fails
        the run, which is retried: a commit that failed was no success. Async handlers take sync and async wraps, sync
        handlers only sync ones; otherwise this, or the declaration of the task, raises ConfigError. A direct call of a
        task runs no wraps."""
        from .worker.middleware import Opener

        wraps = [*self._wraps, Opener(fn)]
        entries = [self._entry(task, wraps) for task in self.tasks.values()]  # check all tasks before changing any
        for task, entry in zip(self.tasks.values(), entries, strict=True):
            task.entry = entry
        self._wraps = wraps
        return fn

    def _entry(self, task: Task[Any, Any], wraps: Sequence[Opener]) -> Callable[..., Any]:
        from .worker.middleware import around, traced

        for opener in wraps if not task.is_async else ():
            opener.refuse(task.name)
        entry = around(task.handler, task.is_async, wraps)
        entry = entry if task.gather is None else gathered(entry, task)
        return entry if self.tracing is None else traced(entry, task.is_async, self.tracing)

    def instrument(
        self,
        *,
        parent: bool = False,
        baggage: Sequence[str] = (),
        metrics: bool = True,
        tracer_provider: Any = None,
        meter_provider: Any = None,
    ) -> None:
        """Trace by OpenTelemetry what this app sends, runs, settles and redrives. Call it once, beside the
        declarations; the setting `otel` does the same with the defaults. Needs `pip install 'redrive[otel]'`.

        Each run is a trace of its own with links to its sender and to the previous attempt; `parent=True` makes it a
        child of the sender instead. `baggage` names the entries of the sender's baggage that travel with a message.
        `metrics` exports the metrics of this app's workers too. The providers are OpenTelemetry's global ones unless
        given. Raises ConfigError without the package, or for an app that is instrumented already.
        """
        from .observe.otel import instrument

        providers = {"tracer_provider": tracer_provider, "meter_provider": meter_provider}
        self.tracing = instrument(self, parent=parent, baggage=baggage, metrics=metrics, **providers)
        for task in self.tasks.values():
            task.entry = self._entry(task, self._wraps)
        if self._store is not None:
            self._store = self.tracing.wrap(self._store)

    def _instrument(self) -> None:
        self.instrument()

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

        Decorates a task, above `@app.task(…)`, or a plain function, which it registers with `name`, `queue` and
        `**task_options` (`retry=`, `timeout=`, …).

        `cron`: five fields, six with seconds first, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`, on the
        clocks of `tz`. `every="30s"` instead: the multiples of a period since the epoch. When clocks change, an
        expression that names minute and hour follows Debian's rule: in a skipped hour it runs at the end of that hour,
        and in a repeated hour only the first time. One with `*` as minute or hour, or with seconds, follows the clock:
        it skips the skipped hour and runs twice in the repeated one.

        `missed` decides about ticks at which no scheduler ran, or the schedule was paused: `last` enqueues the latest
        one, `all` each (at most the last 1,000), `skip` none. A schedule that is new, or whose expression changed,
        starts from now. A parameter `tick: datetime` receives the tick's time, with its zone's offset; `args` and
        `kwargs` are the same each time. Messages carry the headers `redrive-schedule` and `redrive-tick`.

        `name` (default: the task's) identifies the schedule and its stored state. `queue`, `priority`, `key` and
        `group` are as in `using`: with a `key`, a tick is skipped while the message of an earlier one is not done.
        `jitter` spreads the messages over that long after their ticks. Raises ConfigError for invalid values."""
        from .schedule import periodic

        declare: Callable[[Callable[P, R]], Task[P, R]] = periodic(
            self, self.task, cron, every=every, tz=tz, name=name, missed=missed, args=args, kwargs=kwargs, queue=queue,
            jitter=jitter, using={"priority": priority, "key": key, "group": group}, task_options=task_options,
        )  # fmt: skip
        return declare

    def enqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Ref[Any]]:
        """Put all drafts in one commit; durable when it returns. With `tx`, a connection or session of yours on the
        store's own database, they are written in its transaction and exist once you commit.

        Raises EnqueueError for a draft that no store could take, StoreError when nothing was written, RuntimeError
        inside a running event loop: use `aenqueue_many` there."""
        return put(self, list(drafts), tx)

    async def aenqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Ref[Any]]:
        """Do as `enqueue_many` does, in asyncio code; concurrent calls share a commit."""
        return await aput(self, list(drafts), tx)

    def chain(self, *steps: Draft) -> TaskChain:
        """Return a chain: `app.chain(fetch.draft(url), parse.draft(previous), save.draft(previous)).enqueue()`.

        Each step is enqueued in the commit that acks the one before, and gets what that returned for `previous`. A step
        that dies is a dead letter; its redrive resumes the chain. In a batch
        (`TaskChain.draft()`) each step joins as a member. Raises ConfigError for another number of steps than 2 to
        100, for a first step that takes `previous`, and for a task with `idempotency=`, whose stored result would end
        the chain.
        """
        return TaskChain(self, steps)

    def batch(
        self,
        drafts: Iterable[Draft | Batch] = (),
        *,
        name: str,
        key: str | None = None,
        on_success: Draft | None = None,
        on_complete: Draft | None = None,
        on_death: Draft | None = None,
        tolerate: int | str = 0,
        results: bool | Duration = False,
        labels: Mapping[str, str] | None = None,
        stop_if: str | None = None,
        expect: Duration | None = None,
        width: int | None = None,
    ) -> Batch:
        """Return a batch: messages that are waited for together, with callbacks for their end.

        `app.batch(drafts, name="sync", on_success=report.draft()).enqueue()` puts all members; with
        `with app.batch(name="crawl") as b:` the block adds them by `b.add(…)`, and its end seals the batch. Members
        retry, die and are redriven as other messages are, without a time limit; a member may add members
        (`ctx.batch.add`). Callbacks are messages, too:

        - `on_success`: once ever, when nothing is open and no more members failed than `tolerate` ("5%", or a number)
        - `on_complete`: each time that nothing is open
        - `on_death`: at the first death; after a redrive, at the next first one

        Once more members are dead than `stop_if` says ("dead>20%" of all, or "dead>100"), those that wait are
        cancelled: in the first episode, after the seal, and for a share after 20 members have ended. A batch that runs
        longer than `expect` after its seal is a need in `app.status()`. At most `width` of its members run at once in
        each queue, over all workers.

        A member may be a batch, whose members count in this one, too, and which must be done. A draft whose unique key
        another message holds counts as a duplicate, and nothing waits for it. `key` makes a
        batch unique for its name: a producer that was killed goes on where it stood when it gives the same key and
        drafts again. With `results`, what each member returns is kept for seven days from its end, or for the time
        given ("30d"): `ref.results()`, in callbacks `ctx.batch.results()`. Each member has those of the `labels`
        that it does not set itself. Raises ConfigError for invalid values; `enqueue` raises Unsupported on
        SQS without `cells=` or `triage=`, or with `stop_if`.
        """
        from .batch import batch

        return batch(
            self, drafts, name=name, key=as_text(key, "key"), callbacks=(on_success, on_complete, on_death),
            tolerate=tolerate, results=results, labels=labels, stop_if=stop_if, expect=expect, width=width,
        )  # fmt: skip

    def workflow(
        self,
        *,
        name: str,
        key: str | None = None,
        on_success: Draft | None = None,
        on_complete: Draft | None = None,
        on_death: Draft | None = None,
    ) -> Workflow:
        """Return a workflow: steps that are enqueued together, each to begin once those that it needs are done.

            w = app.workflow(name="order", key=f"order:{number}")
            paid = w.step(charge, number, amount)
            label = w.step(book, number, paid.result)
            w.map(mail, addresses, tolerate=10).after(label)
            w.enqueue()

        A workflow is a batch whose parts are its steps: it has the same callbacks, states and counts. A step that dies
        is a dead letter; its redrive resumes the workflow. `key` makes a workflow unique for its name. Raises
        ConfigError for invalid values; `enqueue` raises Unsupported on SQS without `cells=` or `triage=`, and there
        for a step that takes a result.
        """
        from .batch import new_state
        from .workflow import Workflow

        return Workflow(self, new_state(self, name, as_text(key, "key"), (on_success, on_complete, on_death)))

    def batches(self) -> list[BatchInfo]:
        """Return the batches that have members and did not end more than seven days ago, at most 10,000. Raises
        StoreError."""
        from .batch import listed

        return listed(self.store, limit=10_000)

    def batch_ref(self, id: str) -> BatchRef:
        """Return a ref to the batch with this id, to follow or cancel it."""
        from .batch import BatchRef

        return BatchRef(id, self.store, app=self)

    def topic(self, name: str, *, bytes_max: int = 256 * 1024) -> Topic:
        """Return an SNS topic, to publish events to it and to subscribe queues of this app.

        `name` is the topic's name after the prefix of the app's queues (`PREFIX-NAME`, ending in `.fifo` for a FIFO
        topic), or its ARN. `create=true` in the app's URL creates it. `bytes_max` is the topic's `MaximumMessageSize`,
        which bounds an event with its attributes (1 MiB at most). Raises ConfigError.
        """
        from .aws.sns import topic_of

        return topic_of(self, name, bytes_max)

    def cancel(self, id: str, *, kill: bool = False, reason: str = "", actor: str | None = None) -> str:
        """End a waiting message, or ask a running one to stop. Returns `cancelled`, `requested`, `too_late` (it is
        dead or done) or `unknown`. With `kill`, the child process of one that runs isolated is killed, too, half a
        second after it was asked. One commit with its entry in the audit log. Raises Unsupported where the store
        cannot find it (SQS without `track=true`)."""
        from .triage.pauses import cancel

        return cancel(self.store, [id], kill=kill, actor=actor, reason=reason)[0].value

    def run_now(self, *ids: str, reason: str = "", actor: str | None = None) -> list[RunNow]:
        """Make messages due that wait for their time: after a failure, by a delay or a schedule. Attempts and history
        stay. Returns for each id `due`, `held` (by a pause, a group or flow control, which stay), `running`,
        `too_late` (it is dead or done) or `unknown`. One commit with its entry in the audit log. Raises ConfigError,
        StoreError, and Unsupported on SQS, which cannot change the delay of a message."""
        from .status import run_now

        return run_now(self.store, self, ids, actor=actor, reason=reason)

    def body(self, message: Message) -> bytes:
        """Return the message's body as enqueued, also from blob storage. Raises Unreadable, BlobsUnavailable."""
        from .blobs import whole_body

        return whole_body(self.store, message)

    def collect_blobs(self, older_than: Duration = "1h") -> int:
        """Remove blobs that no message refers to and that were written longer ago than `older_than`; return how many.

        Crashes leave such blobs; workers remove them once an hour, too. No put or its transaction may take longer than
        `older_than`. Raises ConfigError without `blobs`, StoreError.
        """
        from .blobs import collect

        return collect(self.store, milliseconds(older_than, "older_than"))

    @overload
    def on(self, name: str, fn: Callable[[Alert], Any], **options: Unpack[AlertKeywords]) -> Callable[[], None]: ...

    @overload
    def on(self, name: str, **options: Unpack[AlertKeywords]) -> Callable[[A], A]: ...

    def on(self, name: str, fn: Callable[[Alert], Any] | None = None, **options: Any) -> Any:
        """Call `fn(alert)` when this app's workers need a person. Returns the call that ends it; without `fn` it is a
        decorator.

        On events: `dead_growth` (messages died), `quarantined` (a message is poison), `breaker_opened` (a dependency is
        not called any more), `run_stopped` (a redrive run stopped itself), `regressed` (a failure group died again
        after it was resolved). Events within a second make one alert.
        On thresholds: `depth` (messages due in a queue, `above` 5000), `dead` (100), `age` (of the oldest that is due,
        "15m"), `error_rate` (share of failed runs, 0.3), `p95` (of runs: give `above`), `no_workers`, `worker_hung`
        (it cannot begin messages), `slo_burn` (an objective's alerts, or a rate), `schedule_late` ("1m"),
        `batch_partial` (batches of a name that wait for a redrive), `batch_unsealed` (since its last member, "1h"). One
        fires once its figure has been above for `for_`, and is resolved once it has been below for that long. `queue`
        and `task` bound it. Workers, `redrive scheduler` and `redrive watch` look every 5 s, one of them for all.

        The same alert repeats at most once in `every` ("10m"), over all processes that share the store. `fn`, `def` or
        `async def`, runs on a thread of its own; what it raises is printed. Raises ConfigError."""
        from .thresholds import on

        if fn is not None:
            return on(self, name, fn, **options)

        def listen(fn: A) -> A:
            on(self, name, fn, **options)
            return fn

        return listen

    def dashboard(
        self,
        *,
        authorize: Callable[[Any], Any] | None = None,
        token: str | None = None,
        read_only: bool = False,
        hosts: Collection[str] | None = None,
        base_path: str = "",
    ) -> Asgi:
        """The pages of this app as an ASGI application: `fastapi_app.mount("/jobs", app.dashboard(authorize=policy))`.

        `authorize(request)`, which may be async, returns who asks: a `redrive.web.User`, a name with all permissions,
        (name, permissions), or None. With `token`, who has it may do everything. With neither, only requests from this
        machine are answered. `read_only` answers each change with 405. `hosts` are the names that a request may have in
        its Host, beside loopback; None: any where `authorize` is given, else none. `base_path` is where a proxy shows
        the pages. Needs `pip install 'redrive[web]'`. Raises ConfigError."""
        try:
            web = import_module(".web", __package__)  # imported by name, as pages belong to a higher layer
        except ModuleNotFoundError as error:
            raise ConfigError(f"the pages need their packages ({error}); pip install 'redrive[web]'") from error
        site: Asgi = web.Site(
            self,
            registry=self,
            authorize=authorize,
            token=token,
            read_only=read_only,
            hosts=hosts,
            base_path=base_path,
        )
        return site

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
        """Return a worker to embed: `async with app.worker(queues=["crm"]):` runs it on this event loop until the block
        ends.

        `queues`: names in order of preference (default: those of all tasks), or a mapping to their concurrency.
        `concurrency` bounds the messages that run at once over all queues. `lease` is how long a claim holds unless it
        is renewed. `prefetch` bounds the messages claimed ahead of those that may run (default: as many). `ingest`, on
        sqs://, moves the dead letters of these queues from SQS to the triage store. `suspect_processes` bounds the
        child processes that run what a killed worker left (default: two for each processor). Raises ConfigError for
        invalid values, and Refused where the store cannot run these tasks (SQS: maxReceiveCount, retention, FIFO,
        cells).
        """
        need_posix("a worker")
        from .worker import Worker
        from .worker.executors.app_import import refuse_in_child
        from .worker.preflight import check_sizes, lease_seconds, preflight

        refuse_in_child("app.worker()")
        chosen = settings()
        check_sizes(concurrency, prefetch, suspect_processes)
        lease_s = chosen.lease_s if lease is None else lease_seconds(lease)
        for task in self.tasks.values():
            task.check_on_dead()
            task.check_poison(lease_s)
        worked = self.queues_of(queues)
        names = [queue.name for queue in worked]
        preflight(self, self.store, names)
        return Worker(
            self, worked, total=concurrency, lease_s=lease_s, prefetch=prefetch, burst=burst or drain, drain=drain,
            name=name, grace_s=chosen.grace_s if grace is None else seconds(grace, "grace"),
            suspect_processes=suspect_processes or chosen.suspect_processes,
            recycle=(self.recycle_after or chosen.recycle_after, self.recycle_memory or chosen.recycle_memory),
            park_for_s=chosen.park_for_s if self.park_for_s is None else self.park_for_s,
            services=self._services(names, chosen.ingest if ingest is None else ingest),
        )  # fmt: skip

    def run_worker(self, queues: Sequence[str] | Mapping[str, int] | None = None, **options: Any) -> None:
        """Work until SIGTERM or SIGINT; options as `worker`. `burst=True` returns when nothing is due or leased, apart
        from messages that an open breaker or a cool-down holds; `drain=True` also waits for those and for scheduled
        ones."""
        need_posix("a worker")
        from .worker.process import run

        refuse_loop("run_worker()", "async with app.worker(…)")
        run(self.worker(queues, **options))

    def lambda_handler(
        self, *, concurrency: int | None = None, margin: Duration = "2s", metrics: bool = True
    ) -> LambdaHandler:
        """A function for AWS Lambda that works messages of SQS: `handler = app.lambda_handler()`.

        Use it with an event source mapping that has `ReportBatchItemFailures`. Handlers, policies and flow control
        work as in a worker. Lambda deletes done messages; a retry is hidden until it is due, and a dead message is sent
        on first. Runs end, and their idempotency keys are held, no longer than the invocation lasts, less `margin` (a
        third of a short one): messages that have not begun by then go back uncounted, and running ones are cancelled
        and retried. In a FIFO queue, the rest of a group goes back when one of its messages is to be retried.

        `concurrency` bounds how many messages of an event run at once (default: as in `app.queue`). `metrics` writes
        those of `redrive.aws.cloudwatch` to the log, which also has a JSON line per message (`REDRIVE_LOG=off`: none).
        The first event raises ConfigError for an app that is not on `sqs://`, or a task with `isolation="process"`."""
        from .aws.lambda_handlers import LambdaHandler
        from .observe.logs import log_of_lambda

        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"{concurrency=}: expected 1 or more")
        margin_s = seconds(margin, "margin")
        return LambdaHandler(self, concurrency=concurrency, margin_s=margin_s, metrics=metrics, log=log_of_lambda)

    def scheduler(self) -> Scheduler:
        """Return a scheduler to embed: `async with app.scheduler():` enqueues the ticks of `app.schedules` until the
        block ends."""
        from .schedule import Scheduler

        return Scheduler(self)

    def run_scheduler(self) -> None:
        """Enqueue the ticks of `app.schedules` until SIGTERM or SIGINT. Several schedulers share the ticks."""
        from .schedule.scheduler import run

        refuse_loop("run_scheduler()", "async with app.scheduler()")
        run(self.scheduler())

    def _services(self, queues: Sequence[str], ingest: bool) -> list[MakeService]:
        """Return the functions that create the services of a worker of these queues. The services carry out redrive
        runs, resume queues whose pause is over, watch failure groups, warn if no scheduler runs, check the thresholds
        of alerts and, with `ingest`, ingest dead letters."""
        from .triage.pauses import PauseEnds
        from .triage.service import RedriveService

        services: list[MakeService] = [partial(RedriveService, self), partial(PauseEnds, self.store)]
        if self.store.traits.cells and self.store.traits.triages:
            from .triage.group_watch import GroupWatch

            services.append(partial(GroupWatch, self))
        if self.schedules:
            from .schedule import SchedulerWatch

            services.append(partial(SchedulerWatch, self))
        from .thresholds import WatchService, rules_of

        if rules := rules_of(self):
            services.append(partial(WatchService, self, rules))
        if ingest:
            from .aws.dead_letters.sources import ingesting

            services.append(partial(ingesting, self.store, queues))
        return services
