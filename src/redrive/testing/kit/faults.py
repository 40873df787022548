"""Fail runs on demand: wrap a task for one run so that its handler fails, dies or is late."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ...gathered import gathered
from ...worker.execution import Execution
from ...worker.middleware import around, traced


class Crash(BaseException):
    """Ends a run where a handler raises it, as `kill -9` of the worker would there: nothing is settled, the lease
    expires, a crash is counted, and the message is delivered again. (But `finally` blocks do run.)"""


class RunFailure(Struct, frozen=True):
    """The failure requested for one execution: `error` is raised instead of running the handler or, with `after`, after
    the run."""

    error: BaseException | type[BaseException]
    after: bool = False
    late: bool = False  # True if the run ends by its timeout


class Acts:
    """The failures requested for the next runs of each task."""

    def __init__(self) -> None:
        self._next: dict[str, deque[RunFailure]] = {}

    def add(self, task: str, act: RunFailure, times: int) -> None:
        self._next.setdefault(task, deque()).extend([act] * times)

    def take(self, task: str) -> RunFailure | None:
        waiting = self._next.get(task)
        return waiting.popleft() if waiting else None


class RiggedTask:
    """Replaces the task of an execution by one whose handler fails as requested. `escaped` is an error that must end
    the test."""

    def __init__(self, run: Execution, act: RunFailure | None) -> None:
        self._task, self._run, self._act = run.task, run, act
        app: Any = self._task.app
        is_async = self._task.is_async
        rigged = self._acall if is_async else self._call
        entry = around(rigged, is_async, app._wraps)
        if self._task.gather is not None:
            entry = gathered(entry, self._task)
        self.entry: Callable[..., Any] = entry if app.tracing is None else traced(entry, is_async, app.tracing)
        self.result: Any = None
        self.escaped: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._interfere(after=False)
            result = self._task.handler(*args, **kwargs)
            self._ran(result)
            return result
        except BaseException as error:
            self._note(error)
            raise

    async def _acall(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._interfere(after=False)
            result = await self._task.handler(*args, **kwargs)
            self._ran(result)
            return result
        except BaseException as error:
            self._note(error)
            raise

    def _ran(self, result: Any) -> None:
        self.result = result[0] if self._task.gather is not None and isinstance(result, list) and result else result
        self._interfere(after=True)

    def _interfere(self, *, after: bool) -> None:
        act = self._act
        if act is None or act.after is not after:
            return
        if act.late:
            self._run.cause = "timeout"
        raise act.error if isinstance(act.error, type) else act.error.with_traceback(None)

    def _note(self, error: BaseException) -> None:
        """Keep an error that must end the test (Ctrl-C, `pytest.fail`, Crash): an executor would take it for a fault of
        the handler."""
        if not isinstance(error, Exception | asyncio.CancelledError | SystemExit | GeneratorExit):
            self.escaped = error
