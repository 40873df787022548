"""Looking through a lane page by page, as many messages at a time as bodies of so many bytes allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..message import Lane, Message, Where
from ..store import Store

PAGE, FIRST_PAGE, LOOK_BYTES = 500, 100, 16 * 1024 * 1024


def pages(store: Store, lane: Lane, where: Where) -> Iterator[list[Message]]:
    """All that match, in the order in which the store lists them. Raises StoreError."""
    cursor, limit = None, FIRST_PAGE
    while True:
        page = store.peek(lane, where=where, limit=limit, cursor=cursor)
        yield page.messages
        cursor, limit = page.cursor, fitting(page.messages, PAGE)
        if cursor is None:
            return


def fitting(messages: Sequence[Message], most: int) -> int:
    """How many messages as large as these are looked at in one go."""
    size = sum(len(message.body) for message in messages) // max(1, len(messages)) + 1
    return max(1, min(most, LOOK_BYTES // size))
