"""Dead letters and shared state of a queue in SQS: they lie in stores and cells of other engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import Unsupported
from ..message import Cell, Swap
from ..store import Cells, Store

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


def need(triage: Store | None) -> Store:
    """The store where dead letters lie. Raises Unsupported where there is none."""
    if triage is None:
        raise Unsupported(NO_TRIAGE)
    return triage
