"""A store that is opened at its first use: a program that only enqueues may never need it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..message import Cell, Swap
from ..store import Store


class Later:
    """A `Store` that `open_store` opens at the first call. Where that raises, the next call tries again."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._lock = threading.Lock()
        self._store: Store | None = None
        self.cells = LaterCells(self)

    def opened(self) -> Store:
        """Raises ConfigError, SchemaError, StoreUnavailable."""
        with self._lock:
            if self._store is None:
                self._store = self._open_store()
            return self._store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened(), name)

    def close(self) -> None:
        """Close it, if it was opened."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()


class LaterCells:
    """Its cells."""

    def __init__(self, store: Later) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        return self._store.opened().cells.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        return self._store.opened().cells.swap(swaps, durable=durable)
