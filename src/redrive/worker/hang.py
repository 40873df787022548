"""Detect hangs in this worker: an event loop that does not turn, and queues with all places taken by executions past
their timeouts.

A hang is not ended, as a process cannot end its own threads or a handler that blocks its loop. But other messages are
not kept: those that have not begun are released, and none are claimed that could not begin.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

from msgspec import Struct

from ..duration import show
from ..presence import Hung
from .capacity import QueueLimit
from .execution import Execution, InFlightExecutions
from .executors.tasks import TaskExecutor
from .executors.threads import ThreadExecutor

LEASES = 1 / 3  # the share of a lease for which nothing may progress until that counts as a hang
LEAST_S = 1.0  # the same in seconds at least, for short leases
LOOK_S = 0.25  # the least seconds between two checks
PAUSED_S = 2.0  # if the store thread made no check for so many seconds, it was stopped itself, or waited for its store
FRAMES_MAX = 20  # innermost frames of a stack that a report includes
_HANDLERS = (TaskExecutor._run.__code__, ThreadExecutor._run.__code__)  # the code of the functions that call a handler


class Hang(Struct, frozen=True):
    """A hang since `since_s` (time.monotonic()): the queues that cannot run, the execution that blocks them, if known,
    how many `more` do (-1 if the event loop hangs), and the stack of its thread."""

    since_s: float
    queues: frozenset[str]
    execution: Execution | None
    more: int
    stack: Sequence[traceback.FrameSummary]

    @property
    def task(self) -> str:
        """The name of the blocking execution's task; empty if that execution is unknown."""
        return "" if self.execution is None else self.execution.delivery.message.task

    def record(self, now_s: float, now_ms: int) -> Hung:
        """Return the hang as the worker's record shows it, given the time of both clocks."""
        return Hung(
            since_ms=now_ms - round((now_s - self.since_s) * 1000),
            queues=tuple(sorted(self.queues)),
            timeouts=self.more >= 0,
            task=self.task,
            id="" if self.execution is None else self.execution.delivery.message.id,
            place=self.place,
        )

    @property
    def place(self) -> str:
        """The line at which the blocking handler is, as `tasks.py:12 in roll`; empty if unknown."""
        if not self.stack:
            return ""
        frame = self.stack[0]
        return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"

    def text(self, now_s: float, returned: int) -> str:
        """Return a description with the number of messages `returned` to the queue, and the stack."""
        for_ = show(round(now_s - self.since_s))
        by = "" if self.execution is None else _named(self.execution)
        if self.more < 0:
            text = f"the event loop has not turned for {for_}" + (f": it runs {by}" if by else "")
        else:
            more = f" and {self.more:,} more" if self.more else ""
            all_ = f"all places of queue{'s' * (len(self.queues) > 1)} {', '.join(sorted(self.queues))}"
            text = f"{all_} are taken by executions that are past their timeouts: {by}{more}"
        text += f"; at {self.place}" if self.place else ""
        text += f"; {returned:,} claimed message{'s' * (returned != 1)} that had not begun went back"
        return "\n".join([text, *"".join(traceback.format_list(self.stack)).rstrip("\n").split("\n")]).rstrip("\n")


def _named(execution: Execution) -> str:
    return f"{execution.delivery.message.task} ({execution.delivery.message.id})"


class Hangs:
    """Detects hangs of one worker, on the store thread. `turned_s` returns the time.monotonic() at which the loop last
    turned. Call `begin` on the loop's thread."""

    due_s: float

    def __init__(
        self,
        in_flight: InFlightExecutions,
        limits: Mapping[str, QueueLimit[Execution]],
        turned_s: Callable[[], float],
        lease_s: float,
    ) -> None:
        self._in_flight, self._limits, self._turned_s = in_flight, limits, turned_s
        self._after_s = max(LEAST_S, lease_s * LEASES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._looked_s = self._awake_s = time.monotonic()
        self.due_s = 0.0
        self.hang: Hang | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._thread = loop, threading.get_ident()

    def look(self, now_s: float) -> Hang | None:
        """Check for a hang at `now_s`; return and keep it as `hang`, None if nothing hangs."""
        if now_s - self._looked_s > PAUSED_S:
            self._awake_s = now_s  # the loop may have stopped, too: its silence counts from now
        self._looked_s, self.due_s = now_s, now_s + LOOK_S
        self.hang = self._of_loop(now_s) or self._of_queues(now_s)
        return self.hang

    def _of_loop(self, now_s: float) -> Hang | None:
        turned_s = max(self._turned_s(), self._awake_s)
        if now_s - turned_s < self._after_s:
            return None
        before = self.hang
        if before is not None and before.more < 0:
            return before
        return Hang(turned_s, frozenset(self._limits), self._current(), -1, _stack_of(self._thread))

    def _current(self) -> Execution | None:
        """Return the execution whose task the event loop runs now, if any."""
        task = None if self._loop is None else asyncio.current_task(self._loop)
        return next((each for each in self._in_flight.all() if task is not None and _runner(each).handle is task), None)

    def _of_queues(self, now_s: float) -> Hang | None:
        """Return a hang of the queues in which no execution can begin, as no running one will end by itself."""
        full = {name for name, limit in self._limits.items() if limit.is_full}
        if not full:
            return None
        every, late = full == self._limits.keys(), list[Execution]()
        for each in self._in_flight.all():
            if not each.started_s or each.finished_s:
                continue
            if each.executor != "process" and now_s >= each.deadline_s + self._after_s:
                late.append(each)
                continue
            full.discard(each.delivery.message.queue)
            every = False
            if not full:
                return None
        if not every:  # places of other queues come free: only queues at their own limits cannot use them
            full = {name for name in full if self._limits[name].is_at_limit}
        queues = full if every else full & {each.delivery.message.queue for each in late}
        late = [each for each in late if each.delivery.message.queue in queues]
        if not late:
            return None
        before, first = self.hang, min(late, key=lambda each: each.deadline_s)
        if before is not None and before.execution is first and before.queues == queues:
            return before
        return Hang(first.deadline_s, frozenset(queues), first, len(late) - 1, _stack_of_execution(first))


def unbegun(executions: Sequence[Execution]) -> list[Execution]:
    """Return those of the executions that have not begun, and prevent them from beginning."""
    result = []
    for each in executions:
        if each.started_s or each.settling or each.over or each.decision is not None or each.cause is not None:
            continue
        each.cause = "hang"
        if each.started_s:  # the execution began just now, and may not have seen the cause
            each.cause = None
        else:
            result.append(each)
    return result


def _runner(execution: Execution) -> Execution:
    """Return the execution that an executor runs for this one."""
    return execution.runner or execution


def _stack_of(thread: int) -> Sequence[traceback.FrameSummary]:
    """Return the stack of a thread from its handler's frame on; the whole stack without a handler."""
    frames = list(_frames(sys._current_frames().get(thread)))
    handler = next((n for n, frame in enumerate(frames) if frame.f_code in _HANDLERS), len(frames))
    return _summary(frames[:handler] or frames)


def _stack_of_execution(execution: Execution) -> Sequence[traceback.FrameSummary]:
    """Return the stack of the thread or coroutine that runs an execution, from the handler's frame on."""
    for frame in sys._current_frames().values():
        frames = list(_frames(frame))
        for n, each in enumerate(frames):
            if each.f_code is _HANDLERS[1] and each.f_locals.get("execution") is _runner(execution):
                return _summary(frames[:n])
    handle: asyncio.Task[object] | None = _runner(execution).handle
    return () if handle is None else _summary([*reversed(handle.get_stack())][:-1])


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield this frame and its callers, so the innermost frame first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _summary(frames: Sequence[FrameType]) -> Sequence[traceback.FrameSummary]:
    """Return the frames, given innermost first, in the order of tracebacks: innermost last."""
    return traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(frames[:FRAMES_MAX]))
