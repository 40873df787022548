"""Find the fault that a message died of."""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec.structs import replace

from ..message import RESTING, Filter, Lane, Message
from ..store import Store
from .select.lanes import LIVE


def died_of(store: Store, messages: Sequence[Message], fingerprints: Set[str]) -> set[str]:
    """Return the ids of those messages that died of a fault with one of these fingerprints. Raises StoreError."""
    ids: set[str] = set()
    for lane in RESTING:
        some = [m for m in messages if m.lane is lane and m.faults and m.faults[-1].fingerprint in fingerprints]
        ids |= died_of_last(store, lane, some)
    return ids


def died_of_last(store: Store, lane: Lane, messages: Sequence[Message]) -> set[str]:
    """Return the ids of those messages that died of the last fault in their history, or that run or wait after it.

    The history alone does not show that: a message may have died later, without a fault. The store indexes the
    fingerprint only of messages that died of a fault. The query is bounded by the times of death, so that a store which
    starts from the fingerprint does not read every message that shares it. Raises StoreError.
    """
    if lane in LIVE:  # what failed last is why the message waits
        return {message.id for message in messages if message.faults}
    times_ms = [message.rested_ms or 0 for message in messages] or [0]
    near = Filter(since_ms=min(times_ms), until_ms=max(times_ms) + 1)
    by_fingerprint: dict[str, list[str]] = {}
    for message in messages:
        if message.faults:
            by_fingerprint.setdefault(message.faults[-1].fingerprint, []).append(message.id)
    result: set[str] = set()
    for fingerprint, ids in by_fingerprint.items():
        where = replace(near, fingerprint=fingerprint, ids=tuple(ids))
        result.update(m.id for m in store.peek(lane, where=where, limit=len(ids)).messages)
    return result
