"""Describe one message in full: its fields, where it runs or why it does not, and what happened to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import Unsupported
from ..message import Lane, Message
from ..registry import Registry
from ..status import Hold, Reasons, running_of, worker_reports
from ..store import Store
from ..triage.purge import purge_behind
from ..triage.timeline import Moment, by_hand, timeline
from .commands import onward
from .holds import hold_record
from .messages import message_record, moment_record, running_record


class WholeMessage(NamedTuple):
    """A message as a record, with the holds and the moments from which its fields `held` and `timeline` are made."""

    record: dict[str, Any]
    holds: Sequence[Hold]
    moments: Sequence[Moment]


def message_detail(
    store: Store, app: Registry | None, message: Message, now_ms: int, lead: Callable[[str], str] = onward
) -> WholeMessage:
    """Return all that the store knows of a message. `lead` is that of `hold_record`. Raises StoreError."""
    try:
        holds = Reasons(store, app).of(message)
    except Unsupported:
        holds = ()
    keeps_cells = store.traits.cells
    moments = list(timeline(message, by_hand(store, message) if keeps_cells else ()))
    purge = purge_behind(store, message) if keeps_cells else None
    runs = running_of(worker_reports(store)) if message.lane is Lane.LEASED else {}
    record = {
        **message_record(message, now_ms),
        "running": running_record(runs.get(message.id), now_ms),
        "held": [hold_record(hold, lead) for hold in holds],
        "timeline": [moment_record(moment) for moment in moments],
        "purged": None if purge is None else f"by {purge.actor}" + (f": {purge.reason}" if purge.reason else ""),
    }
    return WholeMessage(record, holds, moments)
