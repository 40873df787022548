"""The store on Redis, and on other servers that speak Redis's protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..first_use import from_store

if TYPE_CHECKING:
    from .store import RedisStore

__all__ = ["RedisStore"]
__getattr__: Callable[[str], Any] = from_store(__name__, __all__)
