"""Export dead messages as JSON lines."""

from __future__ import annotations

import io

from ...message import Filter, Lane
from ...triage.select.terms import Or, as_node
from ...triage.selection import Selection
from ..ask import Download, PageRequest, Problem
from ..read.selecting import chosen
from .messages import frozen, picked

MESSAGES_MAX = 10_000
BYTES_MAX = 64 * 1024 * 1024
_LANES = (Lane.DEAD, Lane.QUARANTINE, Lane.DONE)


def export(ask: PageRequest) -> Download:
    """Return the ticked messages, or those of a selector, as `redrive dlq export` writes them. Secrets are hidden
    unless `reveal` is ticked, which needs a reason and gets its own entry in the audit log."""
    selection = _chosen(ask)
    reveal = ask.checked("reveal")
    reason = ask.reason if reveal else ask.text("reason")
    count = sum(1 for _ in selection.ids(MESSAGES_MAX + 1))
    if not count:
        raise Problem("nothing was exported: no message matches", "they may have moved meanwhile", "look again", 409)
    if count > MESSAGES_MAX:
        why = f"expected at most {MESSAGES_MAX:,}"
        raise Problem("nothing was exported: too many messages match", why, "narrow it, or use redrive dlq export", 409)
    file = _ExportFile()
    ask.app.dlq.export(selection, file, reveal=reveal, reason=reason, actor=ask.actor)
    return Download(f"redrive-{selection.now_ms}.jsonl", file.getvalue(), "application/x-ndjson")


def _chosen(ask: PageRequest) -> Selection:
    if not ask.checked("every"):
        where = Filter(ids=tuple(picked(ask)))
        return Selection(ask.store, Or(tuple(as_node(where, lane) for lane in _LANES)))
    return frozen(ask) if ask.text("at") else chosen(ask, ask.text("q"))


class _ExportFile(io.BytesIO):
    """A file in memory, named for the audit log. Its `write` raises Problem beyond BYTES_MAX."""

    name = "a browser"

    def write(self, data: bytes) -> int:  # type: ignore[override] # lines only
        if self.tell() + len(data) > BYTES_MAX:
            why = f"the lines have more than {BYTES_MAX >> 20} MiB"
            raise Problem("nothing was exported", why, "export fewer, or use redrive dlq export", 413)
        return super().write(data)
