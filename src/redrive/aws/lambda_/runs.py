"""Run the messages of one invocation with the worker's executors, within Lambda's time limit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from ...decide import Policy
from ...message import RetryAt
from ...task import TaskSpec
from ...worker.execution import Execution
from ...worker.executors.tasks import TaskExecutor
from ...worker.executors.threads import ThreadExecutor
from ...worker.settlement import fault_of

UNWIND_S = 0.3  # seconds in which an execution that was ended must stop, or it is left behind


class Bounded:
    """A task whose timeout is at most the time left of the invocation."""

    policy: Any | Policy

    def __init__(self, task: TaskSpec, left_s: float) -> None:
        self._task = getattr(task, "_task", task)
        self.policy = replace(self._task.policy, timeout_s=max(0.001, min(self._task.policy.timeout_s, left_s)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def bounded(tasks: Mapping[str, TaskSpec], left_s: float) -> dict[str, Any]:
    """Return these tasks with timeouts of at most `left_s`."""
    return {name: Bounded(task, left_s) for name, task in tasks.items()}


class LaneRunner:
    """Runs executions on its own event loop, at most `limit` at once. Loop and threads are kept between invocations."""

    def __init__(self, limit: int) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # with a factory, Runner sets no global loop
        self._limit = limit
        self._ends: dict[int, asyncio.Future[None]] = {}  # by id of the execution
        self._current: list[Execution] = []
        self._longest_s = 0.0
        loop = self._runner.get_loop()
        self._loop = loop
        self._threads = self._new_threads()
        self._tasks = TaskExecutor(loop, self._ended, _nobody, lambda: self._current, None, 0.5)

    def run(self, lanes: Sequence[Sequence[Execution]], end_s: float) -> list[Execution]:
        """Run the lanes concurrently, and the executions of a lane in order. If an execution fails, or lacks the time
        to start, the rest of its lane is not run. Returns when all have ended, or at `end_s` (of time.monotonic):
        executions that still run then get a timeout fault and are returned; they may continue."""
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
            if any(execution.executor == "thread" for execution in left):  # these threads keep running, maybe for ever
                self._threads.close()
                self._threads = self._new_threads()
            self._current, self._ends = [], {}
        return left

    async def _lane(self, lane: Sequence[Execution], places: asyncio.Semaphore, end_s: float) -> None:
        for execution in lane:
            if (
                execution.over or execution.decision is not None or execution.fault is not None
            ):  # the execution ended before it started
                if _failed(execution):
                    return
                continue
            async with places:
                left_s = end_s - time.monotonic()
                if left_s <= 0 or left_s < min(execution.task.policy.timeout_s, self._longest_s):
                    return  # the time left is shorter than the timeout and the longest execution so far
                execution.task = cast(TaskSpec, Bounded(execution.task, left_s))
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
        """Like `_ended`, but called from any thread."""
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


def _failed(execution: Execution) -> bool:
    """True if the execution failed, so that later messages of its group must wait."""
    if execution.decision is not None:
        return isinstance(execution.decision, RetryAt)
    return execution.fault is not None


def _leave_behind(execution: Execution) -> None:
    """Give a timeout fault to an execution that did not stop when asked. Its result is lost."""
    execution.end("timeout")
    execution.cause = "timeout"
    execution.fault = fault_of(execution, TimeoutError())
    execution.finished_s = time.monotonic()


def _nobody(_: Execution) -> None:
    """Do nothing when an execution ends: its lane starts the next one."""
