"""Hold what an app declares: its tasks, queues, dependencies and schedules, its store and its observers.

A `Registry` is what workers, triage, schedulers and metrics are given. It imports none of them. `redrive.App` is a
Registry with the methods that open those parts.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple, replace

from .codec.routing import Route, RouteTarget, check_route
from .config.resolve import settings
from .duration import Duration, milliseconds, seconds
from .errors import ConfigError
from .events import Events, Observer
from .history import KNOWN_MAX_MS, Flusher, Recorder
from .message import Counts, Draft, GroupOrder, Job, OnDead, PutResult, Swap
from .policy.retention import Retention
from .redact import redact
from .run_context import Tracing, refuse_loop
from .store import Store
from .stores import open_store
from .stores.validation import word
from .system import host
from .task import TaskSpec, as_rate, as_size, as_slo, as_text

if TYPE_CHECKING:  # not imported at run time, to start faster
    from collections.abc import Callable

    from .crypto import Encrypt
    from .flow.auto_redrive import AutoRedrive
    from .flow.breaker import Breaker
    from .flow.budget import Budget
    from .flow.dependency import Dependency
    from .flow.health import HealthChecks
    from .flow.limits import Aimd, Rate, Rates
    from .policy.slo import SLO

DEFAULT_CONCURRENCY = 10
_SQS_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}(\.fifo)?|[A-Za-z0-9_-]{1,80}")
RETRY_SHARE = 0.2  # the share of due retries among the messages claimed from a backlog


class Queue(Struct, frozen=True):
    """The settings of one queue.

    `concurrency` is the number of its messages that one worker process runs at once, `weight` its share among queues.
    `group_width`, `group_order` and `on_dead` configure its groups (None: keep the store's setting). `retention` bounds
    the finished messages that are kept, `auto_redrive` redrives dead messages automatically, `foreign` names the task
    for messages that others send, and `retry_share` is the share of a backlog's claims that goes to due retries. `sqs`
    and `dlq` are the names of the queue and of its dead-letter queue on SQS, `slo` is its objective.
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
    foreign: RouteTarget | None = None
    retry_share: float = RETRY_SHARE
    sqs: str | None = None
    dlq: str | None = None
    slo: SLO | None = None

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
        for what in ("sqs", "dlq"):
            _check_sqs_name(self.name, what, getattr(self, what))

    def apply(self, store: Store) -> None:
        """Write the declared group settings to the store, with the queue's names on SQS and the foreign route."""
        if self.sqs is not None or self.dlq is not None:
            store.give_names(self.name, sqs=self.sqs, dlq=self.dlq)
        width, order, on_dead = self.group_width, self.group_order, self.on_dead
        if order is GroupOrder.STRICT:
            width = 1
        elif order is GroupOrder.TURNS or (width or 1) > 1:
            order, on_dead = GroupOrder.TURNS, OnDead.SKIP
        if (width, order, on_dead) != (None, None, None):
            store.configure(self.name, group_width=width, group_order=order, on_dead=on_dead)
        if self.foreign is not None:
            store.route(self.name, self.foreign)


class Registry:
    """The declarations of an app, and the store that they run on.

    See `App` for the parameters. The store is opened when it is first used, so declaring tasks touches no file.
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
        release: str = "",
        known_for: Duration = "1h",
    ) -> None:
        if url is not None and not isinstance(url, str):
            raise ConfigError(f"url={redact(repr(url))}: expected the store's URL as text, such as 'sqlite:///work.db'")
        after: object = recycle_after
        if after is not None and (type(after) is not int or after < 1):
            raise ConfigError(f"recycle_after={recycle_after!r}: expected a whole number of messages from 1 up")
        self.url: str | None = url if url is not None or store is not None else settings().url
        self.tasks: Mapping[str, TaskSpec] = {}
        self.queues: dict[str, Queue] = {}
        self.dependencies: dict[str, Dependency] = {}
        self.schedules: dict[str, Any] = {}  # by name, a redrive.schedule.Schedule
        self._wraps: list[Any] = []  # a redrive.worker.middleware.Opener for each wrap around handlers
        self.events: Events = Events()
        self.tracing: Tracing | None = None  # set by `App.instrument`
        self.schedules_watched = False  # True if a scheduler runs here, or if the program has checked for one
        self.spec: str | None = None  # MODULE:APP, if a command imported the app by that
        self.release: str = (as_text(release, "release") or "") if release else ""
        self.producer: str = f"{host()}:{os.getpid()}"
        self.recycle_after = recycle_after
        self.recycle_memory: int | None = None if recycle_memory is None else as_size(recycle_memory, "recycle_memory")
        self.park_for_s: float | None = None if park_for is None else seconds(park_for, "park_for")
        self.blobs = blobs
        self._known_ms = milliseconds(known_for, "known_for") if known_for else 0
        if self._known_ms > KNOWN_MAX_MS:
            raise ConfigError(
                f"known_for={known_for!r}: expected 24h at most; keep_result= and keep_done_for= keep longer"
            )
        self._box = None if encrypt is None else _box(encrypt)
        self._store = None if store is None else self._wrap(store)
        self._unapplied: set[str] = set()  # queues whose declared settings are not written to the store yet
        self._lock = threading.Lock()
        self._batches: dict[int, Any] = {}  # by id of an event loop, its batch of concurrent enqueues
        self._health_checks: HealthChecks | None = None
        self._flusher: Flusher | UnsetType | None = UNSET

    @property
    def store(self) -> Store:
        """The store, opened at first use. Opening it writes the group settings that the app declares."""
        store = self._store
        return self._open() if store is None or self._unapplied else store

    @property
    def flusher(self) -> Flusher | None:
        """The flusher that counts for the history in the store; None if the store keeps no history."""
        current, store = self._flusher, self.store
        if current is UNSET or (current is not None and current.store is not store):  # tests give an app another store
            kept = settings().telemetry and store.traits.cells and not store.traits.read_only
            current = self._flusher = (
                Flusher(Recorder(self.tasks, self.queues), store, self._known_ms) if kept else None
            )
        return current

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        """Put drafts as `Store.put` does, and count the puts for the history; with `tx`, once that commits."""
        return (self.flusher or self.store).put(drafts, swaps=swaps, tx=tx)

    def _open(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = self._wrap(open_store(self.url or settings().url))
            for name in sorted(self._unapplied):
                if not self._store.traits.read_only:
                    self.queues[name].apply(self._store)
                self._unapplied.discard(name)
            return self._store

    def _wrap(self, store: Store) -> Store:
        """Return the store wrapped as configured: for encryption, blob storage of large bodies, then spans."""
        if self._box is not None:
            from .crypto import sealed_by

            store = sealed_by(store, self._box)
        chosen = settings()
        blobs = self.blobs or chosen.blobs
        if blobs is not None:
            from .blobs import with_blobs

            store = with_blobs(store, blobs)
        if chosen.otel and self.tracing is None:
            self._instrument()
        return store if self.tracing is None else self.tracing.wrap(store)

    def _instrument(self) -> None:
        """Instrument the app if the setting `otel` is on."""

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
        rate: Rates | None = None,
        auto_redrive: AutoRedrive | None = None,
        foreign: TaskSpec | str | tuple[TaskSpec | str, ...] | Route | None = None,
        retry_share: float = RETRY_SHARE,
        sqs: str | None = None,
        dlq: str | None = None,
        slo: SLO | None = None,
    ) -> Queue:
        """Declare how a queue is worked: `concurrency` messages at once per worker process; `weight` shares a worker's
        total among queues.

        While more messages are due than workers have room for, `retry_share` of what they claim are due retries, so a
        retry waits for its delay and not for the whole backlog. Priorities and the order of groups come first. With 0,
        retries wait behind the backlog. SQS chooses the order itself.

        Of messages with the same `group`, `group_width` run at once over all workers (default: 1), and groups take
        turns. `group_order="strict"` runs one after another in the order of enqueue, and a retry before later messages.
        With `on_dead="block"` a dead message then holds its group until it is redriven or discarded, or the group is
        resumed; with `"skip"` the group goes on. The store keeps these settings for every process; they are written
        when the app opens it, and None leaves one as it is.

        `retention` bounds the done and dead messages kept. `rate`, such as "100/s", bounds the runs of the
        queue's messages over all workers. `auto_redrive=AutoRedrive(…)` redrives its dead messages without a person,
        and quarantines those that die too often.

        `foreign` routes messages that redrive did not write, on SQS: a task or its name takes all of them; of a tuple
        of tasks the message attribute `task` or the type of a CloudEvent chooses one, and the first takes the rest; a
        function `fn(body, attributes)` returns a name, or None for what the message itself names. `body` is the decoded
        JSON, or the text or bytes as received; `attributes` are the message attributes as text, by name. With names the
        queue takes these tasks only, also from your own producers. Without `foreign`, the message names its task.

        `sqs` and `dlq` take over queues of SQS by their own names: that of the queue (default: `PREFIX-NAME`), and that
        of its dead-letter queue (default: the one in its redrive policy, else `…-dlq`). Other engines ignore them.
        `slo` is an objective of all its messages, beside those of their tasks. Raises ConfigError for invalid values,
        and for a queue of SQS that two queues name.
        """
        order = word(GroupOrder, group_order, f"queue {name!r}: group_order")
        dead = word(OnDead, on_dead, f"queue {name!r}: on_dead")
        kept, bound = retention or Retention(), as_rate(rate)
        some = foreign if isinstance(foreign, tuple) else (foreign,)
        names = tuple(each.name if isinstance(each, TaskSpec) else each for each in some)
        route: Any = names if isinstance(foreign, tuple) else names[0]
        if route is not None:
            check_route(name, route)
        for other in self.queues.values():
            if sqs is not None and other.sqs == sqs and other.name != name:
                raise ConfigError(f"queue {name!r}: sqs={sqs!r} is that of queue {other.name!r}; name each once")
        self.queues[name] = Queue(
            name,
            concurrency,
            weight,
            group_width,
            order,
            dead,
            kept,
            bound,
            auto_redrive,
            route,
            retry_share,
            sqs,
            dlq,
            as_slo(slo),
        )
        self._unapplied.add(name)
        return self.queues[name]

    def dependency(
        self,
        name: str,
        *,
        budget: Budget | UnsetType | None = UNSET,
        breaker: Breaker | UnsetType | None = UNSET,
        rate: Rates | None = None,
        concurrency: Aimd | None = None,
        per: str | None = None,
        parent: Breaker | None = None,
    ) -> Dependency:
        """Declare a dependency and the limits that all workers share when calling it. Tasks name it with
        `@app.task(dependency=…)`; a task of the same name that names no other uses it too.

        `budget` bounds its retries and `breaker` stops calls while it fails: both have defaults, and None turns one
        off. `rate`, such as "100/s", spaces the runs that call it; `concurrency` adapts how many run at once. A wait
        that the dependency requests (Retry-After) defers all of its messages. `per` keeps all of this for each key
        separately: "group" for the messages' groups, "args.account" for an argument. `parent` is a breaker over all
        keys together: keys with too few calls to be judged alone are spared by it. Messages that are held wait in the
        queue and spend no attempt. Raises ConfigError for invalid values.
        """
        from .flow.breaker import Breaker
        from .flow.budget import Budget
        from .flow.dependency import Dependency

        as_text(name or "", "dependency name")
        if budget is UNSET:
            budget = Budget()
        if breaker is UNSET:
            breaker = Breaker()
        declared = self.dependencies[name] = Dependency(name, budget, breaker, as_rate(rate), concurrency, per, parent)
        return declared

    @property
    def queue_names(self) -> set[str]:
        """The queues that the app declares, or its tasks and schedules name."""
        return {t.queue for t in self.tasks.values()} | {s.queue for s in self.schedules.values()} | set(self.queues)

    @property
    def gathers(self) -> dict[str, int]:
        """The most messages that one call gathers, for each queue with a task that gathers."""
        return dict(sorted((task.queue, task.gather) for task in self.tasks.values() if task.gather is not None))

    def queues_of(self, queues: Sequence[str] | Mapping[str, int] | None) -> list[Queue]:
        """Return the queues that a worker works for these names; without names, those of all tasks and schedules.
        Raises ConfigError."""
        if isinstance(queues, str):
            raise ConfigError(f"queues={queues!r}: expected a list of names, such as [{queues!r}]")
        names = list(queues) if queues else sorted(self.queue_names) or ["default"]
        sizes = queues if isinstance(queues, Mapping) else {}
        known = [self.queues.get(name) or Queue(name) for name in names]
        return [q if (n := sizes.get(q.name)) is None else replace(q, concurrency=n) for q in known]

    @property
    def healths(self) -> HealthChecks:
        """The health checks that gates query: `app.dlq.health` adds one."""
        from .flow.health import HealthChecks

        with self._lock:
            if self._health_checks is None:
                self._health_checks = HealthChecks()
            return self._health_checks

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer(events)` with every batch of events of this app's workers; returns the call that ends it."""
        return self.events.subscribe(observer)

    def counts(self, queue: str | None = None) -> Counts:
        """Return the number of messages in each lane, of one queue or all."""
        return self.store.counts(queue)

    def job(self, id: str) -> Job | None:
        """Return the message with this id, and its `state`, or None: the id is unknown, or the message was done and
        deleted. On SQS without `track=true` a message that waits, or runs elsewhere, is None too. Raises StoreError,
        RuntimeError inside a running event loop: use `ajob` there."""
        refuse_loop("app.job()", "await app.ajob(…)")
        return self._job(id)

    async def ajob(self, id: str) -> Job | None:
        """Do as `job` does, in asyncio code."""
        import asyncio

        return await asyncio.to_thread(self._job, id)

    def _job(self, id: str) -> Job | None:
        message = self.store.find([id])[0]
        return None if message is None else Job(*[*astuple(message), self.store.now_ms()])


def _box(encrypt: Encrypt) -> Any:
    from .crypto import Box

    return Box(encrypt)


def _check_sqs_name(queue: str, what: str, name: object) -> None:
    if name is None or (isinstance(name, str) and _SQS_NAME.fullmatch(name)):
        return
    raise ConfigError(
        f"queue {queue!r}: {what}={name!r}; expected the name of a queue in SQS, such as 'billing_events', without its "
        "URL or ARN: letters, digits, '-' and '_', at most 80, and '.fifo' at the end of a FIFO queue's"
    )


def _check_auto(queue: str, given: object) -> None:
    from .flow.auto_redrive import AutoRedrive

    if not isinstance(given, AutoRedrive):
        raise ConfigError(f"queue {queue!r}: auto_redrive={given!r}; expected an AutoRedrive, such as AutoRedrive()")
