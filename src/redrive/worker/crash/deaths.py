"""The faults of the executions in a child process that died."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...fault import STARTED_MAX, Crash, Fault, Kind, crash_fault
from ...system import host
from ..execution import Execution
from ..executors.child_process import Child, Death

OWN_REASONS = ("lease", "drain", "cancel")  # reasons to kill a child whose executions did nothing wrong


def faults_of(child: Child, death: Death, stack: str, worker: str) -> Iterator[tuple[Execution, Fault]]:
    """Yield each execution of a child that died, with its fault.

    Those that the child had received count as crashed; any of them may be the cause. If the worker killed the child
    because some were past their timeouts, only these crashed, and the others were interrupted. If it killed the child
    for one of OWN_REASONS, all were interrupted. `stack` is the child's stack, if known.
    """
    suspected = dict.fromkeys(_suspected(child))
    ids = [child.executions[number].delivery.message.id for number in suspected]
    cause = _cause(child, death)
    for number, execution in child.executions.items():
        if number not in suspected:
            yield execution, Fault(Kind.INTERRUPTED, "ProcessDied", _cut_off(child, number))
            continue
        if cause == "timeout":
            execution.cause = execution.cause or "timeout"
        alone = number not in child.met
        yield execution, crash(execution, death, cause, worker, ids, alone=alone, stack=stack if alone else "")


def crash(
    execution: Execution,
    death: Death,
    cause: str,
    worker: str,
    ids: Sequence[str] = (),
    *,
    alone: bool = True,
    stack: str = "",
) -> Fault:
    """Return the fault of an execution whose child died; `ids` are the messages the child had started, if not only this
    one."""
    ids = ids or [execution.delivery.message.id]
    evidence = Crash(
        cause=cause, signal=death.signal, code=death.code, peak_bytes=death.peak_bytes,
        run_s=time.monotonic() - execution.started_s, alone=alone, started=tuple(ids[:STARTED_MAX]),
        started_count=len(ids), worker=worker, host=host(), child=True,
    )  # fmt: skip
    return replace(crash_fault(evidence), traceback=stack)


def _cause(child: Child, death: Death) -> str:
    if child.killed == "timeout":
        return "timeout"
    return "signal" if death.signal else "exit" if death.code is not None else ""


def _suspected(child: Child) -> list[int]:
    """Return the numbers of the executions that may have killed the child or, if it was killed for a timeout, exceeded
    theirs."""
    if child.killed in OWN_REASONS:
        return []
    return sorted(child.executions.keys() & (child.overdue if child.killed == "timeout" else child.sent))


def _cut_off(child: Child, number: int) -> str:
    if child.killed in OWN_REASONS:
        return f"the worker ended it: {child.killed}"
    if number not in child.sent:
        return "its process died before it had the message"
    return "its process was killed for another message, which was past its time"
