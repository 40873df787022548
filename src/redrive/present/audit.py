"""Entries of the audit log as records and as text."""

from __future__ import annotations

from typing import Any

from ..audit import Entry
from .formats import timestamp


def entry_record(entry: Entry) -> dict[str, Any]:
    """Return an entry of the audit log as a record."""
    return {
        "at": timestamp(entry.at_ms),
        "actor": entry.actor,
        "claimed": entry.claimed or None,
        "action": entry.action,
        "count": entry.count or None,
        "about": entry.about or (entry.ids[0] if entry.ids and entry.count == 1 else None),
        "reason": entry.reason,
        "text": entry.text or None,
        "ids": list(entry.ids),
    }


def entry_text(entry: dict[str, Any]) -> str:
    """Return the record of an audit entry as one line of text."""
    text = f" {entry['text']!r}" if entry["text"] and entry["action"] in ("rule", "own") else ""
    return f"{entry['action']}{text} by {entry['claimed'] or entry['actor']}: {entry['reason']}"
