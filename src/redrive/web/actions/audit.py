"""Export the audit log."""

from __future__ import annotations

from ..ask import Download, PageRequest


def export(ask: PageRequest) -> Download:
    """Return the whole log as JSON lines, oldest first, as `redrive audit export` writes it."""
    return Download("audit.jsonl", b"".join(line + b"\n" for line in ask.app.audit.lines()), "application/x-ndjson")
