"""The log of a breaker: its last transitions, and the people who forced them, in a cell beside its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ...message import Swap, decoded, version_of

if TYPE_CHECKING:
    from ...store import Cells

KEPT = 20  # transitions that the log of one dependency, or of one key of it, keeps
KEPT_MS = 30 * 86_400_000
_TRIES = 20


class Transition(Struct, frozen=True):
    """A change of a breaker's status. `actor` and `reason` are set if a person forced it, otherwise `why`."""

    at_ms: int
    before: str
    after: str
    why: str = ""
    actor: str = ""
    reason: str = ""


_decode = msgspec.json.Decoder(list[Transition]).decode


def read(cells: Cells, about: str) -> list[Transition]:
    """Return the last transitions of `NAME` or `NAME/KEY`, oldest first. Raises StoreError."""
    return _read(cells, [about])[0][1]


def note(cells: Cells, turned: Sequence[tuple[str, Transition]], *, durable: bool = True) -> None:
    """Add transitions, each with its NAME or NAME/KEY, to the logs. Concurrent ones are all kept, as a lost swap is
    repeated. Raises StoreError."""
    left: dict[str, list[Transition]] = {}
    for about, transition in turned:
        left.setdefault(about, []).append(transition)
    for _ in range(_TRIES):
        rows = zip(left.items(), _read(cells, [*left]), strict=True)
        swaps = [
            Swap(cell_of(about), version, msgspec.json.encode([*kept, *more][-KEPT:]), KEPT_MS)
            for (about, more), (version, kept) in rows
        ]
        won = cells.swap(swaps, durable=durable)
        left = {about: more for (about, more), written in zip(left.items(), won, strict=True) if not written}
        if not left:
            return


def _read(cells: Cells, abouts: Sequence[str]) -> list[tuple[int, list[Transition]]]:
    """Return the version and the transitions of the log of each NAME or NAME/KEY."""
    stored = cells.read([cell_of(about) for about in abouts])
    return [(version_of(cell), decoded(cell, _decode, [])) for cell in stored]


def cell_of(about: str) -> str:
    """Return the key of the cell with the log of `NAME` or `NAME/KEY`."""
    return f"flow-log/{about}"
