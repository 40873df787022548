"""Redrive runs, and their messages that failed again, as records."""

from __future__ import annotations

from typing import Any

from ..triage.redrive.records import Failure as Failed
from ..triage.redrive.run import RunView
from .formats import timestamp

COUNTS = ("planned", "moved", "done", "failed", "waiting", "changed", "skipped")


def run_record(view: RunView) -> dict[str, Any]:
    """Return a run as a record, without its story."""
    return {
        "id": view.id,
        "state": view.state,
        **{name: view.counts[name] for name in COUNTS},
        "started_at": timestamp(view.started_ms),
        "selector": view.selector,
        "why": view.why or None,
        "phase": view.phase,
        "closed": view.closed,
        "reason": view.reason or None,
        "actor": view.actor,
        "cause": view.cause or None,
        "over_at": timestamp(view.over_ms or None),
        "per_s": None if view.per_s is None else round(view.per_s, 3),
        "returned": view.returned,
        "carried_by": view.carried_by or None,
    }


def run_text(view: RunView) -> str:
    """Return a redrive run as one line, with the reason why it waits or has ended."""
    counts = view.counts
    text = f"{view.id} {view.state}: {counts['moved']:,} of {counts['planned']:,} moved"
    text += f", {counts['done']:,} done, {counts['failed']:,} failed"
    return f"{text}; {view.why}" if view.why else text


def failed_again_record(failed: Failed) -> dict[str, Any]:
    """Return a message that failed again after a run moved it, as a record."""
    return {
        "id": failed.id,
        "kind": failed.kind,
        "error": failed.error,
        "text": failed.text,
        "fingerprint": failed.fingerprint,
        "at": timestamp(failed.at_ms or None),
    }
