"""Replace a dead message by an edited one."""

from __future__ import annotations

from ...errors import EnqueueError, Refused
from ..ask import Done, PageAnswer, PageRequest
from ..read.edit import Attempt, needed


def commit(ask: PageRequest) -> Done | PageAnswer:
    """Replace the message, in one commit with the entry in the audit log. If it cannot be replaced, return the form
    again, with the typed values."""
    attempt = Attempt(ask, needed(ask))
    if attempt.prepared is None:
        return attempt.page("" if attempt.mistake else "nothing was typed that would change the message")
    if not (reason := ask.text("reason")):
        return attempt.page("the reason is missing: the audit log has to say why")
    try:
        done = attempt.editor.commit(attempt.message, attempt.prepared, reason=reason, actor=ask.actor)
    except (Refused, EnqueueError) as error:
        return attempt.page(str(error), 409)
    text = f"Message {done.id} takes the place of {done.replaces}."
    faults = attempt.message.faults  # the old message's, as the new one may be done before a browser opens it
    to = ("groups", faults[-1].fingerprint) if faults and faults[-1].fingerprint else ("messages",)
    return Done(text, to, {"id": done.id, "replaces": done.replaces, "diff": done.diff})
