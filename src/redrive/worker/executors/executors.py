"""The executors of one worker: its event loop, its threads and its child processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from ..crash.ledger import CrashSlots
from ..execution import Execution
from .processes import ProcessExecutor
from .tasks import TaskExecutor
from .threads import ThreadExecutor


class Executors:
    """Starts each execution on the executor of its task.

    `finish` gets executions that ended, from any thread. `held` returns every execution of the worker. `margin_s` is
    how long before the end of its lease a coroutine is cancelled, unless the store is `out_of_reach` of all workers.
    `processes` creates the process executor, given the function that starts an execution on another one; None: children
    cannot import the app, or are not needed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads_max: int,
        finish: Callable[[Sequence[Execution]], None],
        held: Callable[[], Iterable[Execution]],
        slots: CrashSlots | None,
        margin_s: float,
        out_of_reach: Callable[[], bool],
        processes: Callable[[Callable[[Execution], None]], ProcessExecutor] | None,
    ) -> None:
        self._loop = loop
        self.tasks: TaskExecutor = TaskExecutor(loop, finish, self.start, held, slots, margin_s, out_of_reach)
        self._threads = ThreadExecutor(threads_max, finish, self.start, slots)
        self._processes = None if processes is None else processes(self.start)
        self.tasks.watch()

    def begin(self, execution: Execution) -> None:
        """Start an execution on its executor, from the event loop's thread."""
        self.tasks.start(execution) if execution.executor == "loop" else self.start(execution)

    def start(self, execution: Execution) -> None:
        """Start an execution on its executor. Thread-safe."""
        if execution.executor == "thread":
            self._threads.start(execution)
        elif execution.executor == "loop":
            self._loop.call_soon_threadsafe(self.tasks.start, execution)
        elif self._processes is not None:
            self._processes.start(execution)

    def can_isolate(self, task: str) -> bool:
        """Return True if a child process can run suspects of this task."""
        return self._processes is not None and self._processes.takes(task)

    async def close(self) -> None:
        """End the threads and the child processes."""
        self.tasks.close()
        self._threads.close()
        if self._processes is not None:
            await asyncio.to_thread(self._processes.close)
