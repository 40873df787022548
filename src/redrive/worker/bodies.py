"""Read bodies from blob storage only when an execution starts, so that the worker has the bodies of running messages in
memory, not of all claimed ones, and a body that kills its reader counts as a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..blobs import is_raw, whole_body
from ..decide import NO_SIGNALS, Signals
from ..errors import BlobsUnavailable, LeaseLost, Unreadable
from ..events import Notice
from ..message import BLOB, RAW
from .execution import Execution, has_nothing, judge, unread

if TYPE_CHECKING:
    from ..task import TaskSpec

READERS = 8  # number of blobs that one worker reads concurrently for async handlers


class Fetched(Struct, frozen=True):
    """The decoded arguments of a message's body, or the signals that say why the body could not be read."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    signals: Signals = NO_SIGNALS


TIMED_OUT = Fetched(signals=Signals(unfetched="its body was not read from blob storage within the task's timeout"))


def fetch(execution: Execution) -> Fetched:
    """Read and decode the body of the execution's message, which blocks. The execution is not changed, as it may end
    meanwhile."""
    message, store = execution.delivery.message, execution.task.app.store
    try:
        args, kwargs = execution.task.codec.decode(whole_body(store, message), message.version, raw=is_raw(message))
    except Unreadable as error:
        return Fetched(signals=unread(error, execution))
    except BlobsUnavailable as error:
        _report(execution, store, str(error))
        return Fetched(signals=Signals(unfetched=str(error)))
    return Fetched(args, kwargs)


def arguments(execution: Execution, task: TaskSpec, now_ms: int) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Set the execution's task and return the handler's arguments before the run, for what flow control and
    idempotency compute from them. None if the body has none, or cannot be read; the execution is then mostly over."""
    message = execution.delivery.message
    execution.task = task
    if has_nothing(execution, task):
        execution.over = True
        return None
    if message.content == BLOB:
        fetched = fetch(execution)  # read again for the run, as claimed bodies would fill the memory
        if fetched.signals is not NO_SIGNALS:
            execution.over = not judge(execution, fetched.signals, now_ms)
            return None
        return fetched.args, fetched.kwargs
    try:
        raw = message.content == RAW
        execution.args, execution.kwargs = task.codec.decode(message.body, message.version, raw=raw)
    except Unreadable as error:
        execution.over = not judge(execution, unread(error, execution), now_ms)
        return None
    return execution.args, execution.kwargs


def take(execution: Execution, fetched: Fetched) -> bool:
    """Set the execution's arguments from `fetched` and return True, or set its decision and return False if the handler
    cannot be called. Raises LeaseLost if the worker ended the execution during the read."""
    if execution.cause == "timeout":
        fetched = TIMED_OUT
    elif execution.cause is not None:
        raise LeaseLost(f"message {execution.delivery.message.id} was not held until its body was read")
    context = (execution.context,) if execution.task.takes_context else ()
    execution.args, execution.kwargs = (*context, *fetched.args), fetched.kwargs
    return judge(execution, fetched.signals, execution.task.app.store.now_ms())


def _report(execution: Execution, store: Any, text: str) -> None:
    events, worker = execution.task.app.events, execution.delivery.message.worker or ""
    if events and (store.large_bodies is None or store.large_bodies.complains()):
        events.emit([Notice(name="blobs_unavailable", worker=worker, at_ms=store.now_ms(), text=text)])
