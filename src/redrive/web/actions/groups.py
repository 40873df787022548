"""Annotate failure groups: a note, an owner, a mute, a standing rule."""

from __future__ import annotations

from ...message import Filter
from ..ask import Done, PageRequest, Problem


def note(ask: PageRequest) -> Done:
    """Set the note; an empty one removes it."""
    fingerprint, text = ask.needed("fingerprint"), ask.text("note")
    ask.app.dlq.note(fingerprint, text, actor=ask.actor, reason=ask.text("reason"))
    return _done(fingerprint, "The note is set." if text else "The note is removed.", note=text or None)


def own(ask: PageRequest) -> Done:
    """Set the owner; an empty one removes it."""
    fingerprint, owner = ask.needed("fingerprint"), ask.text("owner")
    ask.app.dlq.own(fingerprint, owner, actor=ask.actor, reason=ask.text("reason"))
    return _done(fingerprint, f"The owner is {owner}." if owner else "The owner is removed.", owner=owner or None)


def mute(ask: PageRequest) -> Done:
    """Mute alerts for a while; 0 ends it."""
    fingerprint, span = ask.needed("fingerprint"), ask.text("for", "4h")
    span_ms = ask.duration_ms("for", "4h")
    ask.app.dlq.mute(fingerprint, span, actor=ask.actor, reason=ask.reason)
    text = f"Alerts are muted for {span}." if span_ms else "Alerts are no longer muted."
    return _done(fingerprint, text, muted_for=span if span_ms else None)


def rule(ask: PageRequest) -> Done:
    """Set the standing rule; `none` removes it. To discard more than a hundred messages, the user types how many."""
    fingerprint, kind = ask.needed("fingerprint"), ask.needed("rule")
    if kind == "discard":
        where = Filter(fingerprint=fingerprint)
        ask.confirm(sum(group.count for group in ask.store.failure_groups(where=where)))
    if kind not in ("hold", "auto", "discard", "none"):
        raise Problem(f"there is no rule {kind!r}", "expected hold, auto, discard or none", status=422)
    ask.app.dlq.rule(fingerprint, None if kind == "none" else kind, actor=ask.actor, reason=ask.reason)
    text = "The rule is removed." if kind == "none" else f"The rule is {kind}."
    return _done(fingerprint, text, rule=None if kind == "none" else kind)


def _done(fingerprint: str, text: str, **record: str | None) -> Done:
    return Done(text, ("groups", fingerprint), {"fingerprint": fingerprint, **record})
