"""Count the batches that wait for a failure group: those with a dead member that died of this failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ..ids import root_of
from ..message import FailureGroup, Filter, Lane
from ..store import Store
from .read import peeked

READ_MAX = 2_000  # most messages of a group that are read
LIST_MAX = 6_000  # most messages that are read for a list of groups


class GroupBatches(NamedTuple):
    """How many batches wait for a group; `at_least`: it has more dead messages than were read."""

    batches: int
    at_least: bool


def group_batches(
    store: Store, groups: Sequence[FailureGroup], family: Callable[[str], str | tuple[str, ...]] = str
) -> list[GroupBatches | None]:
    """Return for each group the batches that wait for it, or for a fingerprint of its `family`: of up to READ_MAX dead
    messages of each, the oldest first, and of LIST_MAX of all. None for groups that were not read, and for all if no
    batch has a dead member, which costs one call. Raises StoreError."""
    if not store.batch_ids(failed=True, limit=1):
        return [None] * len(groups)
    return list(_counted(store, groups, family))


def _counted(
    store: Store, groups: Sequence[FailureGroup], family: Callable[[str], str | tuple[str, ...]]
) -> Iterator[GroupBatches | None]:
    left = LIST_MAX
    for group in groups:
        most = min(READ_MAX, left)
        if not (most and group.fingerprint):
            yield None
            continue
        where = Filter(fingerprint=family(group.fingerprint), task=group.task)
        dead = [*islice(peeked(store, Lane.DEAD, where), most + 1)]
        left = max(0, left - len(dead))
        found = {root_of(message.batch) for message in dead[:most] if message.batch is not None}
        yield GroupBatches(len(found), len(dead) > most)
