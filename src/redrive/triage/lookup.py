"""Find messages, plans and runs by the beginning of their id, as people type it."""

from __future__ import annotations

import msgspec

from ..ids import first_and_last, is_id
from ..message import Ids, Swap
from ..store import Store
from .redrive.records import index

BEGIN_MIN = 4  # digits that a shortened id needs
PLANS_KEPT = 200  # plans whose ids can be shortened
_PLANS, _PLANS_KEPT_MS = "run/plans", 30 * 86_400_000


def message_ids(store: Store, begin: str, *, limit: int = 10) -> Ids:
    """The ids of messages that begin so, at most `limit`; a whole id is not looked up. Raises StoreError."""
    bounds = first_and_last(begin)
    if is_id(begin):
        return Ids((begin,))
    if bounds is None or not _is_enough(begin):
        return Ids()
    return store.ids_from(*bounds, limit=limit)


def run_ids(store: Store, begin: str, *, limit: int = 10) -> Ids:
    """The same for the runs that `run list` names, and the last plans that `remember_plan` was told."""
    bounds = first_and_last(begin)
    if is_id(begin):
        return Ids((begin,))
    if bounds is None or not _is_enough(begin):
        return Ids()
    runs = index(store)
    known = {*runs.open, *runs.over, *_plans(store)[1]}
    return Ids(tuple(sorted(id for id in known if bounds[0] <= id <= bounds[1])[:limit]))


def remember_plan(store: Store, id: str) -> None:
    """Let this plan be found by the beginning of its id. Raises StoreError."""
    for _ in range(3):  # another process may add one at the same time
        version, plans = _plans(store)
        kept = msgspec.json.encode((*plans[1 - PLANS_KEPT :], id))
        if all(store.cells.swap([Swap(_PLANS, version, kept, _PLANS_KEPT_MS)])):
            return


def _is_enough(begin: str) -> bool:
    return len(begin.replace("-", "")) >= BEGIN_MIN


def _plans(store: Store) -> tuple[int, tuple[str, ...]]:
    (cell,) = store.cells.read([_PLANS])
    return (0, ()) if cell is None else (cell.version, msgspec.json.decode(cell.value, type=tuple[str, ...]))
