"""Holds, the reasons why messages do not run, as records and as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .commands import onward
from .formats import timestamp

if TYPE_CHECKING:
    from ..status import Hold


def hold_record(hold: Hold, lead: Callable[[str], str] = onward) -> dict[str, Any]:
    """Return a hold as a record. `lead` returns the whole command for the words of the hold's next command."""
    return {
        "kind": hold.kind,
        "by": hold.by,
        "queue": hold.queue or None,
        "count": hold.count,
        "text": hold.text,
        "until": timestamp(hold.until_ms),
        "needs_person": hold.needs_person,
        "next": lead(hold.next) if hold.next else None,
    }


def holds_text(holds: Iterable[Hold], now_ms: int) -> str:
    """Return holds as one line; empty if there are none."""
    return "; also ".join(hold.line(now_ms) for hold in holds)
