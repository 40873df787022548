"""What stands between a claim and a run: is there such a task, can its body be read, and does `admit` let it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..decide import NO_SIGNALS, Policy, Signals, admit
from ..decide import Run as Admitted
from ..errors import RedriveError, Unreadable
from ..fault import Fault, Kind, classify
from .run import Run

_NO_POLICY = Policy()


class Unroutable(RedriveError):
    """No task of that name is registered."""


def admit_run(run: Run, tasks: Mapping[str, Any], now_ms: int) -> bool:
    """Set the run's task and arguments and return True, or its verdict and fault and return False."""
    message = run.delivery.message
    task = tasks.get(message.task)
    signals = NO_SIGNALS
    if task is None:
        known = ", ".join(sorted(tasks)) or "none"
        signals = Signals(unroutable=f"no task {message.task!r} is registered here; known: {known}")
    else:
        try:
            run.task = task
            run.args, run.kwargs = task.codec.decode(message.body)
        except Unreadable as error:
            signals = Signals(unreadable=str(error))
    verdict = admit(message, _NO_POLICY if task is None else task.policy, signals, now_ms)
    if isinstance(verdict, Admitted):
        return True
    run.verdict, run.fault = verdict, _fault(signals)
    return False


def _fault(signals: Signals) -> Fault | None:
    if signals.unroutable is not None:
        return classify(Unroutable(signals.unroutable), ((Unroutable, Kind.UNROUTABLE),))
    if signals.unreadable is not None:
        return classify(Unreadable(signals.unreadable), ((Unreadable, Kind.UNREADABLE),))
    return None
