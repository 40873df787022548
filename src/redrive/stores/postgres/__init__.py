"""The store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..first_use import from_store

if TYPE_CHECKING:
    from .store import PostgresStore

__all__ = ["PostgresStore"]
__getattr__: Callable[[str], Any] = from_store(__name__, __all__)
