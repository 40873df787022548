"""Read a selection page by page, with a cursor that an address can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..message import Filter, Lane, Message, Page
from ..store import Store
from .select.terms import ALL, Node

LOOKED_MAX = 1000  # most messages that one page reads, if the store cannot answer the whole selector
_SIGN = "~"  # separates the lane from the store's cursor


class LaneQuery(NamedTuple):
    """The query of one lane: the store's filter, and the condition that the messages read must meet too."""

    lane: Lane
    where: Filter
    rest: Node


Matching = Callable[[LaneQuery, list[Message]], list[Message]]


def page_of(
    store: Store, queries: Sequence[LaneQuery], matching: Matching, limit: int, cursor: str | None = None
) -> Page:
    """Return one page of the messages of these lanes, in order. Ends it early after reading LOOKED_MAX messages. Raises
    ValueError for a cursor of other lanes, StoreError."""
    at, inner = _place(queries, cursor)
    messages: list[Message] = []
    looked = 0
    while at < len(queries) and len(messages) < limit and looked < LOOKED_MAX:
        query = queries[at]
        # Ask for no more than the page lacks: the store's cursor would skip the others.
        read = store.peek(query.lane, where=query.where, limit=limit - len(messages), cursor=inner)
        looked += 0 if query.rest == ALL else len(read.messages)
        messages += matching(query, read.messages)
        inner = read.cursor
        at += inner is None
    return Page(messages, None if at >= len(queries) else f"{queries[at].lane}{_SIGN}{inner or ''}")


def _place(queries: Sequence[LaneQuery], cursor: str | None) -> tuple[int, str | None]:
    """Return the index of the query to continue, and the store's cursor in its lane. Raises ValueError."""
    if cursor is None:
        return 0, None
    lane, sign, inner = cursor.partition(_SIGN)
    at = next((at for at, query in enumerate(queries) if query.lane == lane), None)
    if at is None or not sign:
        raise ValueError(f"cursor {cursor!r} is of another selection")
    return at, inner or None
