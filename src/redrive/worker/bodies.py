"""Read bodies from blob storage once the execution has started: so the worker holds the bodies only of what runs, not
of all that it claimed, and a body that kills its reader counts a crash."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..blobs import is_raw, whole_body
from ..decide import NO_SIGNALS, Signals
from ..errors import BlobsUnavailable, LeaseLost, Unreadable
from ..events import Notice
from .execution import Execution, judge, unread

READERS = 8  # blobs that one worker reads at once for async handlers


class Fetched(Struct, frozen=True):
    """A body that was read, as arguments; or why it was not."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    signals: Signals = NO_SIGNALS


TIMED_OUT = Fetched(signals=Signals(unfetched="its body was not read from blob storage within the task's timeout"))


def fetch(execution: Execution) -> Fetched:
    """Read and decode the body. Blocks while the storage works, and does not change the execution: it may end
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


def take(execution: Execution, fetched: Fetched) -> bool:
    """Set the arguments and return whether the handler can be called; if not, sets the decision. Raises LeaseLost if it
    was asked to end."""
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
