"""Run schedules: a loop that reads the clock and enqueues the due ticks.

After a kill: a tick is enqueued by the commit that swaps its schedule's cell, so either both happened or neither. A
scheduler holds nothing that another one would have to take back.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from ..duration import rfc3339
from ..errors import Conflict, EnqueueError, ReadOnly, SchemaError, StoreError, Unsupported
from ..events import Notice
from ..message import Cell
from ..presence import LISTED_MAX, Keeper, WorkerInfo
from ..redact import many_lines, redact
from ..registry import Registry
from ..system import host
from .cron import next_after
from .declare import Schedule, state_in, swap_of
from .presence import SchedulerPresence
from .turn import Turn, cut, turn

STEP_MS = 1_000  # longest sleep in ms, so that a pause, a change or a jump of the clock is noticed soon
STORE_RETRY_S = (0.05, 2.0)  # seconds of the first and of the longest pause while the store is unreachable


class DueSchedule(Struct, frozen=True, eq=False):
    """A schedule, its cell as read, and the turn, which has the ticks to enqueue now and the new state of the cell."""

    schedule: Schedule
    cell: Cell | None
    turn: Turn


class Scheduler:
    """Enqueues the ticks of an app's schedules. Any number may run, anywhere: each tick is enqueued once.

    Made by `app.scheduler()`. `async with`, or `with`, runs it beside other work, in a thread of its own; `run` blocks
    until `stop`; `step` enqueues the ticks due now and returns. While the store is unreachable it retries, at least
    every 2 s; the ticks of that time are missed, and the schedules' `missed=` applies to them.
    """

    def __init__(self, app: Registry) -> None:
        self.app = app
        self.name: str = f"scheduler/{host()}:{os.getpid()}"
        self._store = app.store
        self._presence = SchedulerPresence(app.store)
        self._seen: set[str] = set()  # names of schedules that this scheduler has read before
        self._refused: dict[str, str] = {}  # by schedule: why the store refused its last message
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()  # a signal handler may call `put` of a SimpleQueue
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Enqueue ticks until `stop` is called."""
        self.app.schedules_watched = True
        self._notice("started", f"schedules {', '.join(self.app.schedules) or 'none'}")
        keeper = Keeper(self.app.store, self._info, self._about)
        keeper.start()
        try:
            self._loop()
        finally:
            keeper.close()
            self._notice("stopped", "no more ticks from here")

    def _loop(self) -> None:
        wait_s = failed_s = 0.0
        while not self._is_stopped(wait_s):
            try:
                wait_s = self.step() / 1000
            except (Unsupported, ReadOnly, SchemaError):
                raise  # trying again would fail too
            except StoreError as error:
                if not failed_s:
                    self._notice("store_unavailable", str(error))
                wait_s = failed_s = min(failed_s * 2 or STORE_RETRY_S[0], STORE_RETRY_S[1])
                continue
            if failed_s:
                self._notice("store_back", "")
                failed_s = 0.0

    def stop(self) -> None:
        """Let `run` return soon. May be called from any thread, and from a signal handler."""
        self._stops.put(None)

    def _is_stopped(self, wait_s: float) -> bool:
        try:
            self._stops.get(timeout=wait_s)
        except queue.Empty:
            return False
        return True

    def start(self) -> None:
        """Run the scheduler in a new thread, until `stop` and `join`."""
        self._thread = threading.Thread(target=self._run_kept, name="redrive-scheduler", daemon=True)
        self._thread.start()

    def _run_kept(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error  # `join` raises it again, but possibly much later
            print(many_lines(redact(f"redrive: {self.name} ended:\n{traceback.format_exc()}")), file=sys.stderr)

    def join(self) -> None:
        """Wait until the thread ends. Raises the error that ended the thread, if any."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Scheduler:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self.join()

    async def __aenter__(self) -> Scheduler:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        await asyncio.to_thread(self.join)

    def step(self) -> int:
        """Enqueue the ticks that are due; return the milliseconds until the next tick, at most STEP_MS.

        Raises StoreError if the store fails: then the ticks were not enqueued, or they were enqueued and recorded in
        their cells.
        """
        dues = self.look(self.app.schedules.values())
        for batch in _batches([due for due in dues if _changes(due)], self._store.traits.batch_max):
            self.put(batch)
        now_ms = self._store.now_ms()
        self._presence.write(self.app.schedules, now_ms)
        waits = [_wait_ms(due, now_ms) for due in dues]
        return max(0, min(waits, default=STEP_MS))

    def look(self, schedules: Iterable[Schedule]) -> list[DueSchedule]:
        """Read the state of these schedules and decide which of their ticks are due. Writes nothing."""
        listed = list(schedules)
        cells, now_ms = self._store.cells.read([s.key for s in listed]), self._store.now_ms()
        most = self._store.traits.batch_max
        return [self._due(s, cell, now_ms, most) for s, cell in zip(listed, cells, strict=True)]

    def _due(self, schedule: Schedule, cell: Cell | None, now_ms: int, most: int) -> DueSchedule:
        first = schedule.name not in self._seen
        self._seen.add(schedule.name)
        made = turn(schedule.times, schedule.missed, state_in(cell), now_ms, first=first)
        return DueSchedule(schedule, cell, cut(made, most))

    def put(self, dues: Sequence[DueSchedule]) -> None:
        """Enqueue the ticks of these schedules and swap their cells, in one commit. If another scheduler changed one of
        the cells first, each schedule is read again and its ticks are enqueued alone."""
        try:
            self._commit(dues)
        except (Conflict, EnqueueError):
            for due in dues:
                self._put_alone(due.schedule)

    def _put_alone(self, schedule: Schedule) -> None:
        dues = [due for due in self.look([schedule]) if _changes(due)]
        try:
            self._commit(dues)
        except Conflict:
            pass  # another scheduler wrote this turn; the next step goes on from there
        except EnqueueError as error:  # only the message of this schedule was refused
            if self._refused.get(schedule.name) != str(error):
                self._refused[schedule.name] = str(error)
                self._notice("schedule_refused", f"{schedule.name}: {error}")

    def _commit(self, dues: Sequence[DueSchedule]) -> None:
        if not dues:
            return
        drafts = [due.schedule.draft(tick_ms) for due in dues for tick_ms in due.turn.ticks]
        puts = self.app.put(drafts, swaps=[swap_of(due.schedule, due.cell, due.turn.state) for due in dues])
        if self.app.events:
            self._tell(dues, iter([put.id for put in puts]))

    def _tell(self, dues: Sequence[DueSchedule], ids: Iterator[str]) -> None:
        for due in dues:
            if due.turn.left_out is not None:
                after_ms, before_ms = due.turn.left_out
                span = f"after {rfc3339(after_ms)} and before {rfc3339(before_ms)}"
                self._notice("ticks_left_out", f"{due.schedule.name}: missed ones {span}")
            for tick_ms in due.turn.ticks:
                self._notice("tick", f"{due.schedule.name} at {rfc3339(tick_ms)}: {due.schedule.task.name} {next(ids)}")

    def _info(self) -> WorkerInfo:
        names = tuple(self.app.schedules)[:LISTED_MAX]
        return WorkerInfo(name=self.name, kind="scheduler", app=self.app.spec, schedules=names)

    def _about(self, name: str, text: str, about: str = "", /, count: int = 1) -> None:
        self._notice(name, text)

    def _notice(self, name: str, text: str) -> None:
        if self.app.events:
            self.app.events.emit([Notice(name=name, worker=self.name, at_ms=self._store.now_ms(), text=text)])


def _changes(due: DueSchedule) -> bool:
    return bool(due.turn.ticks) or due.turn.state != state_in(due.cell)


def _wait_ms(due: DueSchedule, now_ms: int) -> int:
    if due.turn.state.paused or due.turn.state.spec != due.schedule.times.spec:
        return STEP_MS
    next_ms = next_after(due.schedule.times, due.turn.state.seen_ms)
    return STEP_MS if next_ms is None else min(next_ms - now_ms, STEP_MS)


def _batches(dues: Sequence[DueSchedule], most: int) -> Iterator[list[DueSchedule]]:
    """Split the due schedules into lists whose ticks fit into one put of `most` messages."""
    batch: list[DueSchedule] = []
    for due in dues:
        if batch and sum(len(d.turn.ticks) for d in (*batch, due)) > most:
            yield batch
            batch = []
        batch.append(due)
    if batch:
        yield batch


def run(scheduler: Scheduler) -> None:
    """Run a scheduler until the process gets SIGTERM or SIGINT."""
    with _stopped_by_signals(scheduler):
        scheduler.run()


@contextmanager
def _stopped_by_signals(scheduler: Scheduler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {n: signal.signal(n, lambda *_: scheduler.stop()) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
