"""Run suspects in groups: messages whose process has died with them more than once, so one of them may be the cause.

A group has a size that each of its suspects allows, and runs while nothing else runs in this process: the limits are
paused, and the group starts when all other executions are settled. The crash ledger has the group: if the process dies,
the next one continues with a part of it (company.py). Only a message that dies alone is guilty, so the store records
that one runs alone (`extend(…, alone=True)`) before it starts. The waiting of other messages is bounded: suspects that
cannot start in time are deferred, and after a period of suspects other messages run for as long.

Suspects that a child process can run do so, beside everything else. This module runs those that killed more than a
child.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ...message import LeaseStatus, Message, RetryAt
from ..capacity import WorkerLimit
from ..execution import NO_TASK, Execution

LOOK_S = 0.02  # seconds between two checks that everything else, or the running group, is settled
SETTLING_S = 5.0  # seconds for which an execution that ended is still waited for until it is settled
HOLD_S = (5.0, 300.0)  # seconds for which other messages may wait for a suspect's start: the first time, and at most
PUT_OFF = 4  # a suspect is deferred for so many times as long as it made other messages wait


class Suspects:
    """Runs suspects in groups. Used on the event loop's thread; `close` is thread-safe.

    `executions` returns all that the worker holds. `mark` marks an execution as alone in the store and then calls its
    second argument. `start` and `finish` are those of the executors; `resume` is called when the others may go on.
    """

    holding_since_s: float

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: WorkerLimit[Execution],
        executions: Callable[[], Iterable[Execution]],
        mark: Callable[[Execution, Callable[[LeaseStatus], None]], None],
        start: Callable[[Execution], None],
        finish: Callable[[Sequence[Execution]], None],
        resume: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._loop, self._limit, self._executions, self._mark = loop, limit, executions, mark
        self._start, self._finish, self._resume, self._now_ms = start, finish, resume, now_ms
        self._waiting: list[Execution] = []
        self._group: list[Execution] = []  # the suspects that are running, or about to start
        self.holding_since_s = 0.0  # time.monotonic() since which other messages wait for a group; 0: none wait
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._lock = threading.Lock()  # so that each execution is either returned by `close` or started, never both

    def add(self, executions: Sequence[Execution]) -> None:
        """Run these suspects in groups, one after another, as soon as possible."""
        self._waiting.extend(executions)
        if self._timer is None and not self._group:
            self._next()

    def close(self) -> list[Execution]:
        """Start no more suspects; return those that never started."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            return waiting

    def _next(self) -> None:
        """Pause other messages for the next group of suspects, or resume them."""
        self._timer = None
        now = time.monotonic()
        if not self._waiting or self._closed:
            self._let_go()
        elif self.holding_since_s and (held_s := now - self.holding_since_s) > HOLD_S[0]:
            self._let_go()
            self._later(self._next, min(held_s, HOLD_S[1]))
        else:
            self.holding_since_s = self.holding_since_s or now
            self._limit.pause()
            self._look()

    def _look(self) -> None:
        """Start the group of suspects once nothing else is running or unsettled; defer it if that takes too long."""
        self._timer = None
        held = [*self._executions()]
        self._waiting = _still(self._waiting, held)
        if not self._waiting or self._closed:
            self._let_go()
        elif not self._others(held):
            self._begin()
        elif time.monotonic() - self.holding_since_s > patience_s(self._waiting[0].delivery.message):
            self._put_off()
        else:
            self._later(self._look, LOOK_S)

    def _others(self, held: Sequence[Execution]) -> bool:
        idle, now = {None, *(id(execution) for execution in (*self._limit.waiting(), *self._waiting))}, time.monotonic()
        begun = (
            execution
            for execution in held
            if execution.task is not NO_TASK and execution.decision is None and _id_of_run(execution) not in idle
        )
        return any(_under_way(execution, now) for execution in begun)

    def _begin(self) -> None:
        with self._lock:
            group = self._group = [] if self._closed else self._chosen()
            chosen = {id(execution) for execution in group}
            self._waiting = [execution for execution in self._waiting if id(execution) not in chosen]
        if not group:
            self._let_go()
        elif len(group) == 1:
            self._mark(group[0], partial(self._go, group[0]))
        else:
            for execution in group:
                self._start(execution)
            self._later(self._watch, LOOK_S)

    def _chosen(self) -> list[Execution]:
        """Choose the next group and count it as running: first the suspects with the largest company, as they are more
        likely innocent."""
        first, *others = sorted(self._waiting, key=lambda execution: -execution.company)
        first.queue.limit.take(force=True)
        group = [first]
        for execution in others:
            if len(group) >= execution.company:
                break
            if execution.queue.limit.take():
                group.append(execution)
        return group

    def _go(self, execution: Execution, status: LeaseStatus) -> None:
        """Start a suspect alone if `status` says that the store marked it so; otherwise do not start it."""
        if not self._closed and status is LeaseStatus.HELD:
            execution.alone = True
            self._start(execution)
            self._later(self._watch, LOOK_S)
            return
        self._group = []
        execution.queue.limit.leave()  # starts no other execution, as the limits are paused
        if status is not LeaseStatus.LOST:
            why = "cancelled" if status is LeaseStatus.CANCEL else "interrupted"
            execution.decision = RetryAt.released(self._now_ms(), why)
            self._finish([execution])
        self._next()

    def _watch(self) -> None:
        """Check the running group until all its suspects have ended, then continue with the next group."""
        self._timer = None
        now = time.monotonic()
        self._group = [execution for execution in _still(self._group, self._executions()) if _under_way(execution, now)]
        if self._group:
            self._later(self._watch, LOOK_S)
        else:
            self._next()

    def _put_off(self) -> None:
        """Defer the waiting suspects, uncounted, as other executions take too long to end."""
        decision = put_off(self._now_ms(), time.monotonic() - self.holding_since_s)
        for execution in self._waiting:
            execution.decision = decision
        self._finish(self._waiting)
        self._waiting = []
        self._let_go()

    def _let_go(self) -> None:
        if not self.holding_since_s:
            return
        self.holding_since_s = 0.0
        for execution in self._limit.resume():
            self._start(execution)
        self._resume()

    def _later(self, call: Callable[[], None], delay_s: float) -> None:
        self._timer = self._loop.call_later(delay_s, call)


def _id_of_run(execution: Execution) -> int | None:
    """Return the id() of what the limits count for an execution; None while its call waits for more messages."""
    return None if execution.runner is None else id(execution.runner)


def _under_way(execution: Execution, now_s: float) -> bool:
    """Return True while a death of the process would count against the execution: until it is settled, as the ledger
    has it as started, but not beyond its lease, when another worker may claim its message."""
    return now_s < (
        min(execution.until_s, execution.finished_s + SETTLING_S) if execution.finished_s else execution.until_s
    )


def _still(executions: Sequence[Execution], held: Iterable[Execution]) -> list[Execution]:
    """Return those of `executions` that are among `held`, the executions that the worker still holds."""
    ids = {id(execution) for execution in held}
    return [execution for execution in executions if id(execution) in ids]


def patience_s(message: Message) -> float:
    """Return for how many seconds others may wait for this suspect: longer if it was deferred before, up to a fifth of
    the time."""
    return min(max(HOLD_S[0], message.held_ms / 1000 / PUT_OFF), HOLD_S[1])


def put_off(now_ms: int, held_s: float) -> RetryAt:
    """Return the decision that defers a suspect, uncounted, after other messages waited `held_s` for its start."""
    return RetryAt.deferred(now_ms + int(held_s * PUT_OFF * 1000), "suspect")
