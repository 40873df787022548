"""The store on SQLite: an embedded database file that processes of one machine share."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store import SqliteStore

__all__ = ["SqliteStore"]


def __getattr__(name: str) -> Any:
    """Import the store at first use: other modules of the package need no driver."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(".store", __name__), name)
