"""Saved views: named addresses of these pages."""

from __future__ import annotations

from ...present.formats import timestamp
from ...triage.views import SavedView
from ...triage.views import views as saved
from ..ask import PageRequest, Record


def views(ask: PageRequest) -> Record:
    """Return the saved views by name, with who made each and when."""
    return {"views": [record(view) for view in saved(ask.store)], "command": ask.command("status")}


def record(view: SavedView) -> Record:
    return {"name": view.name, "address": view.address, "by": view.by, "at": timestamp(view.at_ms)}
