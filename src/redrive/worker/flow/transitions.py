"""The last transitions of a breaker, and who forced them, in a cell beside its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ...message import Swap

if TYPE_CHECKING:
    from ...store import Cells

KEPT = 20  # of one dependency, or of one key of it
KEPT_MS = 30 * 86_400_000
_TRIES = 20


class Transition(Struct, frozen=True):
    """A breaker's transition. `actor` and `reason` are set if a person forced it, `why` if it changed by itself."""

    at_ms: int
    before: str
    after: str
    why: str = ""
    actor: str = ""
    reason: str = ""


def read(cells: Cells, about: str) -> list[Transition]:
    """The last transitions of `NAME` or `NAME/KEY`, oldest first. Raises StoreError."""
    return _read(cells, about)[1]


def note(cells: Cells, about: str, transition: Transition) -> None:
    """Add a transition. Concurrent ones are all kept: a lost swap is repeated. Raises StoreError."""
    for _ in range(_TRIES):
        version, kept = _read(cells, about)
        value = msgspec.json.encode([*kept, transition][-KEPT:])
        if cells.swap([Swap(_cell(about), version, value, KEPT_MS)])[0]:
            return


def _read(cells: Cells, about: str) -> tuple[int, list[Transition]]:
    cell = cells.read([_cell(about)])[0]
    return (0, []) if cell is None else (cell.version, msgspec.json.decode(cell.value, type=list[Transition]))


def _cell(about: str) -> str:
    return f"flow-log/{about}"
