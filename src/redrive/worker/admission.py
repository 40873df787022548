"""What stands between a claim and a run: is there such a task, can its body be read, and does `admit` let it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..decide import NO_SIGNALS, Policy, Signals, admit, is_told_locked, parked_since_ms
from ..decide import Run as Admitted
from ..errors import KeyMissing, RedriveError, Tampered, UnknownArguments, Unreadable
from ..fault import Fault, Kind, classify
from ..message import BLOB, RAW, Ack, DeadLetter, Message, Quarantine, is_closed
from .execution import Run

_NO_POLICY = Policy()


class Unroutable(RedriveError):
    """No task of that name is registered, or none of that version, or with those arguments."""


def admit_run(run: Run, tasks: Mapping[str, Any], now_ms: int) -> bool:
    """Set the run's task and arguments and return True, or its verdict and fault and return False."""
    message = run.delivery.message
    task = tasks.get(message.task)
    signals = NO_SIGNALS if run.refusal is None else Signals(refusal=run.refusal)
    if is_closed(message):
        signals = _closed(run, message)
    elif task is None or message.version > task.version:
        signals = Signals(unroutable=_unroutable(message, task, tasks), park_ms=run.gate.park_ms)
        task = None
    elif run.task is None and has_nothing(run, task):
        return False
    elif run.task is None:  # else its body was read already
        try:
            run.task = task
            # A blob is read when the run begins, not on this thread; and what a child runs, it reads.
            if message.content != BLOB and task.isolation is None:
                run.args, run.kwargs = task.codec.decode(message.body, message.version, raw=message.content == RAW)
        except Unreadable as error:
            signals = unread(error, run)
    return judge(run, signals, now_ms)


def unread(error: Unreadable, run: Run) -> Signals:
    """What a body that cannot be decoded says against the run. One with arguments that are unknown here may be of a
    newer producer: it waits for a worker that knows them, as a newer version does."""
    if isinstance(error, KeyMissing):
        return Signals(locked=str(error))
    if isinstance(error, Tampered):
        return Signals(tampered=str(error))
    if isinstance(error, UnknownArguments):
        return Signals(unroutable=str(error), park_ms=run.gate.park_ms)
    return Signals(unreadable=str(error))


def _closed(run: Run, message: Message) -> Signals:
    """Why what its handler needs is still encrypted."""
    from ..crypto import why_closed

    return unread(why_closed(run.gate.store, message), run)


def has_nothing(run: Run, task: Any) -> bool:
    """Whether there is nothing in it for its handler: then it is done."""
    message = run.delivery.message
    if message.content != RAW or not task.codec.has_nothing(message.body):
        return False
    run.task, run.verdict = task, Ack()
    return True


def may_run(message: Message, tasks: Mapping[str, Any], now_ms: int) -> bool:
    """Whether the message itself has nothing against its run: nothing shall be taken for one that will not."""
    task = tasks.get(message.task)
    if task is None or message.version > task.version or is_closed(message):
        return False
    if not (message.crashes or message.faults or message.cancel or message.deadline_ms):
        return True  # as most: there is nothing that could be against it
    return isinstance(admit(message, task.policy, NO_SIGNALS, now_ms), Admitted)


def judge(run: Run, signals: Signals, now_ms: int) -> bool:
    """Whether `admit` lets it in; else set the run's verdict and fault."""
    message, policy = run.delivery.message, _NO_POLICY if run.task is None else run.task.policy
    verdict = admit(message, policy, signals, now_ms)
    if isinstance(verdict, Admitted):
        return True
    run.verdict = verdict
    if signals.locked is not None:
        if verdict.why == "parked" and not is_told_locked(message):
            run.fault = classify(KeyMissing(signals.locked), ((KeyMissing, Kind.UNROUTABLE),))
    elif isinstance(verdict, DeadLetter) or (verdict.why == "parked" and parked_since_ms(message) is None):
        run.fault = _fault(signals)
    elif isinstance(verdict, Quarantine) and signals.tampered is not None:
        run.fault = classify(Tampered(signals.tampered), ((Tampered, Kind.UNREADABLE),))
    return False


def _unroutable(message: Message, task: Any, tasks: Mapping[str, Any]) -> str:
    if task is not None:
        return f"version {message.version} of task {message.task!r} is newer than {task.version}, the one known here"
    return f"no task {message.task!r} is registered here; known: {', '.join(sorted(tasks)) or 'none'}"


def _fault(signals: Signals) -> Fault | None:
    if signals.unroutable is not None:
        return classify(Unroutable(signals.unroutable), ((Unroutable, Kind.UNROUTABLE),))
    if signals.unreadable is not None:
        return classify(Unreadable(signals.unreadable), ((Unreadable, Kind.UNREADABLE),))
    return None
