"""A store on a server that is opened at the first call: a program that only enqueues does not need the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..message import Cell, Swap
from ..store import Store, Traits
from ..store.wrapper import StoreWrapper


class LazyStore(StoreWrapper):
    """A store that is opened at the first call. If that fails, the call raises the error and the next one retries."""

    cells: LazyCells

    def __init__(self, open_store: Callable[[], Store]) -> None:  # super().__init__ would open the store
        self._open = open_store
        self._lock = threading.Lock()
        self._opened: Store | None = None
        self.cells = LazyCells(self)

    @property
    def inner(self) -> Store:  # type: ignore[override]
        """The store, opened now if needed. Raises ConfigError, SchemaError, StoreUnavailable."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return self.inner.traits

    def connect(self) -> None:
        """Open the store now. Raises ConfigError, SchemaError, StoreUnavailable."""
        self.inner.connect()

    def close(self) -> None:
        """Close the store, if it was opened."""
        with self._lock:
            store, self._opened = self._opened, None
        if store is not None:
            store.close()


class LazyCells:
    """The cells of a LazyStore."""

    def __init__(self, store: LazyStore) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        return self._store.inner.cells.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        return self._store.inner.cells.swap(swaps, durable=durable)
