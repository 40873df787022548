"""A store on a server that is opened when it is first asked for something: who only enqueues does not need it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ..message import Cell, Swap
from ..store import Store
from . import engine_of, open_store


class Later:
    """A `Store`, by its URL. Whatever it is asked first raises what opening it raises, and the next call tries again.

    Raises ConfigError for a URL of no engine.
    """

    def __init__(self, url: str) -> None:
        engine_of(url)
        self._url = url
        self._lock = threading.Lock()
        self._store: Store | None = None
        self.cells = LaterCells(self)

    def opened(self) -> Store:
        """Raises ConfigError, SchemaError, StoreUnavailable."""
        with self._lock:
            if self._store is None:
                self._store = open_store(self._url)
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
