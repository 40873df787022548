"""Annotate failure groups: a note, an owner, a mute, a standing rule, a state."""

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
    """Mute alerts for a while, or until the group grows; 0 ends it."""
    fingerprint, span = ask.needed("fingerprint"), ask.text("for", "4h")
    span_ms = ask.duration_ms("for", "4h")
    rate, total = ask.text("until_rate"), ask.number("until_total", 0)
    ask.app.dlq.mute(fingerprint, span, until_rate=rate, until_total=total, actor=ask.actor, reason=ask.reason)
    text = (
        f"Alerts are muted for {span}{' at most' if rate or total else ''}."
        if span_ms
        else "Alerts are no longer muted."
    )
    return _done(fingerprint, text, muted_for=span if span_ms else None)


def resolve(ask: PageRequest) -> Done:
    """Mark the group as resolved, in a release if one is given; with `off`, take that back."""
    fingerprint, release, off = ask.needed("fingerprint"), ask.text("release"), bool(ask.text("off"))
    if off:
        ask.app.dlq.reopen(fingerprint, actor=ask.actor, reason=ask.text("reason"))
    else:
        ask.app.dlq.resolve(fingerprint, release=release, actor=ask.actor, reason=ask.reason)
    return _done(fingerprint, "It is open again." if off else "It is resolved.", state=None if off else "resolved")


def merge(ask: PageRequest) -> Done:
    """Merge the group into another one; without one, unmerge it."""
    fingerprint, into = ask.needed("fingerprint"), ask.text("into")
    if into:
        ask.app.dlq.merge(fingerprint, into, actor=ask.actor, reason=ask.reason)
    else:
        ask.app.dlq.unmerge(fingerprint, actor=ask.actor, reason=ask.text("reason"))
    return _done(fingerprint, f"It is merged into {into}." if into else "It is on its own.", merged_into=into or None)


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
