"""Run a worker one message at a time; where a worker would wait, the clock jumps.

Claims, admission, executors, decisions and settlement are the worker's own; only waiting is replaced.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ...batch import follow
from ...duration import show
from ...errors import ConfigError, EnqueueError
from ...events import DeliveryEvent, Notice
from ...fault import Fault
from ...message import ClaimRequest, Settled
from ...worker.capacity import QueueLimit, WorkerLimit
from ...worker.delivery_events import Reporter, fate
from ...worker.execution import Execution, WorkerQueue
from ...worker.flow.controller import Flow
from ...worker.idempotency import KeyClaims
from ...worker.pipeline import Pipeline
from ...worker.settlement import Outcome
from ..clock import ManualClock
from .faults import Acts, Crash, RiggedTask
from .records import Drained, Ran, named
from .runs import KitRuns
from .store import KitStore

if TYPE_CHECKING:
    from ...app import App
    from ...enqueue import Task
    from ...registry import Registry
    from ...task import TaskSpec

_DEAD = ("dead", "stayed", "quarantined")
WORKER = "kit"
LOOKS_MAX = 1_000
LEASE_MS = 30_000  # a worker's defaults, not the settings of the machine
PARK_S = 300.0
GRACE_S = 30.0


class DrainPlan(Struct, frozen=True):
    """Bounds of a drain: no jump of the clock beyond `end_ms`, an end once `enough()` is true, an error after
    `deliveries_max`."""

    end_ms: float
    enough: Callable[[], object]
    deliveries_max: int


class DrainCounts(Struct):
    """The counts of one drain until now."""

    deliveries: int = 0
    runs: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    last_failure: str | None = None

    def add_run(self, ran: Ran) -> None:
        self.runs += 1
        self.done += ran.outcome == "done"
        self.failed += ran.failed
        self.dead += ran.outcome in _DEAD
        if ran.failed:
            self.last_failure = repr(ran).strip()

    def add_unrun(self, event: DeliveryEvent) -> None:
        self.done += event.outcome == "done"  # also a message that was not run, as a duplicate of a done one
        if event.outcome in _DEAD:
            self.dead += 1
            self.last_failure = f"{event.task} {event.outcome} unrun ({event.reason})" + (
                f": {event.text}" if event.text else ""
            )


class Engine:
    """Claims, admits and settles for one store; the caller of `turns` runs the handlers."""

    store: KitStore
    start_ms: int

    def __init__(self, store: KitStore, clock: ManualClock) -> None:
        self.store, self._clock, self.start_ms = store, clock, clock.now_ms()
        self.apps: list[App] = []
        self.tasks: ChainMap[str, Task[Any, Any]] = ChainMap()
        self.acts: Acts = Acts()
        self.runs: list[Ran] = []
        self._pipelines: dict[int, Pipeline] = {}  # by id() of the app
        self._keys = KeyClaims(self.tasks, store, GRACE_S, LEASE_MS / 1000)
        self._queue = WorkerQueue(QueueLimit(1, WorkerLimit(1)))
        self._redriving = KitRuns(store, clock, self.apps, lambda app: partial(self._tell, app), WORKER)
        self._busy = False

    def add(self, app: App) -> None:
        self.apps.append(app)
        self.tasks.maps.append(app.tasks)
        park_s = PARK_S if app.park_for_s is None else app.park_for_s
        self._queue = replace(self._queue, park_ms=max(self._queue.park_ms, math.ceil(park_s * 1000)))

    def turns(self, plan: DrainPlan, tally: DrainCounts) -> Generator[Execution]:
        """Claim and admit messages, one of each queue in turn; yield each execution for the caller to run, then settle
        it."""
        if not self.apps:
            raise ConfigError("no app is in use here; call rd.use(app) first, or set redrive_app in pytest's settings")
        for task in self.tasks.values():
            task.check_on_dead()
        if self._busy:
            raise RuntimeError("this test's messages are being run already; a handler cannot run them too")
        self._busy = True
        try:
            idle = 0  # successive claims that got no message
            while not idle or self._jump(plan.end_ms, idle):
                idle += 1
                self._redriving.tick()
                follow(self.apps[0], self.store.changed_batches(), self._batch_stuck)
                for queue in [*self.store.seen_queues]:
                    if plan.enough():
                        return
                    for run in self._claim(queue):
                        idle = 0
                        yield from self._turn(run, plan, tally)
        finally:
            self._busy = False
            self._redriving.release()

    def sum_up(self, tally: DrainCounts, from_ms: int) -> Drained:
        counts = self.store.counts()
        return Drained(
            runs=tally.runs,
            done=tally.done,
            failed=tally.failed,
            dead=tally.dead,
            left=counts.waiting + counts.leased,
            elapsed_s=(self._clock.now_ms() - from_ms) / 1000,
            last_failure=tally.last_failure,
        )

    def since_start_s(self, at_ms: int) -> float:
        return (at_ms - self.start_ms) / 1000

    def _claim(self, queue: str) -> list[Execution]:
        deliveries = self.store.exchange([], [ClaimRequest(queue, 1, LEASE_MS, worker=WORKER)]).deliveries
        return [Execution(delivery, self._queue, math.inf) for delivery in deliveries]

    def _jump(self, end_ms: float, idle: int) -> bool:
        """Move the clock to the next due time; return False if no message or redrive run is due until `end_ms`."""
        due_ms, now_ms = min(self.store.next_due_ms(), self._redriving.next_ms(end_ms)), self._clock.now_ms()
        if due_ms <= now_ms:  # after each claim, some groups may admit their next messages
            return idle < LOOKS_MAX
        if due_ms == math.inf or due_ms > end_ms:
            return False
        self._clock.advance((due_ms - now_ms) / 1000)
        return True

    def _turn(self, run: Execution, plan: DrainPlan, tally: DrainCounts) -> Generator[Execution]:
        if tally.deliveries >= plan.deliveries_max:
            raise AssertionError(self._endless(plan))
        tally.deliveries += 1
        pipeline = self._pipeline_of(self._app_of(run))
        if pipeline.reserve([run]) or not pipeline.admit([run]):
            tally.add_unrun(self._settle(run)[0])
            return
        act = self.acts.take(run.task.name)
        rig = RiggedTask(run, act)
        run.task = cast("TaskSpec", rig)
        at_ms, args = self._clock.now_ms(), named(rig.codec, run.args, run.kwargs)
        self._queue.limit.enter([run])
        yield run
        if act is not None and act.late:
            self._clock.advance(rig.policy.timeout_s)
        if rig.escaped is not None and not isinstance(rig.escaped, Crash):
            raise rig.escaped
        event, fault = self._settle(run, at_ms) if rig.escaped is None else (None, None)
        ran = self._ran(run, rig.result, args, at_ms, event, fault)
        self.runs.append(ran)
        tally.add_run(ran)

    def _app_of(self, run: Execution) -> App:
        """Return the app that declares the execution's task; for an unknown task, the first app."""
        return next((app for app in self.apps if run.delivery.message.task in app.tasks), self.apps[0])

    def _pipeline_of(self, app: App) -> Pipeline:
        pipeline = self._pipelines.get(id(app))
        if pipeline is None:
            flow = Flow(app, self.store, WORKER, partial(self._tell, app))
            reporter = Reporter(app.events, self.store, WORKER)
            calls = partial(follow, app, complain=self._batch_stuck)
            pipeline = Pipeline(
                self.store, self.tasks, WORKER, flow=flow, keys=self._keys, reporter=reporter, follow=calls
            )
            self._pipelines[id(app)] = pipeline
        return pipeline

    def _batch_stuck(self, batch: str, why: str) -> None:
        raise AssertionError(f"batch {batch}: {why}")

    def _tell(self, app: Registry, name: str, text: str, about: str = "") -> None:
        app.events.emit([Notice(name=name, worker=WORKER, at_ms=self._clock.now_ms(), text=text, about=about)])

    def _settle(self, run: Execution, from_ms: int = 0) -> tuple[DeliveryEvent, Fault | None]:
        """Settle an execution; return its event and its fault. `from_ms`: when its handler began; 0 if it did not."""
        now_ms, app = self._clock.now_ms(), self._app_of(run)
        pipeline = self._pipeline_of(app)
        if run.started_s:  # in virtual time, as the real duration of a handler does not count
            run.finished_s = run.started_s + (now_ms - from_ms) / 1000
        pipeline.look_committed([run])
        [ended] = pipeline.decide([run], now_ms)
        if run.guards:
            pipeline.release([run])
            pipeline.tick()
        try:
            word = self._exchange(pipeline, ended, app)
        except EnqueueError as error:  # as in a worker, a follow-up that the store refuses fails the run
            ended = pipeline.refuse(ended, error)
            word = self._exchange(pipeline, ended, app)
        event = fate(ended, word, now_ms, WORKER)
        app.events.emit([event])
        return event, ended.settlement.fault

    def _exchange(self, pipeline: Pipeline, ended: Outcome, app: App) -> Settled:
        """Settle an execution in the store, with its redrive outcome if a redrive run moved its message."""
        # The kit's store; for an app with tracing, in the wrapper that creates spans.
        result = app.store.exchange(pipeline.settlements([ended]), [])
        word = result.settled[0]
        pipeline.follow(result.batches)
        self._redriving.stir(ended.delivery.message.run_id)
        return word

    def _ran(
        self,
        run: Execution,
        result: Any,
        args: dict[str, Any],
        at_ms: int,
        event: DeliveryEvent | None,
        fault: Fault | None,
    ) -> Ran:
        message = run.delivery.message
        extras = None if run.context is None else run.context.end()
        delay_ms = None if event is None else event.delay_ms
        return Ran(
            id=message.id,
            task=message.task,
            args=args,
            attempt=message.attempt,
            crashes=message.crashes,
            redrives=message.redrives,
            at_s=self.since_start_s(at_ms),
            outcome="crashed" if event is None else event.outcome,
            delay_s=None if delay_ms is None else delay_ms / 1000,
            result=extras.partial if result is None and extras is not None else result,
            degraded=None if event is None else event.degraded,
            reason=None if event is None else event.reason,
            fault=fault,
        )

    def _endless(self, plan: DrainPlan) -> str:
        lately = "\n".join(f"  {ran!r}" for ran in self.runs[-5:])
        return (
            f"{plan.deliveries_max} runs, and {show(self.since_start_s(self._clock.now_ms()))} after the start still "
            f"something is due. Does a handler come back for ever? Else give a higher max_runs=. The last:\n{lately}"
        )
