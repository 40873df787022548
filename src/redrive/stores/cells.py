"""Use only the cells of a store, for messages in another store that has no cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..message import Cell, Swap
from ..store import Store


class CellsOfStore:
    """The cells of a store as `OpenCells`. Closing the cells closes the store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        return self.store.cells.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        return self.store.cells.swap(swaps, durable=durable)

    def swap_all(self, swaps: Sequence[Swap]) -> None:
        if swaps:
            self.store.put([], swaps=swaps)

    @property
    def requests(self) -> Mapping[str, int]:
        return {}

    def connect(self) -> None:
        self.store.connect()

    def doctor(self) -> list[str]:
        return self.store.doctor()

    def close(self) -> None:
        self.store.close()
