"""Shared by the tests of idempotency: what a key's cell holds."""

from __future__ import annotations

from redrive import App
from redrive.flow.idempotency import KeyRecord, cell_of, read


def kept(app: App, task: str, key: str) -> KeyRecord | None:
    """What the store knows of a key."""
    (cell,) = app.store.cells.read([cell_of(task, key)])
    return read(None if cell is None else cell.value)
