"""Runs of one invocation: the worker's own executors, within the time that Lambda leaves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...message import RetryAt
from ...task import TaskSpec
from ...worker.execution import Execution
from ...worker.executors.tasks import TaskExecutor
from ...worker.executors.threads import ThreadExecutor
from ...worker.settlement import fault_of

UNWIND_S = 0.3  # how long what was told to end may take to end; then it is left behind


class Bounded:
    """A task in all but its timeout, which is no longer than what is left of the invocation."""

    def __init__(self, task: TaskSpec, left_s: float) -> None:
        self._task = getattr(task, "_task", task)
        self.policy = replace(self._task.policy, timeout_s=max(0.001, min(self._task.policy.timeout_s, left_s)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def bounded(tasks: Mapping[str, TaskSpec], left_s: float) -> dict[str, Any]:
    """All of these, with so much time."""
    return {name: Bounded(task, left_s) for name, task in tasks.items()}


class LaneRunner:
    """Runs what is given to it on an event loop of its own, at most `limit` at once; the loop and the threads are kept
    from one invocation to the next."""

    def __init__(self, limit: int) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # with a factory it sets no global loop
        self._limit = limit
        self._ends: dict[int, asyncio.Future[None]] = {}  # by id of the run
        self._current: list[Execution] = []
        self._longest_s = 0.0
        loop = self._runner.get_loop()
        self._loop = loop
        self._threads = self._new_threads()
        self._tasks = TaskExecutor(loop, self._ended, _nobody, lambda: self._current, None, 0.5)

    def run(self, lanes: Sequence[Sequence[Execution]], end_s: float) -> list[Execution]:
        """Run lanes beside each other, the runs of a lane one after the other: after one that failed, or had no time to
        begin, the rest of its lane is left. Returns when all have ended, or `end_s` (of time.monotonic) is over: what
        runs then has the fault of a timeout, and may be going on; which those are."""
        return self._runner.run(self._all(lanes, end_s))

    async def _all(self, lanes: Sequence[Sequence[Execution]], end_s: float) -> list[Execution]:
        self._current, self._longest_s = [execution for lane in lanes for execution in lane], 0.0
        places = asyncio.Semaphore(self._limit)
        self._tasks.watch()
        working = [self._loop.create_task(self._lane(lane, places, end_s)) for lane in lanes]
        try:
            if working:
                await asyncio.wait(working, timeout=max(0.0, end_s - time.monotonic()) + UNWIND_S)
        finally:
            for task in working:
                task.cancel()
            left = [execution for execution in self._current if execution.started_s and not execution.finished_s]
            for execution in left:
                _leave_behind(execution)
            if any(execution.executor == "thread" for execution in left):  # they keep their threads, maybe for ever
                self._threads.close()
                self._threads = self._new_threads()
            self._current, self._ends = [], {}
        return left

    async def _lane(self, lane: Sequence[Execution], places: asyncio.Semaphore, end_s: float) -> None:
        for execution in lane:
            if (
                execution.over or execution.decision is not None or execution.fault is not None
            ):  # it ended before it began
                if _failed(execution):
                    return
                continue
            async with places:
                left_s = end_s - time.monotonic()
                if left_s <= 0 or left_s < min(execution.task.policy.timeout_s, self._longest_s):
                    return  # it would be cut off, as far as the others tell
                execution.task = Bounded(execution.task, left_s)
                await self._one(execution)
            if _failed(execution):
                return

    async def _one(self, execution: Execution) -> None:
        end = self._ends[id(execution)] = self._loop.create_future()
        (self._tasks if execution.executor == "loop" else self._threads).start(execution)
        await end
        self._longest_s = max(self._longest_s, execution.finished_s - (execution.started_s or execution.finished_s))

    def _new_threads(self) -> ThreadExecutor:
        return ThreadExecutor(self._limit, self._end_later, _nobody, None)

    def _end_later(self, executions: Sequence[Execution]) -> None:
        """As `_ended`, from any thread; the loop may rest at an end that was not awaited."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended, executions)

    def _ended(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            end = self._ends.pop(id(execution), None)
            if end is not None and not end.done():
                end.set_result(None)

    def close(self) -> None:
        """End the threads and the loop."""
        self._threads.close()
        self._tasks.close()
        self._runner.close()


def never_began(execution: Execution) -> bool:
    """Whether it has neither begun nor come to an end without that."""
    return not execution.started_s and execution.decision is None and execution.fault is None and not execution.over


def _failed(execution: Execution) -> bool:
    """Whether those behind it in its group have to wait."""
    if execution.decision is not None:
        return isinstance(execution.decision, RetryAt)
    return execution.fault is not None


def _leave_behind(execution: Execution) -> None:
    """It was asked to end and did not. It is not awaited; its work from here on is lost or done twice."""
    execution.end("timeout")
    execution.cause = "timeout"
    execution.fault = fault_of(execution, TimeoutError())
    execution.finished_s = time.monotonic()


def _nobody(_: Execution) -> None:
    """Nothing is waiting to take the place of a run that ended: lanes see to that."""
