"""Cells, said plainly: a dict. Which version comes next is for the store to say, as long as it was never used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from redrive.message import Cell, Swap

UNKNOWN = -1


@dataclass(slots=True)
class PlainCell:
    """`version` is UNKNOWN from a swap until it is read; `last` is the highest that was ever seen."""

    version: int = 0
    value: bytes | None = None
    expires_ms: int | None = None
    last: int = 0


class PlainCells:
    """Cells by key."""

    def __init__(self) -> None:
        self.all: dict[str, PlainCell] = {}

    def copy(self) -> PlainCells:
        other = PlainCells()
        other.all = {key: replace(cell) for key, cell in self.all.items()}
        return other

    def _live(self, key: str, now: int) -> PlainCell | None:
        cell = self.all.get(key)
        if cell is None or cell.value is None or (cell.expires_ms is not None and cell.expires_ms <= now):
            return None
        return cell

    def version(self, key: str, now: int) -> int:
        """What a swap has to name now; 0 where there is no cell."""
        cell = self._live(key, now)
        return cell.version if cell else 0

    def swap(self, swap: Swap, now: int) -> bool:
        if self.version(swap.key, now) != swap.version:
            return False
        cell = self.all.setdefault(swap.key, PlainCell())
        cell.version, cell.value = UNKNOWN, swap.value
        cell.expires_ms = None if swap.ttl_ms is None else now + swap.ttl_ms
        return True

    def swap_together(self, swaps: Sequence[Swap], now: int) -> bool:
        """All of them, or none."""
        before = self.copy().all
        if all(self.swap(swap, now) for swap in swaps):
            return True
        self.all = before
        return False

    def check(self, key: str, found: Cell | None, now: int) -> None:
        """Assert that the store's cell is ours."""
        cell = self._live(key, now)
        if cell is None or found is None:
            assert (cell is None) == (found is None), f"cell {key!r} is {found}, expected {cell}"
            return
        assert found.value == cell.value, f"cell {key!r} holds {found.value!r}, expected {cell.value!r}"
        if cell.version == UNKNOWN:
            assert found.version > cell.last, f"cell {key!r} has version {found.version}, used before"
            cell.version = cell.last = found.version
        assert found.version == cell.version, f"cell {key!r} is at version {found.version}, expected {cell.version}"
