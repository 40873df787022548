"""What messages died of, as the store knows it: a message does not say whether its last fault is the one that it died
of."""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec.structs import replace

from ..message import RESTING, Lane, Message, Where
from ..store import Store


def died_of(store: Store, messages: Sequence[Message], fingerprints: Set[str]) -> set[str]:
    """The ids of those of these messages that died of a fault with one of these fingerprints. Raises StoreError."""
    found: set[str] = set()
    for lane in RESTING:
        some = [m for m in messages if m.lane is lane and m.faults and m.faults[-1].fingerprint in fingerprints]
        found |= died_of_last(store, lane, some)
    return found


def died_of_last(store: Store, lane: Lane, messages: Sequence[Message]) -> set[str]:
    """The ids of those that died of the last fault they keep: of the others the store has no fingerprint.

    Their times keep a store that starts from the fingerprint from going through all that share it. Raises StoreError.
    """
    times_ms = [message.rested_ms or 0 for message in messages] or [0]
    near = Where(since_ms=min(times_ms), until_ms=max(times_ms) + 1)
    by_fingerprint: dict[str, list[str]] = {}
    for message in messages:
        if message.faults:
            by_fingerprint.setdefault(message.faults[-1].fingerprint, []).append(message.id)
    found: set[str] = set()
    for fingerprint, ids in by_fingerprint.items():
        where = replace(near, fingerprint=fingerprint, ids=tuple(ids))
        found.update(m.id for m in store.peek(lane, where=where, limit=len(ids)).messages)
    return found
