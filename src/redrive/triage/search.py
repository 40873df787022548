"""Search the store for dead letters, page by page, and find the fault that a message died of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from msgspec.structs import replace

from ..message import RESTING, Filter, Lane, Message
from ..store import Store

PAGE, FIRST_PAGE = 500, 100  # most messages of a page, and of the first page
PAGE_BYTES = 16 * 1024 * 1024  # the bodies of a page have together about as many bytes at most


def pages(store: Store, lane: Lane, where: Filter) -> Iterator[list[Message]]:
    """Yield the messages of the lane that match `where`, page by page, in the store's order. Raises StoreError."""
    cursor, limit = None, FIRST_PAGE
    while True:
        page = store.peek(lane, where=where, limit=limit, cursor=cursor)
        yield page.messages
        cursor, limit = page.cursor, fitting(page.messages, PAGE)
        if cursor is None:
            return


def fitting(messages: Sequence[Message], most: int) -> int:
    """Return how many messages of the mean size of these fit into a page, at most `most`."""
    size = sum(len(message.body) for message in messages) // max(1, len(messages)) + 1
    return max(1, min(most, PAGE_BYTES // size))


def died_of(store: Store, messages: Sequence[Message], fingerprints: Set[str]) -> set[str]:
    """Return the ids of those messages that died of a fault with one of these fingerprints. Raises StoreError."""
    ids: set[str] = set()
    for lane in RESTING:
        some = [m for m in messages if m.lane is lane and m.faults and m.faults[-1].fingerprint in fingerprints]
        ids |= died_of_last(store, lane, some)
    return ids


def died_of_last(store: Store, lane: Lane, messages: Sequence[Message]) -> set[str]:
    """Return the ids of those messages that died of the last fault in their history.

    The history alone does not show that: a message may have died later, without a fault. The store indexes the
    fingerprint only of messages that died of a fault. The query is bounded by the times of death, so that a store which
    starts from the fingerprint does not read every message that shares it. Raises StoreError.
    """
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
