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


def fetch(run: Execution) -> Fetched:
    """Read and decode the body. Blocks while the storage works, and does not change the execution: it may end
    meanwhile."""
    message, store = run.delivery.message, run.task.app.store
    try:
        args, kwargs = run.task.codec.decode(whole_body(store, message), message.version, raw=is_raw(message))
    except Unreadable as error:
        return Fetched(signals=unread(error, run))
    except BlobsUnavailable as error:
        _report(run, store, str(error))
        return Fetched(signals=Signals(unfetched=str(error)))
    return Fetched(args, kwargs)


def take(run: Execution, fetched: Fetched) -> bool:
    """Set the arguments and return whether the handler can be called; if not, sets the decision. Raises LeaseLost if it
    was asked to end."""
    if run.cause == "timeout":
        fetched = TIMED_OUT
    elif run.cause is not None:
        raise LeaseLost(f"message {run.delivery.message.id} was not held until its body was read")
    context = (run.context,) if run.task.takes_context else ()
    run.args, run.kwargs = (*context, *fetched.args), fetched.kwargs
    return judge(run, fetched.signals, run.task.app.store.now_ms())


def _report(run: Execution, store: Any, text: str) -> None:
    events, worker = run.task.app.events, run.delivery.message.worker or ""
    if events and (store.large_bodies is None or store.large_bodies.complains()):
        events.emit([Notice(name="blobs_unavailable", worker=worker, at_ms=store.now_ms(), text=text)])
