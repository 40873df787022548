"""Gather the messages of tasks with `gather=` into calls of a handler.

A call is an execution like others, the **lead**: limits count it once, and an executor runs it. Its messages are held,
leased, settled and counted one by one. A message whose failure or crash must count for it alone runs in a call of its
own.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import LeaseLost
from ..gathered import CallMessages
from ..message import BLOB
from ..run_context import Context
from .execution import Execution
from .settlement import fault_of


class GatheredCall(CallMessages):
    """The executions of one call. It takes more until it is full or begins; `lead` is None while it lingers."""

    def __init__(self, key: tuple[Any, ...], gathering: Gathering) -> None:
        self._key, self._gathering = key, gathering
        self.lead: Execution | None = None
        self.executions: list[Execution] = []
        self._begun: list[Execution] = []

    def run(self) -> Execution:
        """Return the execution that runs the call."""
        first = self.executions[0]
        self.lead = Execution(first.delivery, first.queue, math.inf, task=first.task, args=(self,), call=self)
        return self.lead

    def close(self) -> None:
        """Take no more executions. Call it under the lock."""
        calls = self._gathering.calls
        if calls.get(self._key) is self:
            del calls[self._key]

    def begin(self) -> tuple[Sequence[Context], list[Any]]:
        with self._gathering.lock:
            self.close()
        runs, items = [], []
        for execution in self.executions:
            try:
                runs.append(self._gathering.start(execution))
            except LeaseLost as error:  # another worker may run it
                execution.fault = fault_of(execution, error)
                continue
            execution.handle = self
            self._begun.append(execution)
            items += [*execution.args[int(execution.task.takes_context) :], *execution.kwargs.values()]
        return runs, items

    def end(self, answers: Sequence[Any]) -> None:
        for execution, answer in zip(self._begun, answers, strict=True):
            if isinstance(answer, BaseException):
                execution.fault = fault_of(execution, answer)
            elif not execution.plain and execution.keeps:
                execution.keep(answer)

    def cancel(self) -> None:
        """End the call if all its messages are to end. Called on the loop's thread."""
        causes = [execution.cause for execution in self._begun if execution.cause is not None]
        if self.lead is not None and len(causes) == len(self._begun):
            self.lead.end("timeout" if "timeout" in causes else causes[-1])

    def over(self, lead: Execution) -> list[Execution]:
        """Return the executions after the call has ended; one of them speaks for it to flow control."""
        begun, executions = self._begun, self.part()
        if lead.decision is not None:  # the call was deferred
            for execution in executions:
                execution.decision = lead.decision
        for execution in begun:
            execution.finished_s = lead.finished_s
            if lead.fault is not None:
                execution.fault = lead.fault
        asks = (each for each in begun if each.fault is not None and each.fault.retry_after_s)
        well = (each for each in begun if each.fault is None)
        speaker = next(asks, None) or next(well, None) or next(iter(begun), None)
        for execution in begun:
            execution.silent = execution is not speaker
        return executions

    def part(self) -> list[Execution]:
        """Return the executions, which the call has no more: no collector frees a cycle of them."""
        with self._gathering.lock:
            self.close()
            executions, self.executions, self._begun, self.lead = self.executions, [], [], None
        for execution in executions:
            execution.call = execution.handle = None
        return executions


def parted(executions: Iterable[Execution]) -> list[Execution]:
    """Return these executions, which will not run, with those of a call in the place of its lead."""
    return [each for some in executions for each in ((some,) if some.call is None else some.call.part())]


class Gathering:
    """The calls of one worker that wait for more messages. `start` begins an execution of a call, `run` passes a call
    to its executor.

    Used on the loop's thread; `withdraw` is thread-safe, and `finish` may be called on any thread.
    """

    lock: threading.RLock

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        start: Callable[[Execution], Context],
        run: Callable[[Execution], None],
        finish: Callable[[Sequence[Execution]], None],
    ) -> None:
        self._loop, self._run, self._finish = loop, run, finish
        self.start: Callable[[Execution], Context] = start
        self.calls: dict[tuple[Any, ...], GatheredCall] = {}  # those that take more executions
        self.lock = threading.RLock()  # so that each execution is in one call, and is either withdrawn or started

    def add(self, executions: Sequence[Execution]) -> list[Execution]:
        """Return the executions to start now, in order: calls that do not linger, and what is not gathered. The
        executions of a call have the same task and queue, and the same keys of rates and dependencies."""
        starting = []
        with self.lock:
            new: list[GatheredCall] = []
            for execution in executions:
                if execution.task.gather is None or runs_alone(execution):
                    starting.append(execution)
                    continue
                key = (execution.task, execution.queue, execution.guards)
                call = self.calls.get(key)
                if call is None:
                    call = self.calls[key] = GatheredCall(key, self)
                    new.append(call)
                call.executions.append(execution)
                execution.call = call
                if len(call.executions) >= execution.task.gather:
                    call.close()
                    if call.lead is None:
                        starting.append(call.run())
            for call in new:
                linger_s = call.executions[0].task.linger_s
                if call.lead is None and linger_s:
                    self._loop.call_later(linger_s, self._linger_over, call)
                elif call.lead is None:
                    starting.append(call.run())
        return starting

    def _linger_over(self, call: GatheredCall) -> None:
        with self.lock:
            lead = call.run() if call.lead is None and call.executions else None
        for started in () if lead is None else lead.queue.limit.enter([lead]):
            self._run(started)

    def withdraw(self, chosen: Callable[[Execution], bool] = lambda execution: True) -> list[Execution]:
        """Forget the `chosen` executions that linger, and return them for the worker to release them."""
        with self.lock:
            gone = [call for call in self.calls.values() if call.lead is None and chosen(call.executions[0])]
            return [execution for call in gone for execution in call.part()]

    def finish(self, executions: Sequence[Execution]) -> None:
        """Pass on executions that ended, with those of a call in the place of its lead."""
        self._finish([each for one in executions for each in ((one,) if one.call is None else one.call.over(one))])


def runs_alone(execution: Execution) -> bool:
    """Return True if a message must not share a call: a suspect, one whose body is read when it starts, and one whose
    last attempt this is, as the error of another must not be its death."""
    message, most = execution.delivery.message, execution.task.policy.retry.max_attempts
    return message.suspect or message.content == BLOB or 1 < most <= message.attempt
