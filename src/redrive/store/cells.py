"""Cells: small pieces of shared state, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..message import Cell, Swap


class Cells(Protocol):
    """Small pieces of shared, versioned state, changed by compare-and-set.

    Where `traits.cells` is False there are none: `read` finds nothing, `swap` raises Unsupported.

    A cell that was deleted or has expired is removed at once or within the next minutes of work. The versions of a key
    rise nevertheless, also when it is used again later; the version of a new cell need not be 1.
    """

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        """The cells, in the order of `keys`; None where there is none or it has expired."""
        ...

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        """Try each swap; True where it was written. Each succeeds or fails by itself; those that succeed share one
        commit, where the cells are in a database (on DynamoDB each is a commit of its own).

        `durable=False` does not wait for the disk: a power cut may undo the commit, a killed process does not. For
        state that lives seconds.
        """
        ...


class OpenCells(Cells, Protocol):
    """Cells that a URL of their own opens, for messages in a store without cells. Any number of threads may use
    them."""

    @property
    def requests(self) -> Mapping[str, int]:
        """Calls so far of a service that bills by the request, by action; empty where there is none."""
        ...

    def connect(self) -> None:
        """Open now what is otherwise opened at first use. Raises what opening raises."""
        ...

    def swap_all(self, swaps: Sequence[Swap]) -> None:
        """Write all of the swaps or none, in one commit. Raises Conflict if one does not apply; then nothing was
        written."""
        ...

    def doctor(self) -> list[str]:
        """Find what is unsafe or slow about the set-up; one line each with what to do, empty when all is well."""
        ...

    def close(self) -> None:
        """Close sockets and threads. The cells cannot be used afterwards."""
        ...
