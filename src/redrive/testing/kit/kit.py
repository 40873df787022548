"""A Kit runs an app's tasks in a test: a store in memory on a clock that jumps, and a worker in slow motion.

    def test_it_gives_up_politely(rd):
        rd.use(app)
        push.enqueue(42)
        rd.fail_next(push, ConnectionError("refused"), times=3)
        assert rd.drain().done == 1
        assert [run.outcome for run in rd.runs] == ["retry", "retry", "retry", "done"]

The `rd` fixture (pytest finds it where redrive is installed) is a Kit; elsewhere write `with Kit(app) as rd:`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from ...duration import Duration, milliseconds, show
from ...enqueue import Bound
from ...errors import ConfigError
from ...message import Counts, Draft, Lane, Message
from ...run_context import refuse_loop
from ...triage.dlq import DeadLetters
from ..clock import ManualClock
from .engine import DrainCounts, DrainPlan, Engine
from .faults import Crash, RunFailure
from .match import ExpectedMessage, complaint, named_arguments
from .records import Dead, Drained, Enqueued, Ran, arguments, call
from .runners import InlineRunner, LoopRunner
from .store import KitStore, Noted

if TYPE_CHECKING:
    from ...app import App
    from ...schedule import Schedule

RUNS_MAX = 10_000
REPORTED_MAX = 50  # number of lines of each kind in the report of a failed test
AnyTask = Bound[..., Any] | str  # a task, task.using(…) or a task's name
Until = Duration | datetime | Callable[[], object] | None
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATE = ("_store", "_batches", "_unapplied", "_flusher")  # the attributes of an App that belong to its store


class Kit:
    """A store of this test's own, on a clock of its own that starts now and moves only by jumps.

    `clock` and `store` may be used directly. Closing the kit gives each app its own store back. Use a kit from one
    thread.
    """

    def __init__(self, *apps: App) -> None:
        self.clock: ManualClock = ManualClock(time.time_ns() // 1_000_000)
        self.store: KitStore = KitStore(self.clock)
        self._engine = Engine(self.store, self.clock)
        self._inline = InlineRunner()
        self.store.drive = self._drive
        self._own: list[tuple[App, dict[str, Any]]] = []
        for app in apps:
            self.use(app)

    def __enter__(self) -> Kit:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<redrive kit {self._standing()}>"

    def close(self) -> None:
        """Give the apps their stores back and close the kit's store and event loop."""
        while self._own:
            app, kept = self._own.pop()
            vars(app).update(kept)
        self._inline.close()
        self.store.close()

    def use(self, app: App) -> Kit:
        """Put `app` on this store until the test ends: its tasks are enqueued here, and run by `drain`. Several apps
        may share it. Returns the kit."""
        if not all(name in getattr(app, "__dict__", ()) for name in _STATE):
            raise ConfigError(f"rd.use({app!r}): expected an App")
        if app not in self._engine.apps:
            self._own.append((app, {name: vars(app)[name] for name in _STATE}))
            store = self.store if app.tracing is None else app.tracing.wrap(self.store)
            vars(app).update(_store=store, _batches={}, _unapplied={*app.queues}, _flusher=None)
            self._engine.add(app)
        return self

    __call__ = use

    @property
    def now(self) -> datetime:
        """The store's time, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.clock.now_ms())

    def advance(self, by: Duration | datetime) -> None:
        """Let time pass, by a duration or up to a time, and run nothing: then `run_due()` runs what has come due.
        Raises ConfigError for a time that has passed."""
        self.clock.advance(by if not isinstance(by, datetime) else self._until(by))

    def tick(self, schedule: Schedule | AnyTask) -> datetime:
        """Jump to the next tick of a schedule, which may be given by its name or its task, and enqueue it as a
        scheduler does. Returns the time of the tick, in the schedule's zone. Run the message by `run_due` or `drain`.

        Ticks that `advance` or `drain` passed over since the last one were missed: first the schedule's `missed=` is
        obeyed. A schedule that was never ticked has missed none. Other schedules stand still. Raises ConfigError for a
        schedule that this test's apps do not have.
        """
        from .ticks import find_schedule, jump_to_tick

        wanted = schedule._task if isinstance(schedule, Bound) else schedule
        return jump_to_tick(find_schedule(self._engine.apps, wanted), self.clock)

    def drain(self, until: Until = None, *, max_runs: int = RUNS_MAX) -> Drained:
        """Run everything that is due, and jump to what is due next, until nothing is scheduled.

        `until` ends it earlier: a duration or a time (work through the time till then, which has passed afterwards),
        or a function that is asked before each message. Retries, snoozes, follow-ups and what handlers enqueue are all
        run. Raises AssertionError after `max_runs` runs; what a handler raises is its message's business, as in a
        worker, but KeyboardInterrupt and pytest's own (fail, skip) come through. In asyncio code use `adrain`.
        """
        refuse_loop("rd.drain()", "await rd.adrain()")
        return self._run(self._plan(until, max_runs))

    async def adrain(self, until: Until = None, *, max_runs: int = RUNS_MAX) -> Drained:
        """Do as `drain` does, in an asynchronous test: async handlers run on the test's own event loop, sync ones in a
        thread."""
        return await self._arun(self._plan(until, max_runs))

    def run_due(self, *, max_runs: int = RUNS_MAX) -> Drained:
        """Run the messages that are due now and those that become due meanwhile; the clock does not jump."""
        refuse_loop("rd.run_due()", "await rd.arun_due()")
        return self._run(DrainPlan(-math.inf, _never, max_runs))

    async def arun_due(self, *, max_runs: int = RUNS_MAX) -> Drained:
        """Do as `run_due` does, in an asynchronous test."""
        return await self._arun(DrainPlan(-math.inf, _never, max_runs))

    def fail_next(
        self,
        task: AnyTask,
        exc: BaseException | type[BaseException] | None = None,
        *,
        times: int = 1,
        after: bool = False,
    ) -> None:
        """Let the task's next `times` runs raise `exc` (a ConnectionError if None) instead of running the handler;
        `after`: when it has run, so that its side effects are there. RetryAfter, Snooze, Reject and Quarantine steer,
        as raised by a handler. Raises ConfigError for invalid arguments, as the next three methods do."""
        self._interfere(task, RunFailure(_exception(exc), after), times)

    def crash_next(self, task: AnyTask, *, times: int = 1) -> None:
        """Let the worker die at the start of the task's next `times` runs, as by kill -9: the handler is not run, the
        lease runs out, the crash is counted and the message comes again. To die at another place, raise
        `redrive.testing.Crash` there."""
        self._interfere(task, RunFailure(Crash), times)

    def duplicate_next(self, task: AnyTask, *, times: int = 1) -> None:
        """Let the task's next `times` deliveries run twice, which at-least-once allows: the handler runs, its worker
        dies before that is settled, and the message comes again."""
        self._interfere(task, RunFailure(Crash, after=True), times)

    def timeout_next(self, task: AnyTask, *, times: int = 1) -> None:
        """Let the task's next `times` runs end by their timeout: its virtual time passes, the handler is not run."""
        self._interfere(task, RunFailure(TimeoutError, late=True), times)

    @property
    def runs(self) -> list[Ran]:
        """Every run of a handler so far, in order."""
        return self._engine.runs

    def done(self, task: AnyTask | None = None) -> list[Ran]:
        """The runs of a task, or of all tasks, that ended well, each with its `result`."""
        name = None if task is None else self._name(task)
        return [ran for ran in self.runs if ran.outcome == "done" and name in (None, ran.task)]

    def enqueued(self, task: AnyTask | None = None) -> list[Enqueued]:
        """Return the messages of a task, or of all tasks, that this test enqueued, in order, even if they are done or
        deleted by now. Duplicates of a unique key are left out."""
        name = None if task is None else self._name(task)
        return [self._shown(noted) for noted in self.store.noted if name in (None, noted.draft.task)]

    def dead(self) -> list[Dead]:
        """The messages in the dead lane, the one that died first at the beginning."""
        return self._resting(Lane.DEAD)

    def quarantined(self) -> list[Dead]:
        """The messages in quarantine, the one that entered it first at the beginning."""
        return self._resting(Lane.QUARANTINE)

    def counts(self, queue: str | None = None) -> Counts:
        """The number of messages in each lane, of one queue or of all queues."""
        return self.store.counts(queue)

    def assert_enqueued(
        self,
        task: AnyTask,
        /,
        *args: Any,
        times: int | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        key: str | None = None,
        group: str | None = None,
        **kwargs: Any,
    ) -> list[Enqueued]:
        """Assert that the task was enqueued with these arguments, `times` times (None: at least once; 0: never).

        Arguments that are not given, and options that are None, match anything; values are compared by ==, as the
        handler would get them. `delay` is exact. Returns the matching messages. Raises TypeError for an argument the
        task does not take.
        """
        __tracebackhide__ = True
        name = self._name(task)
        delay_s = None if delay is None else milliseconds(delay, "delay") / 1000
        options = {"delay_s": delay_s, "queue": queue, "key": key, "group": group}
        wanted = ExpectedMessage(name, self._arguments(name, args, kwargs), options)
        enqueued = self.enqueued()
        text = complaint(wanted, times, enqueued)
        if text is not None:
            raise AssertionError(text)
        return [message for message in enqueued if message.task == name and not wanted.differences(message)]

    def report(self) -> str:
        """Return the runs and the dead, quarantined and waiting messages as lines, for the report of a failed test."""
        waiting = self.store.peek(Lane.READY, limit=REPORTED_MAX).messages
        listed: dict[str, Sequence[object]] = {
            "runs": [repr(ran) for ran in self.runs[-REPORTED_MAX:]],
            "dead": self.dead()[-REPORTED_MAX:],
            "quarantined": self.quarantined()[-REPORTED_MAX:],
            "waiting": [self._waits(message) for message in waiting],
        }
        lines = [line for title, those in listed.items() if those for line in (f"{title}:", *(f"  {x}" for x in those))]
        return "\n".join([self._standing(), *lines])

    def _standing(self) -> str:
        lanes = {name: n for name, n in msgspec.structs.asdict(self.store.counts()).items() if n and "_" not in name}
        stored = ", ".join(f"{n} {name}" for name, n in lanes.items()) or "nothing stored"
        return f"after {show(self._since_start_s())} of virtual time: {len(self.runs)} runs; {stored}"

    def _waits(self, message: Message) -> str:
        text = call(message.task, self._read(message))
        left_ms = (message.due_ms or 0) - self.clock.now_ms()
        if message.parked and left_ms <= 0:
            return f"{text}  [behind others of group {message.group!r}]"
        return f"{text}  [due in {show(max(0, left_ms) / 1000)}]"

    def _plan(self, until: Until, max_runs: int) -> DrainPlan:
        if until is None:
            return DrainPlan(math.inf, _never, max_runs)
        if callable(until):
            return DrainPlan(math.inf, until, max_runs)
        length = self._until(until) if isinstance(until, datetime) else until
        return DrainPlan(self.clock.now_ms() + milliseconds(length, "until"), _never, max_runs)

    def _until(self, when: datetime) -> timedelta:
        if when.tzinfo is None:
            raise ConfigError(f"{when!r} has no time zone; give rd.now + … or another aware datetime")
        if when < self.now:
            raise ConfigError(f"{when} has passed; it is {self.now}, and time does not go back")
        return when - self.now

    def _run(self, plan: DrainPlan) -> Drained:
        tally, from_ms = DrainCounts(), self.clock.now_ms()
        with closing(self._engine.turns(plan, tally)) as turns:
            for run in turns:
                self._inline.run(run)
        return self._end(plan, tally, from_ms)

    def _drive(self, over: Callable[[], bool], timeout_s: float | None) -> None:
        """Run messages until `over()` is true or `timeout_s` of virtual time have passed. A wait on this store's
        messages or runs calls it."""
        end_ms = math.inf if timeout_s is None else self.clock.now_ms() + timeout_s * 1000
        with closing(self._engine.turns(DrainPlan(end_ms, over, RUNS_MAX), DrainCounts())) as turns:
            for run in turns:
                self._inline.run(run)
        if math.isfinite(end_ms) and not over():
            self.clock.advance(max(0, end_ms - self.clock.now_ms()) / 1000)

    async def _arun(self, plan: DrainPlan) -> Drained:
        tally, from_ms = DrainCounts(), self.clock.now_ms()
        with closing(LoopRunner()) as runner, closing(self._engine.turns(plan, tally)) as turns:
            for run in turns:
                await runner.run(run)
        return self._end(plan, tally, from_ms)

    def _end(self, plan: DrainPlan, tally: DrainCounts, from_ms: int) -> Drained:
        left_ms = plan.end_ms - self.clock.now_ms()
        if 0 < left_ms < math.inf:
            self.clock.advance(left_ms / 1000)
        return self._engine.sum_up(tally, from_ms)

    def _interfere(self, task: AnyTask, act: RunFailure, times: int) -> None:
        name = self._name(task)
        if name not in self._engine.tasks:
            known = ", ".join(sorted(self._engine.tasks)) or "none; call rd.use(app) first"
            raise ConfigError(f"no task {name!r} in this test's apps; known: {known}")
        if times < 1:
            raise ConfigError(f"times={times!r}: expected 1 or more")
        self._engine.acts.add(name, act, times)

    def _name(self, task: AnyTask) -> str:
        if isinstance(task, str):
            return task
        known = task._task
        if known.app not in self._engine.apps:
            raise ConfigError(f"task {known.name!r} is of an app that this test does not use; call rd.use(app) first")
        return known.name

    def _arguments(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        known = self._engine.tasks.get(name)
        if known is not None:
            return named_arguments(known.codec, args, kwargs)
        if args:
            raise TypeError(f"no task {name!r} in this test's apps, so its arguments can only be given by name")
        return kwargs

    def _shown(self, noted: Noted) -> Enqueued:
        draft = noted.draft
        due_ms = noted.at_ms + draft.delay_ms if draft.due_ms is None else draft.due_ms
        return Enqueued(
            id=noted.id,
            task=draft.task,
            queue=draft.queue,
            args=self._read(draft),
            at_s=self._engine.since_start_s(noted.at_ms),
            delay_s=max(0, due_ms - noted.at_ms) / 1000,
            key=draft.key,
            group=draft.group,
            draft=draft,
        )

    def _resting(self, lane: Lane) -> list[Dead]:
        return [self._at_rest(message) for message in DeadLetters(self.store).all(lane=lane)]

    def _at_rest(self, message: Message) -> Dead:
        return Dead(
            id=message.id,
            task=message.task,
            queue=message.queue,
            args=self._read(message),
            lane=message.lane.value,
            reason=message.reason,
            attempt=message.attempt,
            crashes=message.crashes,
            redrives=message.redrives,
            faults=message.faults,
            body=message.body,
        )

    def _read(self, of: Message | Draft) -> dict[str, Any]:
        known = self._engine.tasks.get(of.task)
        return arguments(None if known is None else known.codec, of.body, of.version)

    def _since_start_s(self) -> float:
        return self._engine.since_start_s(self.clock.now_ms())


def _never() -> bool:
    return False


def _exception(exc: BaseException | type[BaseException] | None) -> BaseException | type[BaseException]:
    """Return the error to raise for `exc`. Raises ConfigError if its class cannot be raised without arguments."""
    if exc is None:
        return ConnectionError("injected by rd.fail_next")
    try:
        made = exc() if isinstance(exc, type) else exc
    except TypeError as error:
        raise ConfigError(f"exc={exc!r} cannot be raised without arguments ({error}); give an instance") from None
    if not isinstance(made, BaseException):
        raise ConfigError(f"exc={exc!r}: expected an exception, or a class of them")
    return exc
