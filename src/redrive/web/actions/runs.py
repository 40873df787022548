"""Pause, resume, cancel, undo and approve redrive runs."""

from __future__ import annotations

from ..ask import Done, PageRequest
from ..read.runs import run_of


def pause(ask: PageRequest) -> Done:
    """Pause a run."""
    run = run_of(ask, ask.needed("id", "the run"))
    run.pause(actor=ask.actor, reason=ask.reason)
    return _done(run.id, "The run is paused. What it has moved still runs.", state=run.state)


def resume(ask: PageRequest) -> Done:
    """Continue a paused run."""
    run = run_of(ask, ask.needed("id", "the run"))
    run.resume(actor=ask.actor, reason=ask.reason)
    return _done(run.id, "The run continues.", state=run.state)


def cancel(ask: PageRequest) -> Done:
    """End a run; the messages that it has not moved stay dead."""
    run = run_of(ask, ask.needed("id", "the run"))
    run.cancel(actor=ask.actor, reason=ask.reason)
    return _done(run.id, "The run is cancelled. What it has not moved stays dead.", state=run.state)


def undo(ask: PageRequest) -> Done:
    """End a run, and make dead again the messages that it moved and that have not run. Asks for no number of messages:
    it is urgent, and the number changes."""
    run = run_of(ask, ask.needed("id", "the run"))
    returned = run.undo(actor=ask.actor, reason=ask.reason)
    text = f"{returned:,} messages are dead again, as before the run; {run.counts['moved']:,} had begun to run."
    return _done(run.id, text, state=run.state, returned=returned)


def approve(ask: PageRequest) -> Done:
    """Approve a run that waits for this user."""
    run = run_of(ask, ask.needed("id", "the run"))
    run.approve(actor=ask.actor, reason=ask.reason)
    return _done(run.id, f"The run is approved by {ask.actor}.", state=run.state)


def _done(id: str, text: str, **record: object) -> Done:
    return Done(text, ("runs", id), {"id": id, **record})
