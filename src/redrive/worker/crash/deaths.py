"""What the death of a child process means for each of the runs that it had: the fault that each ends with."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...fault import STARTED_MAX, Crash, Fault, Kind, crash_fault
from ..execution import Execution
from ..executors.child_process import Child, Death


def faults_of(child: Child, death: Death, stack: str, worker: str) -> Iterator[tuple[Execution, Fault]]:
    """Each run of a child that died, with its fault.

    Those that had been handed to it crashed: any of them may have done it, where several had. Of a child that was
    killed because some were past their time only these did, and the others are cut off, as all are of one that its
    worker killed for its own reasons. `stack` is where it was, as far as that is known.
    """
    suspected = dict.fromkeys(_suspected(child))
    ids = [child.runs[number].delivery.message.id for number in suspected]
    cause = _cause(child, death)
    for number, run in child.runs.items():
        if number not in suspected:
            yield run, Fault(Kind.INTERRUPTED, "ProcessDied", _cut_off(child, number))
            continue
        if cause == "timeout":
            run.cause = run.cause or "timeout"
        alone = number not in child.met
        yield run, crash(run, death, cause, worker, ids, alone=alone, stack=stack if alone else "")


def crash(
    run: Execution,
    death: Death,
    cause: str,
    worker: str,
    ids: Sequence[str] = (),
    *,
    alone: bool = True,
    stack: str = "",
) -> Fault:
    """The evidence."""
    ids = ids or [run.delivery.message.id]
    evidence = Crash(
        cause=cause, signal=death.signal, code=death.code, peak_bytes=death.peak_bytes,
        run_s=time.monotonic() - run.started_s, alone=alone, started=tuple(ids[:STARTED_MAX]), started_count=len(ids),
        worker=worker, host=os.uname().nodename, child=True,
    )  # fmt: skip
    return replace(crash_fault(evidence), traceback=stack)


def _cause(child: Child, death: Death) -> str:
    if child.killed == "timeout":
        return "timeout"
    return "signal" if death.signal else "exit" if death.code is not None else ""


def _suspected(child: Child) -> list[int]:
    """The runs that may have killed it, or were to be killed; one may have ended just before."""
    if child.killed in ("lease", "drain"):
        return []
    return sorted(child.runs.keys() & (child.overdue if child.killed == "timeout" else child.sent))


def _cut_off(child: Child, number: int) -> str:
    if child.killed in ("lease", "drain"):
        return f"the worker ended it: {child.killed}"
    if number not in child.sent:
        return "its process died before it had the message"
    return "its process was killed for another message, which was past its time"
