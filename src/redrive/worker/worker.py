"""The worker of one app in this process: its life from start to stop, and the construction of its parts."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..batch import follow
from ..blobs import Cleaner
from ..registry import Queue, Registry
from .batches import BatchSweep
from .bodies import BlobReads
from .burst import Burst
from .capacity import BATCH_MAX, Capacity, QueueLimit, WorkerLimit
from .crash.pulse import Pulse
from .crash.recovery import recover
from .crash.suspects import Suspects
from .delivery_events import Reporter
from .execution import Admission, Execution, InFlightExecutions, WorkerQueue
from .executors.app_import import origin_of
from .executors.executors import Executors
from .executors.processes import ProcessExecutor, Recycling
from .flow.controller import Flow
from .gather import Gathering
from .hang import Hangs
from .idempotency import KeyClaims
from .identity import identity
from .leases import LeaseRenewals
from .maintenance import RequestMeter, RetentionSweep
from .outage import Outage
from .paused_tasks import PausedTasks
from .pipeline import Pipeline
from .rollout.newer import Newer
from .rollout.pauses import TaskPauses
from .rollout.waking import Waking
from .services import MakeService, Services
from .store_loop import FinishedExecutions, StoreLoop
from .telemetry.presence import WorkerPresence

UNWIND_S = 0.5  # seconds in which a cancelled coroutine has to end before it is abandoned


class Worker:
    """Works the queues of one app in this process. `app.worker(…)` creates a Worker; use it as `async with`, or run it
    by `app.run_worker`.

    `total` bounds the messages that run at once over all queues. `services` create the worker's services, such as
    redrive runs.
    """

    app: Registry
    queues: list[Queue]
    grace_s: float
    name: str

    def __init__(
        self,
        app: Registry,
        queues: Sequence[Queue],
        *,
        total: int | None,
        lease_s: float,
        grace_s: float,
        prefetch: int | None,
        burst: bool,
        drain: bool,
        name: str | None,
        park_for_s: float,
        recycle: tuple[int | None, int | None] = (None, None),
        suspect_processes: int | None = None,
        services: Iterable[MakeService] = (),
    ) -> None:
        self.app, self.queues, self.grace_s = app, list(queues), grace_s
        store = self._store = app.store
        self._lease_s, self._burst, self._until_empty = lease_s, burst, drain
        self._total = total or sum(q.concurrency for q in queues)
        park_ms, weighted = math.ceil(park_for_s * 1000), any(q.weight != 1 for q in queues)
        self._limit: WorkerLimit[Execution] = WorkerLimit(self._total)
        limits = {q.name: QueueLimit(q.concurrency, self._limit, q.weight if weighted else math.inf) for q in queues}
        self._worker_queues = {q.name: WorkerQueue(limits[q.name], q.retention.ack, park_ms) for q in queues}
        self._processes = self._process_executor(Recycling(*recycle), suspect_processes)
        self.name, self._slots, self._complaint = identity(store, name)
        self._reporter = Reporter(app.events, store, self.name, app.flusher)
        self._outage = Outage(self._notice, lease_s)
        store.on_notice(self._notice)
        flow = Flow(app, store, self.name, self._notice)
        self._flow = flow if flow else None
        self._claims = None if self._flow is None else self._flow.claims
        left = self._pauses = TaskPauses()
        self._paused = PausedTasks(store, app.tasks.keys(), left)
        self._newer = Newer(store, app.tasks, lambda: self._in_flight.all(), left, burst=burst)
        ended = None if self._flow is None else self._flow.left
        held = self._in_flight = InFlightExecutions(self._worker_queues, self._slots, ended)
        gather = self._gather = app.gathers
        self._capacity = Capacity(queues, self._total, prefetch, store.traits.batch_max, self._claims, left, gather)
        self._hangs = Hangs(held, limits, lambda: self._executors.tasks.turned_s, lease_s)
        self._presence = WorkerPresence(
            store, self.name, app.spec, [(q.name, q.concurrency * gather.get(q.name, 1)) for q in queues], held,
            lambda: self.draining,
            lambda: self._services.carried(), self._notice, self.drain,
            Waking(store, [q.name for q in queues], app.tasks, lambda: self.draining).renewed, self._hangs,
        )  # fmt: skip
        self._services = Services(
            [
                self._presence,
                self._newer,
                self._paused,
                RetentionSweep(queues, store, self._notice),
                RequestMeter(store, self._notice),
                BatchSweep(app, self._batch_stuck),
                *(make(self.name, self._notice) for make in services),
            ],
            self._outage.failed,
        )
        keys = KeyClaims(app.tasks, store, grace_s, lease_s)
        self._keys = keys if keys else None
        self._stopped = asyncio.Event()
        self._error: BaseException | None = None

    def _process_executor(
        self, recycling: Recycling, suspect_processes: int | None
    ) -> Callable[[Callable[[Sequence[Execution]], None], Callable[[Execution], None]], ProcessExecutor] | None:
        """Return the function that creates the executor of child processes, if tasks need one or suspects can have one.
        Raises ConfigError if tasks need one and children cannot import the app."""
        if self.app.spec is None and all(task.place != "process" for task in self.app.tasks.values()):
            return None
        origin = origin_of(self.app)
        return lambda finish, start: ProcessExecutor(
            self.app, origin, self._total, finish, start, self._slots,
            worker=self.name, grace_s=self.grace_s, recycling=recycling, notice=self._notice,
            suspect_processes=suspect_processes,
        )  # fmt: skip

    async def __aenter__(self) -> Worker:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.drain()
        await self.wait()

    def start(self) -> None:
        """Start working on the running event loop."""
        self._loop = asyncio.get_running_loop()
        room = self._capacity.capacity + BATCH_MAX
        recover(self._store, self._slots, room, self._reporter)
        self._pulse = None if self._slots is None else Pulse(self._slots)
        self._build()
        self._presence.watch(self._loop)
        self._hangs.begin(self._loop)
        self._thread = threading.Thread(target=self._work, name="redrive-store", daemon=True)
        self._thread.start()
        self._notice("started", f"queues {', '.join(q.name for q in self.queues)}")
        if self._complaint is not None:
            self._notice("no_identity", self._complaint)

    def _build(self) -> None:
        """Create the worker's parts that need the event loop, from the last one that a message passes to the first."""
        store, loop, slots, in_flight = self._store, self._loop, self._slots, self._in_flight
        finished = FinishedExecutions(store.nudge)
        gathering = Gathering(loop, lambda each: each.begin(slots), lambda call: executors.begin(call), finished.add)
        self._executors = Executors(
            loop,
            self._capacity.capacity,
            gathering.finish if self._gather else finished.add,
            in_flight.all,
            slots,
            self._lease_s / 6,
            lambda: store.traits.one_machine and self._outage.is_silent,
            None if self._processes is None else partial(self._processes, finished.add),
        )
        self._leases = LeaseRenewals(
            store, in_flight, self._keys, slots, loop, self._outage, self._reporter,
            lease_s=self._lease_s, grace_s=self.grace_s,
        )  # fmt: skip
        executors = self._executors
        suspects = Suspects(
            loop, self._limit, in_flight.all, self._leases.mark_soon, executors.begin, finished.add, store.nudge,
            store.now_ms,
        )  # fmt: skip
        pipeline = Pipeline(
            store, self.app.tasks, self.name, flow=self._flow, keys=self._keys, reporter=self._reporter,
            follow=partial(follow, self.app, complain=self._batch_stuck), paused=self._paused,
        )  # fmt: skip
        admission = Admission(
            store, pipeline.admit, executors.tasks.start, executors.start, executors.can_isolate, suspects.add,
            finished.add, self._total * max(self._gather.values(), default=1), gathering.add if self._gather else None,
        )  # fmt: skip
        large = store.large_bodies is not None and (self._keys is not None or self._flow is not None)
        self._blob_reads = BlobReads(pipeline.needs_body, self.app.tasks, store.nudge) if large else None
        self._cleaner = None if store.large_bodies is None else Cleaner(store.large_bodies, self._notice)
        names = [queue.name for queue in self.queues]
        burst = Burst(store, names, until_empty=self._until_empty, capacity=self._capacity, services=self._services)
        self._store_loop = StoreLoop(
            store,
            self.name,
            pipeline,
            capacity=self._capacity,
            limit=self._limit,
            queues=self._worker_queues,
            in_flight=in_flight,
            leases=self._leases,
            admission=admission,
            blob_reads=self._blob_reads,
            gathering=gathering,
            suspects=suspects,
            finished=finished,
            loop=loop,
            services=self._services,
            burst=burst if self._burst else None,
            newer=self._newer,
            pauses=self._pauses,
            hangs=self._hangs,
            outage=self._outage,
            reporter=self._reporter,
            cleaner=self._cleaner,
            trips=self._presence.trips,
            lease_s=self._lease_s,
        )

    async def wait(self) -> None:
        """Wait until the worker has stopped. Raises the error that ended it, if any. Any number of callers may wait."""
        await self._stopped.wait()
        await self._executors.close()
        if self._cleaner is not None:
            await asyncio.to_thread(self._cleaner.close)
        slots, self._slots = self._slots, None
        if slots is not None:
            if self._pulse is not None:
                self._pulse.stop()
            if not self._in_flight:
                slots.settle()
            slots.close()
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Claim no more, let running messages end within the grace, then release the rest uncounted. Thread-safe."""
        self._loop.call_soon_threadsafe(self._drain)

    def release_now(self) -> None:
        """Drain without the grace: running messages are cancelled and released. Thread-safe."""
        self._loop.call_soon_threadsafe(self._drain)
        self._loop.call_soon_threadsafe(self._end_grace)

    @property
    def draining(self) -> bool:
        return self._store_loop.draining

    def _drain(self) -> None:
        if self.draining:
            return
        self._notice("draining", f"{len(self._in_flight)} held, grace {self.grace_s:g} s")  # first: it may end at once
        self._limit.end()
        self._leases.draining = self._store_loop.draining = True
        self._loop.call_later(self.grace_s, self._end_grace)
        self._store.nudge()

    def _end_grace(self) -> None:
        for execution in self._in_flight.all():
            execution.end("drain")
        # A cancelled coroutine may need a moment to unwind; one that does not end is abandoned.
        self._loop.call_later(UNWIND_S, self._give_up)

    def _give_up(self) -> None:
        self._store_loop.grace_over.set()
        self._store.nudge()

    def _work(self) -> None:
        try:
            self._services.begin()
            while not self._store_loop.turn():
                pass
        except BaseException as error:
            self._error = error
        finally:
            try:
                self._close()
            finally:
                with contextlib.suppress(RuntimeError):  # raised if the event loop is closed already
                    self._loop.call_soon_threadsafe(self._stopped.set)

    def _close(self) -> None:
        """Close the parts of the store thread, each in spite of errors of the others; keep the first error."""
        flow, history, reads = self._flow, self._reporter.history, self._blob_reads
        closes = [] if reads is None else [reads.close]
        closes += [] if flow is None else [flow.close]
        closes += [*self._services.closes(), *([] if history is None else [history.finish])]
        errors = [] if self._error is None else [self._error]
        for close in closes:
            try:
                close()
            except BaseException as error:
                errors.append(error)
        self._error = errors[0] if errors else None
        error_text = "".join(f": {error!r}" for error in errors)
        self._notice("stopped", f"{len(self._in_flight)} still leased{error_text}")

    def _batch_stuck(self, batch: str, why: str) -> None:
        self._notice("batch_stuck", f"batch {batch}: {why}")

    def _notice(self, name: str, text: str, about: str = "", count: int = 1) -> None:
        self._reporter.notice(name, text, about, count)
