"""Run handlers by the worker's executors, in a synchronous or an asynchronous test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...worker.execution import Execution
from ...worker.executors.tasks import TaskExecutor
from ...worker.executors.threads import ThreadExecutor


class InlineRunner:
    """Runs handlers in synchronous tests: sync ones in the test's thread, async ones on an event loop of the kit.

    The loop is made when it is first needed. Timeouts end async handlers in real time, as in a worker.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._current: list[Execution] = []
        self._tasks: TaskExecutor | None = None
        self._threads = ThreadExecutor(0, _ignore_all, _ignore, None)

    def run(self, run: Execution) -> None:
        if not run.task.is_async:
            self._threads._run(run)
            return
        loop, tasks = self._open()
        self._current[:] = [run]
        tasks.start(run)
        loop.run_until_complete(run.handle)

    def close(self) -> None:
        """Close the event loop, and cancel asyncio tasks that handlers left running."""
        if self._runner is not None and self._tasks is not None:
            self._tasks.close()
            self._runner.close()

    def _open(self) -> tuple[asyncio.AbstractEventLoop, TaskExecutor]:
        if self._runner is None or self._tasks is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # which does not become the global loop
            self._tasks = _executor(self._runner.get_loop(), self._current)
        return self._runner.get_loop(), self._tasks


class LoopRunner:
    """Runs handlers in asynchronous tests: async ones on the test's loop, and sync ones in a thread, as in a worker,
    since they may block or run a loop of their own."""

    def __init__(self) -> None:
        self._current: list[Execution] = []
        self._tasks = _executor(asyncio.get_running_loop(), self._current)
        self._threads = ThreadExecutor(0, _ignore_all, _ignore, None)

    async def run(self, run: Execution) -> None:
        if not run.task.is_async:
            await asyncio.to_thread(self._threads._run, run)
            return
        self._current[:] = [run]
        self._tasks.start(run)
        handle = run.handle
        try:
            await asyncio.wait([handle])  # not `await handle`: an execution swallows its cancellation
        finally:
            if not handle.done():
                handle.cancel()

    def close(self) -> None:
        self._tasks.close()


def _executor(loop: asyncio.AbstractEventLoop, current: list[Execution]) -> TaskExecutor:
    return TaskExecutor(loop, _ignore_all, _ignore, lambda: current, None, 0.5)


def _ignore(_: Execution) -> None:
    """Do nothing when an execution ends, as no other execution waits for its place."""


def _ignore_all(_: Sequence[Execution]) -> None:
    """Do nothing, as the runner's own call returns when the execution has ended."""
