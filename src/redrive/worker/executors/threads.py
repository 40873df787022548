"""Run sync handlers in threads. Threads cannot be killed, so timeouts and cancels are reported through the Context."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ...message import BLOB, RetryAt
from ...run_context import enter, leave
from ..bodies import fetch, take
from ..execution import Execution
from ..middleware import refuse_coroutine
from ..settlement import fault_of

if TYPE_CHECKING:
    from ..crash.ledger import CrashSlots

AGAIN_MS = 1_000  # ms after which a message is retried if no thread could start for it


class ThreadExecutor:
    """Runs sync handlers in up to `limit` daemon threads, started as needed. `finish` and `start_other` as for
    TaskExecutor, called from any thread.

    If no more threads can start, executions wait for those there are; if there are none, they are deferred, uncounted.
    """

    def __init__(
        self,
        limit: int,
        finish: Callable[[Sequence[Execution]], None],
        start_other: Callable[[Execution], None],
        slots: CrashSlots | None,
    ) -> None:
        self._limit, self._finish, self._start_other, self._slots = limit, finish, start_other, slots
        self._queue: SimpleQueue[Execution | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0

    def start(self, execution: Execution) -> None:
        starting: Execution | None = execution
        while starting is not None:
            if self._has_thread():
                self._queue.put(starting)
                return
            starting.decision = RetryAt.deferred(starting.task.app.store.now_ms() + AGAIN_MS, "no thread")
            starting = self._end(starting)

    def _has_thread(self) -> bool:
        """Count one more execution in the queue, and start a thread for it if none is idle; return False if there are
        no threads and none can start."""
        with self._lock:
            if self._idle <= 0 and self._threads < self._limit:
                try:
                    threading.Thread(target=self._work, name=f"redrive-{self._threads + 1}", daemon=True).start()
                except RuntimeError:  # there are too many threads in the process or the container
                    if self._threads == 0:
                        return False
                else:
                    self._threads += 1
                    return True
            self._idle -= 1
            return True

    def _work(self) -> None:
        while (execution := self._queue.get()) is not None:
            following: Execution | None = execution
            while following is not None:
                following = self._run(following)
            with self._lock:
                self._idle += 1

    def _run(self, execution: Execution) -> Execution | None:
        token = None
        try:
            token = enter(execution.begin(self._slots))
            if execution.delivery.message.content != BLOB or take(execution, fetch(execution, execution.task)):
                result = refuse_coroutine(execution.task.entry(*execution.args, **execution.kwargs))
                if execution.keeps:
                    execution.keep(result)
        except BaseException as error:  # also SystemExit: a handler must not end the worker
            execution.fault = fault_of(execution, error)
        if token is not None:
            leave(token)
        return self._end(execution)

    def _end(self, execution: Execution) -> Execution | None:
        """Finish an execution and start those that its end lets start; return one of this executor instead."""
        execution.finished_s = time.monotonic()
        self._finish((execution,))
        for following in execution.queue.limit.leave():
            if following.executor == "thread":
                return following
            self._start_other(following)
        return None

    def close(self) -> None:
        for _ in range(self._threads):
            self._queue.put(None)
