"""Look through the messages of a lane, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..message import Filter, Lane, Message
from .queries import QueryOperations

PAGE, FIRST_PAGE = 500, 100  # most messages of a page, and of the first page
PAGE_BYTES = 16 * 1024 * 1024  # the bodies of a page have together about as many bytes at most


def pages(store: QueryOperations, lane: Lane | str | None, where: Filter) -> Iterator[list[Message]]:
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
