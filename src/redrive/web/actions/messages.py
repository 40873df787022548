"""Retry, run now, cancel, discard, quarantine and readmit messages that were ticked, or all that a selector names."""

from __future__ import annotations

from collections.abc import Sequence

from ...message import Cancel
from ...status import run_now as make_due
from ...status import told
from ...triage import pauses
from ...triage.actions import ActionResult
from ...triage.select.terms import exactly
from ...triage.selection import Selection
from ..ask import Done, PageRequest, Problem, Record
from ..read import selecting

PICKED_MAX = 1000  # the most ids in one form


def retry(ask: PageRequest) -> Done:
    """Send ticked messages back to their queues, with new attempts."""
    ids, attempts = picked(ask), ask.number("attempts", 0, most=10_000)
    done = ask.app.dlq.retry(
        ids, attempts=attempts or None, reason=ask.reason, actor=ask.actor, to_queue=ask.text("to_queue") or None
    )
    return _done(ask, done, "retried", ids)


def discard(ask: PageRequest) -> Done:
    """Delete ticked messages, or all that matched a selector when the page was made. With `waive`, their batches count
    them as done."""
    reason, waive = ask.reason, ask.checked("waive")
    if ask.checked("every"):
        every = frozen(ask)
        ask.confirm(every.count())
        return _done(ask, ask.app.dlq.discard(select=every, reason=reason, actor=ask.actor, waive=waive), "discarded")
    ids = picked(ask)
    return _done(ask, ask.app.dlq.discard(ids, reason=reason, actor=ask.actor, waive=waive), "discarded", ids)


def quarantine(ask: PageRequest) -> Done:
    """Move ticked dead messages to quarantine, where bulk redrives skip them."""
    ids = picked(ask)
    done = ask.app.dlq.quarantine(ids, reason=ask.reason, actor=ask.actor)
    return _done(ask, done, "quarantined", ids)


def readmit(ask: PageRequest) -> Done:
    """Move ticked quarantined messages back to the dead lane."""
    ids = picked(ask)
    done = ask.app.dlq.readmit(ids, reason=ask.reason, actor=ask.actor)
    return _done(ask, done, "readmitted", ids)


def run_now(ask: PageRequest) -> Done:
    """Make ticked messages due that wait for their time."""
    ids = picked(ask)
    answers = make_due(ask.store, ask.registry, ids, actor=ask.actor, reason=ask.reason)
    if not any(answer.result in ("due", "held", "running") for answer in answers):
        raise Problem("no message was made due", told(answers), "look at it again", 409)
    return _went(ask, f"{told(answers)}.", {answer.id: answer.text for answer in answers}, ids)


def cancel(ask: PageRequest) -> Done:
    """Cancel ticked messages that wait, and ask running ones to stop."""
    ids = picked(ask)
    words = pauses.cancel(ask.store, ids, actor=ask.actor, reason=ask.reason)
    results = {id: str(word) for id, word in zip(ids, words, strict=True)}
    cancelled, asked = words.count(Cancel.CANCELLED), words.count(Cancel.REQUESTED)
    if not cancelled + asked:
        why = "they rest already, or their ids are unknown: done messages are deleted"
        raise Problem("no message was cancelled", why, "look at it again", 409)
    parts = [f"{_messages(cancelled)} cancelled"] if cancelled else []
    parts += [f"{_messages(asked)} asked to stop"] if asked else []
    left = len(ids) - cancelled - asked
    parts += [f"{left:,} too late"] if left else []
    return _went(ask, "; ".join(parts) + ".", results, ids)


def plan_picked(ask: PageRequest) -> Done:
    """Redirect to the page that plans a redrive of the ticked messages."""
    ids = picked(ask)
    q = str(exactly("id", *ids))
    return Done(f"Plan a redrive of {_messages(len(ids))}.", ("plans",), {"q": q}, {"q": q})


def picked(ask: PageRequest) -> list[str]:
    """Return the ids of the messages that were ticked in the form. Raises Problem if there are none or too many, or if
    their number has to be confirmed and was not."""
    ids = list(dict.fromkeys(ask.all("id")))
    if not ids:
        raise Problem("nothing was done: no message is ticked", "tick some of the list", "go back and tick them", 422)
    if len(ids) > PICKED_MAX:
        raise Problem(f"{len(ids):,} messages are too many", f"expected at most {PICKED_MAX:,}", "plan them", 422)
    ask.confirm(len(ids))
    return ids


def frozen(ask: PageRequest) -> Selection:
    """Return the selection of the form's selector as of the time when the page was made, so without later deaths.
    Raises Problem."""
    at = ask.number("at", 0, most=2**53)
    if not at:
        raise Problem("nothing was done: the moment is missing", "the field 'at' says as of when", "open the list", 422)
    return selecting.chosen(ask, ask.text("q"), at)


def _done(ask: PageRequest, done: ActionResult, did: str, ids: Sequence[str] = ()) -> Done:
    """Return the result of an action that `did` something to messages at rest. Raises Problem if it changed none."""
    left = [f"{len(done.changed):,} had moved meanwhile"] if done.changed else []
    left += [f"{len(done.unknown):,} unknown"] if done.unknown else []
    if not len(done):
        why = "; ".join(left) or "none matches"
        raise Problem(f"no message was {did}", why, "look at it again", 409)
    record = {"ids": list(done.ids), "changed": list(done.changed), "unknown": list(done.unknown)}
    return _went(ask, "; ".join([f"{_messages(len(done))} {did}", *left]) + ".", record, ids)


def _went(ask: PageRequest, text: str, record: Record, ids: Sequence[str]) -> Done:
    """Return the result with the address to go to: the page of the group, of the message if it still exists, or of the
    list."""
    if fingerprint := ask.text("fingerprint"):
        return Done(text, ("groups", fingerprint), record)
    if ask.checked("alone") and ids and ask.store.find(ids[:1])[0] is not None:
        return Done(text, ("messages", ids[0]), record)
    query = {} if ask.checked("alone") else {name: ask.text(name) for name in ("q", "lane", "queue", "task")}
    return Done(text, ("messages",), record, query)


def _messages(count: int) -> str:
    return f"{count:,} {'message' if count == 1 else 'messages'}"
