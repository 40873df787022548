"""Saved views as records."""

from __future__ import annotations

from typing import Any

from ..triage.views import SavedView
from .formats import timestamp


def view_record(view: SavedView) -> dict[str, Any]:
    """Return a saved view as a record: its name, its address below the pages' root, who saved it, and when."""
    return {"name": view.name, "address": view.address, "by": view.by, "at": timestamp(view.at_ms)}
