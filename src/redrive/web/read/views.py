"""Saved views: named addresses of these pages."""

from __future__ import annotations

from ...present.views import view_record
from ...triage.views import views as saved
from ..ask import PageRequest, Record


def views(ask: PageRequest) -> Record:
    """Return the saved views by name, with who made each and when."""
    return {"views": [view_record(view) for view in saved(ask.store)], "command": ask.command("views")}
