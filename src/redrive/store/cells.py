"""Cells: small pieces of shared state, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..message import Cell, Swap


class Cells(Protocol):
    """Small pieces of shared, versioned state, changed by compare-and-set.

    If `traits.cells` is False, `read` finds nothing and `swap` raises Unsupported.

    A cell that was deleted or has expired is removed at once or within the next minutes of work. The versions of a key
    keep rising even when the key is used again later, so the version of a new cell need not be 1.
    """

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        """Return the cells in the order of `keys`; None for a cell that is missing or expired."""
        ...

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        """Try each swap; returns True for each that was applied. Each succeeds or fails by itself; those that succeed
        share one commit, where the cells are in a database (on DynamoDB each is a commit of its own).

        With `durable=False` the call does not wait for the disk: a power cut may undo the commit, a killed process does
        not. Meant for state that is used for seconds only.
        """
        ...


class OpenCells(Cells, Protocol):
    """Cells opened by their own URL, for messages in a store that has no cells. Thread-safe."""

    @property
    def requests(self) -> Mapping[str, int]:
        """The number of calls so far, by action, to a service that bills by the request; empty for other services."""
        ...

    def connect(self) -> None:
        """Connect now, not at first use. Raises the errors of opening the cells."""
        ...

    def swap_all(self, swaps: Sequence[Swap]) -> None:
        """Apply all swaps in one commit, or none: raises Conflict, without a change, if one swap does not apply."""
        ...

    def doctor(self) -> list[str]:
        """Find unsafe or slow settings; returns one line per setting with the remedy, or an empty list."""
        ...

    def close(self) -> None:
        """Close sockets and threads. The cells cannot be used afterwards."""
        ...
