"""The store on SQLite: an embedded database, in a file that processes of one machine share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..first_use import from_store

if TYPE_CHECKING:
    from .store import SqliteStore

__all__ = ["SqliteStore"]
__getattr__: Callable[[str], Any] = from_store(__name__, __all__)
