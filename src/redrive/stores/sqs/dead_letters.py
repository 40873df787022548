"""Dead letters and shared state of a queue in SQS: they lie in stores and cells of other engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from ...errors import Conflict, Unsupported
from ...message import Cell, Swap, version_of
from ...store import Cells

# What redrive runs, plans, notes and the audit keep shares commits with the dead letters.
WITH_TRIAGE = ("run/", "runs", "group/", "rules", "audit", "auto")
NO_TRIAGE = (
    "SQS can show nothing of what lies in it; name a store for the dead letters in the URL, triage=sqlite:///dead.db "
    "or a PostgreSQL or Redis of its own, and `redrive dlq ingest` fills it"
)
NO_CELLS = (
    "SQS keeps no shared state; name what does in the store's URL: cells=dynamodb://TABLE, or a Redis, PostgreSQL or "
    "SQLite URL"
)

Resting = TypeVar("Resting")


class NoCells:
    """Where a store has no cells: nothing is in them, and nothing can be."""

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        return [None] * len(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        if swaps:
            raise Unsupported(NO_CELLS)
        return []


class SplitCells:
    """Cells in two places: what redrive runs keep lies with the dead letters, everything else in `shared`."""

    def __init__(self, shared: Cells, triage: Cells) -> None:
        self._shared, self._triage = shared, triage

    @property
    def requests(self) -> Counter[str]:
        """Those of the shared cells, where they are billed."""
        found = getattr(self._shared, "requests", None)
        return found if isinstance(found, Counter) else Counter()

    def _of(self, key: str) -> Cells:
        return self._triage if key.startswith(WITH_TRIAGE) else self._shared

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        found: dict[str, Cell | None] = {}
        for cells in (self._shared, self._triage):
            mine = [key for key in keys if self._of(key) is cells]
            if mine:
                found.update(zip(mine, cells.read(mine), strict=True))
        return [found[key] for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        told: dict[int, bool] = {}
        for cells in (self._triage, self._shared):
            mine = [at for at, swap in enumerate(swaps) if self._of(swap.key) is cells]
            if mine:
                told.update(zip(mine, cells.swap([swaps[at] for at in mine], durable=durable), strict=True))
        return [told[at] for at in range(len(swaps))]


def need(triage: Resting | None) -> Resting:
    """The store where dead letters lie, or what belongs to it. Raises Unsupported where there is none."""
    if triage is None:
        raise Unsupported(NO_TRIAGE)
    return triage


def with_triage(swaps: Sequence[Swap]) -> bool:
    """Whether all these cells lie with the dead letters."""
    return all(swap.key.startswith(WITH_TRIAGE) for swap in swaps)


def check_swaps(cells: Cells, swaps: Sequence[Swap]) -> None:
    """Raises Conflict if one would not apply now: before anything is sent, as SQS commits nothing with it."""
    if not swaps:
        return
    found = cells.read([swap.key for swap in swaps])
    for swap, cell in zip(swaps, found, strict=True):
        if version_of(cell) != swap.version:
            raise Conflict(f"cell {swap.key!r} has another version than {swap.version}; nothing was written")


def apply_swaps(cells: Cells, swaps: Sequence[Swap]) -> None:
    """Write these, the audit log after what it tells of; raises Conflict where one does not apply."""
    told = [swap for swap in swaps if swap.key.startswith("audit")]
    for some in ([swap for swap in swaps if not swap.key.startswith("audit")], told):
        if some and not all(cells.swap(some)):
            raise Conflict("a cell was changed meanwhile; what was sent stays sent, as SQS commits nothing with it")
