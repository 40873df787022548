"""Read a selection page by page, with a cursor that an address can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..message import Counts, Filter, Lane, Message, Page
from ..store import Store
from .lanes import LIVE
from .select.terms import ALL, WAITING, Node, Pattern, Term

LOOKED_MAX = 1000  # most messages that one page reads, if the store cannot answer the whole selector
_SIGN = "~"  # separates the lane from the store's cursor


class LaneQuery(NamedTuple):
    """The query of one lane: the store's filter, and the condition that the messages read must meet too."""

    lane: Lane
    where: Filter
    rest: Node


def by_counts(query: LaneQuery) -> bool:
    """True if the counts of queues have the number of messages in this part of a selection."""
    lanes = query.rest == ALL or (isinstance(query.rest, Term) and query.rest.field == "lane")
    where = query.where
    return lanes and where == Filter(queue=where.queue, until_ms=where.until_ms, narrowing=where.narrowing)


def sum_of(query: LaneQuery, counts: Mapping[str, Counts]) -> int:
    """Return the number of messages in this part of a selection, for which `by_counts` holds."""
    names: tuple[str, ...] = WAITING if query.lane is Lane.READY else (query.lane.value,)
    if isinstance(query.rest, Term):
        names = tuple(name for name in names if Pattern((name,)) in query.rest.values)
    return sum(getattr(of, name) for of in _of(query, counts) for name in names)


def size_of(query: LaneQuery, counts: Mapping[str, Counts]) -> int:
    """Return the number of messages among which those of this part of a selection are."""
    if query.where.ids is not None:
        return len(query.where.ids)
    return sum_of(query._replace(rest=ALL), counts)


def _of(query: LaneQuery, counts: Mapping[str, Counts]) -> Iterable[Counts]:
    queue = query.where.queue
    names = counts if queue is None else {queue} if isinstance(queue, str) else {*queue}
    return [counts[name] for name in names if name in counts]


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
    return Page(messages, None if at >= len(queries) else f"{_name(queries[at])}{_SIGN}{inner or ''}")


def _name(query: LaneQuery) -> str:
    """Return the name of a query in cursors: its lane and, of messages that run or wait, its queue."""
    queue = query.where.queue if query.lane in LIVE else None
    return f"{query.lane}/{queue}" if queue is not None else str(query.lane)


def _place(queries: Sequence[LaneQuery], cursor: str | None) -> tuple[int, str | None]:
    """Return the index of the query to continue, and the store's cursor in its lane. Raises ValueError."""
    if cursor is None:
        return 0, None
    name, sign, inner = cursor.rpartition(_SIGN)
    at = next((at for at, query in enumerate(queries) if _name(query) == name), None)
    if at is not None and sign:
        return at, inner or None
    lane, slash, _ = name.partition("/")
    later = [at for at, query in enumerate(queries) if query.lane == lane and _name(query) > name]
    if not slash or not sign or lane not in LIVE:
        raise ValueError(f"cursor {cursor!r} is of another selection")
    # its queue is empty by now: the queues after it, and the lanes after these
    lanes = [query.lane for query in queries]
    after = len(lanes) - lanes[::-1].index(Lane(lane)) if lane in lanes else len(lanes)
    return later[0] if later else after, None
