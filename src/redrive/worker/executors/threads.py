"""Run sync handlers in threads. Threads cannot be killed, so timeouts and cancels are reported through the Context."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ...message import BLOB
from ...run_context import enter, leave
from ..bodies import fetch, take
from ..execution import Execution
from ..middleware import refuse_coroutine
from ..settlement import fault_of

if TYPE_CHECKING:
    from ..crash.ledger import CrashSlots


class ThreadExecutor:
    """Runs sync handlers in up to `limit` daemon threads, started as needed. `finish` and `start_other` as for
    TaskExecutor, called from any thread."""

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
        with self._lock:
            if self._idle > 0 or self._threads >= self._limit:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._work, name=f"redrive-{self._threads}", daemon=True).start()
        self._queue.put(execution)

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
            if execution.delivery.message.content != BLOB or take(execution, fetch(execution)):
                result = refuse_coroutine(execution.task.entry(*execution.args, **execution.kwargs))
                if execution.keeps:
                    execution.keep(result)
        except BaseException as error:  # also SystemExit: a handler must not end the worker
            execution.fault = fault_of(execution, error)
        if token is not None:
            leave(token)
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
