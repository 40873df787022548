"""Admit claimed messages: find the task, read the body, ask `decide.admit`, and start those that may run.

Flow control and idempotency keys have had their say on the store thread before; `Admission` works on the event loop's
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..decide import NO_SIGNALS, Policy, Signals, admit, is_told_locked, parked_since_ms
from ..decide import Run as Admitted
from ..errors import KeyMissing, RedriveError, Tampered, UnknownArguments, Unreadable
from ..fault import Fault, Kind, classify
from ..message import BLOB, RAW, SEALED, Ack, DeadLetter, Hold, Message, Quarantine, is_closed
from ..store import Store
from .crash.company import ALONE_FROM, ANY, company_of, escapes
from .crash.suspects import Suspects
from .execution import Execution, QueueLimit, WorkerLimit

_NO_POLICY = Policy()


class Unroutable(RedriveError):
    """No task of that name is registered, or none of that version, or with those arguments."""


def admit_run(run: Execution, tasks: Mapping[str, Any], now_ms: int) -> bool:
    """Set its task and arguments and return True, or set its decision and fault and return False."""
    message = run.delivery.message
    task = tasks.get(message.task)
    signals = NO_SIGNALS if run.refusal is None else Signals(refusal=run.refusal)
    if (message.progress is not None or message.content.startswith(SEALED)) and is_closed(message):
        signals = _closed(run, message)
    elif task is None or message.version > task.version:
        signals = Signals(unroutable=_unroutable(message, task, tasks), park_ms=run.limit.park_ms)
        task = None
    elif run.task is None and has_nothing(run, task):
        return False
    elif run.task is None:  # else its body was read already
        try:
            run.task = task
            # A blob is read when the handler starts, not on this thread; a child process decodes what it runs.
            if message.content != BLOB and task.isolation is None:
                run.args, run.kwargs = task.codec.decode(message.body, message.version, raw=message.content == RAW)
        except Unreadable as error:
            signals = unread(error, run)
    return judge(run, signals, now_ms)


def unread(error: Unreadable, run: Execution) -> Signals:
    """The signals of a body that cannot be decoded. Unknown arguments may come from a newer producer, so the message
    waits for a newer worker, as one of a newer version does."""
    if isinstance(error, KeyMissing):
        return Signals(locked=str(error))
    if isinstance(error, Tampered):
        return Signals(tampered=str(error))
    if isinstance(error, UnknownArguments):
        return Signals(unroutable=str(error), park_ms=run.limit.park_ms)
    return Signals(unreadable=str(error))


def _closed(run: Execution, message: Message) -> Signals:
    """The signals of a message that is still encrypted."""
    from ..crypto import why_closed  # needs the package `cryptography`, which is an extra

    return unread(why_closed(run.limit.store, message), run)


def has_nothing(run: Execution, task: Any) -> bool:
    """Whether the body has nothing for its handler; then it is done."""
    message = run.delivery.message
    if message.content != RAW or not task.codec.has_nothing(message.body):
        return False
    run.task, run.decision = task, Ack()
    return True


def may_run(message: Message, tasks: Mapping[str, Any], now_ms: int) -> bool:
    """Whether nothing in the message itself prevents a run: nothing is taken for a message that will not run."""
    task = tasks.get(message.task)
    if task is None or message.version > task.version or is_closed(message):
        return False
    if not (message.crashes or message.faults or message.cancel or message.deadline_ms):
        return True  # most messages: nothing could prevent it
    return isinstance(admit(message, task.policy, NO_SIGNALS, now_ms), Admitted)


def judge(run: Execution, signals: Signals, now_ms: int) -> bool:
    """Whether `decide.admit` admits it; if not, set its decision and fault."""
    message, policy = run.delivery.message, _NO_POLICY if run.task is None else run.task.policy
    found = admit(message, policy, signals, now_ms)
    if isinstance(found, Admitted):
        return True
    run.decision = found
    if signals.locked is not None:
        if found.why == "parked" and not is_told_locked(message):
            run.fault = classify(KeyMissing(signals.locked), ((KeyMissing, Kind.UNROUTABLE),))
    elif isinstance(found, DeadLetter) or (found.why == "parked" and parked_since_ms(message) is None):
        run.fault = _fault(signals)
    elif isinstance(found, Quarantine) and signals.tampered is not None:
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


class Admission:
    """Admits claimed messages on the event loop's thread and starts them, as far as the limits allow.

    `total` is how many messages this worker runs at once. `start_on_loop` and `start` run them on the event loop and
    elsewhere; `can_isolate` says whether a child process can run a task. `finish` takes those that were not admitted.
    """

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Any],
        loop: asyncio.AbstractEventLoop,
        start_on_loop: Callable[[Execution], None],
        start: Callable[[Execution], None],
        can_isolate: Callable[[str], bool],
        limit: WorkerLimit,
        total: int,
        in_flight: Callable[[], Sequence[Execution]],
        mark_alone: Callable[[Execution, Callable[[Hold], None]], None],
        finish: Callable[[Sequence[Execution]], None],
    ) -> None:
        self._store, self._tasks, self._total, self._finish = store, tasks, total, finish
        self._start_on_loop, self._start, self._can_isolate = start_on_loop, start, can_isolate
        self.suspects = Suspects(loop, limit, in_flight, mark_alone, self._begin, finish, store.nudge, store.now_ms)

    def admit(self, runs: Sequence[Execution]) -> None:
        """Admit these, and start in order those that the limits of their queues allow."""
        now_ms = self._store.now_ms()
        admitted = [run for run in runs if admit_run(run, self._tasks, now_ms)]
        if len(admitted) < len(runs):
            self._finish([run for run in runs if run.decision is not None])
        suspects = [run for run in admitted if run.delivery.message.suspect]
        if suspects:
            set_apart = {id(run) for run in suspects if self._is_set_apart(run)}
            self.suspects.add([run for run in suspects if id(run) in set_apart])
            admitted = [run for run in admitted if id(run) not in set_apart]
        for limit, of_queue in groupby(admitted, key=_limit_of):
            for run in limit.enter(list(of_queue)):
                self._begin(run)

    def _is_set_apart(self, run: Execution) -> bool:
        """Whether only its group may run in this process while the suspect runs. A suspect that a child process can
        run is no danger to the others, unless it brings down more than a child."""
        message = run.delivery.message
        # On SQS each crash costs a receive, and a queue may allow no more receives than it takes to convict a message.
        few = not self._store.traits.releases
        alone_from = min(ALONE_FROM, run.task.policy.crashes_alone_max) if few else ALONE_FROM
        run.company = company_of(message, self._total, alone_from=alone_from)
        if run.executor == "process":
            return escapes(message)
        run.apart = self._store.traits.shared and self._can_isolate(message.task)
        return escapes(message) if run.apart else run.company < ANY

    def _begin(self, run: Execution) -> None:
        self._start_on_loop(run) if run.executor == "loop" else self._start(run)


def _limit_of(run: Execution) -> QueueLimit:
    return run.limit
