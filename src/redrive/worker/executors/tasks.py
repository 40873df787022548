"""Run async handlers as tasks of one event loop, and watch their timeouts and leases."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ...decide import Signals
from ...message import BLOB
from ...run_context import enter
from ..bodies import READERS, TIMED_OUT, Fetched, fetch, take
from ..execution import Execution
from ..settlement import fault_of

if TYPE_CHECKING:
    from ..crash.ledger import CrashSlots


class TaskExecutor:
    """Runs async handlers. Used on the event loop's thread.

    `finish` gets the executions that ended in one turn of the loop as a batch. `start_other` starts an execution on
    another executor. `executions` returns all that the worker holds. `margin_s` is how long before the end of its lease
    a coroutine is cancelled, unless the store is `out_of_reach` of all workers, as none can claim it then.
    """

    turned_s: float

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        finish: Callable[[Sequence[Execution]], None],
        start_other: Callable[[Execution], None],
        executions: Callable[[], Iterable[Execution]],
        slots: CrashSlots | None,
        margin_s: float,
        out_of_reach: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop, self._finish, self._start_other, self._executions, self._slots = (
            loop,
            finish,
            start_other,
            executions,
            slots,
        )
        self._margin_s, self._out_of_reach = margin_s, out_of_reach
        self._finished: list[Execution] = []
        self._readers: ThreadPoolExecutor | None = None
        self._watch_at_s = float("inf")
        self._watcher: asyncio.TimerHandle | None = None
        self.turned_s = time.monotonic()  # time.monotonic() of the loop's last known turn, updated a few times a second

    def start(self, execution: Execution) -> None:
        execution.handle = self._loop.create_task(self._run(execution))

    async def _run(self, execution: Execution) -> None:
        try:
            enter(execution.begin(self._slots))
            if execution.deadline_s < self._watch_at_s:
                self._watch_from(execution.deadline_s)
            plain = execution.plain
            if plain or execution.delivery.message.content != BLOB or take(execution, await self._fetched(execution)):
                result = await execution.task.entry(*execution.args, **execution.kwargs)
                if not plain and execution.keeps:
                    execution.keep(result)
        except BaseException as error:  # also SystemExit: it fails the message, and must not end the worker
            if isinstance(error, GeneratorExit) and self._loop.is_closed():
                raise  # the worker abandoned this coroutine, which is now being collected
            execution.fault = fault_of(execution, error)
        self._done(execution)

    async def _fetched(self, execution: Execution) -> Fetched:
        """Read the execution's body in a thread, so that a slow disk delays neither the event loop nor enqueues."""
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READERS, "redrive-reader")
        try:
            return await self._loop.run_in_executor(self._readers, fetch, execution, execution.task)
        except asyncio.CancelledError:
            if execution.cause != "timeout":
                raise
            return TIMED_OUT
        except RuntimeError as error:  # there are too many threads in the process or the container
            return Fetched(signals=Signals(unfetched=str(error)))

    def _done(self, execution: Execution) -> None:
        execution.finished_s = time.monotonic()
        execution.handle = None
        if not self._finished:
            self._loop.call_soon(self._flush)
        self._finished.append(execution)

    def _flush(self) -> None:
        finished, self._finished = self._finished, []
        for queue, number in Counter([execution.queue for execution in finished]).items():
            for following in queue.limit.leave(number):
                (self.start if following.executor == "loop" else self._start_other)(following)
        self._finish(finished)

    def watch(self) -> None:
        """End executions past their timeouts or leases. Schedules its own next call, at least a few times a second."""
        now = self.turned_s = time.monotonic()
        if self._slots is not None:
            self._slots.beat_loop(now)
        next_s = now + min(0.5, self._margin_s)
        for execution in self._executions():
            if not execution.started_s or execution.finished_s or execution.cause is not None:
                continue
            if now >= execution.until_s - self._margin_s and self._out_of_reach():
                execution.until_s = next_s + self._margin_s
            ends_s = min(execution.deadline_s, execution.until_s - self._margin_s)
            if now >= ends_s:
                execution.end("timeout" if now >= execution.deadline_s else "lease")
            elif ends_s < next_s:
                next_s = ends_s
        self._watch_at_s = float("inf")
        self._watch_from(next_s)

    def _watch_from(self, at_s: float) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        self._watch_at_s = at_s
        self._watcher = self._loop.call_later(max(0.0, at_s - time.monotonic()), self.watch)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._readers is not None:
            self._readers.shutdown(wait=False, cancel_futures=True)
