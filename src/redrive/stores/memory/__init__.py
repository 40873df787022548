"""A store in the memory of its process, for tests: the reference for the behaviour of the other stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..first_use import from_store

if TYPE_CHECKING:
    from .store import MemoryStore

__all__ = ["MemoryStore"]
__getattr__: Callable[[str], Any] = from_store(__name__, __all__)
