"""Find messages, plans and runs by the beginning of their id, as people type it."""

from __future__ import annotations

from ..ids import first_and_last, is_id
from ..message import Ids
from ..store import Store
from .redrive.records import index, recent_plans

BEGIN_MIN = 4  # fewest digits of a shortened id


def message_ids(store: Store, begin: str, *, limit: int = 10) -> Ids:
    """Return at most `limit` ids of messages that start with `begin`. A complete id is returned without a look-up.
    Raises StoreError."""
    bounds = first_and_last(begin)
    if is_id(begin):
        return Ids((begin,))
    if bounds is None or not _is_enough(begin):
        return Ids()
    return store.ids_from(*bounds, limit=limit)


def run_ids(store: Store, begin: str, *, limit: int = 10) -> Ids:
    """Return the ids of the runs in the index, and of the last 200 plans, that start with `begin`."""
    bounds = first_and_last(begin)
    if is_id(begin):
        return Ids((begin,))
    if bounds is None or not _is_enough(begin):
        return Ids()
    runs = index(store)
    known = {*runs.open, *runs.over, *recent_plans(store.cells)}
    return Ids(tuple(sorted(id for id in known if bounds[0] <= id <= bounds[1])[:limit]))


def _is_enough(begin: str) -> bool:
    return len(begin.replace("-", "")) >= BEGIN_MIN
