"""Select dead letters: the messages that a selector matches, at one moment.

Counting, listing, planning and moving a selection all see the same messages. The store answers the part that its
indexes support, as a `Filter`, one lane at a time; the rest is matched message by message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import asdict, replace

from ..batch import with_parts
from ..blobs import whole_body
from ..errors import BlobsUnavailable, Unreadable
from ..fault import Fault
from ..message import DAMAGED, FailureGroup, Filter, Lane, Message, Page
from ..registry import Registry
from ..store import PAGE, Store, pages
from ..stores.failure_groups import grouped
from .auto.rules import held_fingerprints
from .group_states import GroupState, above, combined, read_states
from .paging import LaneQuery, page_of
from .search import died_of, died_of_last
from .select.match import Candidate, Unknown, matches
from .select.parser import parse
from .select.terms import (
    ALL,
    LANES,
    NONE,
    Age,
    And,
    Node,
    Not,
    Or,
    Pattern,
    PointInTime,
    Term,
    TermValue,
    both,
    either,
    opposite,
)

if TYPE_CHECKING:  # only for types: commands without plans start faster without these modules
    from .redrive.options import PlanOptions
    from .redrive.plan import PlanHandle

QUARANTINED, HELD, NO_TASK, UNREAD = "quarantined", "held", "no such task", "unread"  # why a plan leaves out a message
_END_MS = 2**62
_INDEXED = ("queue", "task", "reason", "fingerprint", "error", "batch")
_NOT_CANCELLED = Not(Term("reason", (Pattern(("cancelled",)),)))


class Selection:
    """The messages that a selector matches among those dead at `now_ms`.

    Quarantined messages are included only by `lane:quarantine`, and kept done messages only by `lane:done`. `str`
    returns the selector.
    """

    def __init__(
        self, store: Store, selector: Node | str = "", now_ms: int | None = None, *, app: Registry | None = None
    ) -> None:
        """`now_ms` defaults to the store's time. Raises SelectorError, which points at the mistake; StoreError."""
        self.node = parse(selector) if isinstance(selector, str) else selector
        self.now_ms = store.now_ms() if now_ms is None else now_ms
        self.unread = 0  # number of messages that the last pass left out, as the blob of their body was unreadable
        self._store, self._app = store, app
        self._meant = _with_merged(self.node, read_states(store)) if "fingerprint:" in str(self.node) else self.node
        by_lane = [(lane, of_lane(self._meant, lane)) for lane in LANES]
        self._queries = [self._query(lane, node) for lane, node in by_lane if node != NONE]

    @property
    def where(self) -> Filter:
        """The part of the selector that the store answers for the dead lane."""
        return next((query.where for query in self._queries if query.lane is Lane.DEAD), Filter(ids=()))

    @property
    def exact(self) -> bool:
        """True if the store answers the whole selector by its filter."""
        return all(query.rest == ALL for query in self._queries)

    @property
    def indexed(self) -> bool:
        """True if the store can count and group the selection by its indexes, without reading messages."""
        return self._all_dead and all(self._is_indexed(query.where) for query in self._queries)

    @property
    def only_queues(self) -> tuple[str, ...] | None:
        """The queues whose dead messages the selection is; None if it has any other condition."""
        if not self._all_dead or self._fields(self.where) != {"queue"}:
            return None
        queue = self.where.queue
        return (queue,) if isinstance(queue, str) else queue

    def __str__(self) -> str:
        return str(self.node)

    def __repr__(self) -> str:
        return f"Selection({str(self)!r}, now_ms={self.now_ms})"

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def matches(self, message: Message, fault: Fault | Unknown | None = Unknown.FAULT) -> bool:
        """Return whether the selection contains this message, by the data of the message alone.

        Assumes that the message died of the last fault in its history, unless `fault` is given. False if the selector
        needs a body that is in a blob.
        """
        if message.lane not in LANES or (message.rested_ms or 0) > self.now_ms:
            return False
        if fault is Unknown.FAULT:
            fault = message.faults[-1] if message.faults else None
        return matches(of_lane(self._meant, message.lane), Candidate(message, self.now_ms, fault)) is True

    def messages(self, limit: int | None = None) -> Iterator[Message]:
        """Yield at most `limit` messages, page by page: dead, then quarantined, then done ones, each oldest first."""
        return islice((message for message, _ in self._matches()), limit)

    def ids(self, limit: int | None = None) -> Iterator[str]:
        return (message.id for message in self.messages(limit))

    def page(self, limit: int = 50, cursor: str | None = None) -> Page:
        """Return one page of `messages()`; its `cursor` leads to the next. At most a thousand messages are read, so a
        page with a cursor may have fewer than `limit` messages, or none. Raises ValueError for a cursor of another
        selection."""
        return page_of(self._store, self._queries, self._matching, limit, cursor)

    def count(self) -> int:
        """Return the number of messages in the selection. Reads no messages if the indexes suffice."""
        if self._all_dead:
            return sum(group.count for query in self._queries for group in self._indexed(query.where))
        return sum(1 for _ in self._matches())

    def count_in(self, queue: str) -> int:
        """Return the number of dead messages in this queue that match the store's filter in all but the queue."""
        return sum(group.count for group in self._indexed(replace(self.where, queue=queue)))

    def groups(self, *, trend: bool = False) -> Sequence[FailureGroup]:
        """Return failure groups: the messages by task and by fingerprint of the fault they died of, the largest group
        first. With `trend`, also the deaths in the last ten minutes and in the fifty minutes before. Merged groups
        are one."""
        if self._all_dead:
            groups = [group for query in self._queries for group in self._indexed(query.where, trend=trend)]
        else:
            groups = grouped(self._matches(faults=True), self.now_ms if trend else None)
        return combined(read_states(self._store), groups)

    def width(self) -> int | None:
        """Return how many dead messages are read to find the selection; None if no index has that number."""
        return sum(group.count for group in self._indexed(self.where)) if self._is_indexed(self.where) else None

    def count_unnamed(self, lane: Lane) -> int:
        """Return how many messages of the lane the selector would match if it named it; 0 if it names a lane."""
        node = unnamed(self._meant, lane)
        if node == NONE:
            return 0
        query = self._query(lane, node)
        queue = query.where.queue if isinstance(query.where.queue, str) else None
        if not getattr(self._store.counts(queue), lane.value):
            return 0
        return sum(len(self._matching(query, page)) for page in pages(self._store, query.lane, query.where))

    def plan(self, **options: Unpack[PlanOptions]) -> PlanHandle:
        """Plan a redrive of these messages: freeze and count them without moving any.

        - `rate`: at most so many a second, such as "20/s" (default: 500).
        - `canary`: move so many first, and the rest once their outcomes are known; 0 for none. A plan of no more
          messages than that has no canary, and no slow start.
        - `slow_start`: begin with one a second, and double every 10 s.
        - `halve_on_failures`: halve the speed after each second in which more than a tenth failed.
        - `stop_if`: end the run at "failed>20%" of the outcomes so far, or at "failed>100" ("never" for never).
        - `attempts`: attempts of the new life (default: the policy's). `to_queue`: another queue for all of them.
        - `delay`, `spread`: each message is due this much later, for `spread` a random part of it.
        - `keep_deadline`: keep the deadlines. `gates`: what must hold while the run moves messages (default: closed
          breakers).

        The plan leaves out quarantined messages that the selector does not name, messages that a standing rule holds,
        messages of tasks that the app does not have, and those whose body is needed and unreadable; `excluded` counts
        them by reason. Raises ConfigError, ValueError or TypeError for a bad value, StoreError.
        """
        from .redrive.plan import PlanHandle

        excluded: Counter[str] = Counter()
        return PlanHandle.make(
            self._store, self._plannable(excluded), str(self), options, app=self._app, excluded=excluded
        )

    def _plannable(self, excluded: Counter[str]) -> Iterator[Message]:
        """Yield the messages for a plan, and count in `excluded` those left out, by reason."""
        known = self._app.tasks if self._app is not None and self._app.tasks else None
        held = held_fingerprints(self._store)
        rest = self.messages()
        while some := list(islice(rest, PAGE)):
            held_ids = died_of(self._store, some, held) if held else set()
            for message in some:
                if message.damage is not None:
                    excluded[DAMAGED] += 1
                elif message.id in held_ids:
                    excluded[HELD] += 1
                elif known is not None and message.task not in known:
                    excluded[NO_TASK] += 1
                else:
                    yield message
        excluded[UNREAD] += self.unread
        excluded[QUARANTINED] += self.count_unnamed(Lane.QUARANTINE)

    @property
    def _all_dead(self) -> bool:
        """True if the store can find, count and group the whole selection by its filter on dead messages."""
        return self.exact and all(query.lane is Lane.DEAD for query in self._queries)

    def _is_indexed(self, where: Filter) -> bool:
        by = self._store.traits.groups_by
        return by is None or self._fields(where) <= {*by}

    def _fields(self, where: Filter) -> set[str]:
        """Return the fields that a filter uses, apart from the selection's own bound on the time of death."""
        return {name for name, value in asdict(self._untimed(where)).items() if value is not None}

    def _untimed(self, where: Filter) -> Filter:
        """Return the filter without the selection's own bound on the time of death."""
        return replace(where, until_ms=None) if where.until_ms == self.now_ms + 1 else where

    def _query(self, lane: Lane, node: Node) -> LaneQuery:
        where, rest = split(node, self.now_ms + 1, self.now_ms)
        if where.batch is not None:
            ids = [where.batch] if isinstance(where.batch, str) else where.batch
            where = replace(where, batch=with_parts(self._store, ids))
        return LaneQuery(lane, where, rest)

    def _indexed(self, where: Filter, *, trend: bool = False) -> Sequence[FailureGroup]:
        """Group the messages that match `where` by the store's indexes. Stores group fastest without a time bound, so
        a bound is used only if such a message died after `now_ms`."""
        untimed = self._untimed(where)
        if untimed != where:
            groups = self._store.failure_groups(where=untimed, trend=trend)
            if all(group.last_ms <= self.now_ms for group in groups):
                return groups
        return self._store.failure_groups(where=where, trend=trend)

    def _matches(self, *, faults: bool = False) -> Iterator[tuple[Message, Fault | None]]:
        """Yield each message; with `faults`, with the fault that the message died of, or None."""
        self.unread = 0
        for query in self._queries:
            for page in pages(self._store, query.lane, query.where):
                messages = self._matching(query, page)
                died = died_of_last(self._store, query.lane, messages) if faults else set()
                yield from ((m, m.faults[-1] if m.id in died else None) for m in messages)

    def _matching(self, query: LaneQuery, page: list[Message]) -> list[Message]:
        if query.rest == ALL:
            return page
        known = [matches(query.rest, Candidate(message, self.now_ms)) for message in page]
        open_ones = [m for m, match in zip(page, known, strict=True) if match is None]
        died = died_of_last(self._store, query.lane, open_ones) if open_ones else set()
        return [
            message
            for message, match in zip(page, known, strict=True)
            if (match if match is not None else self._matches_fully(query.rest, message, message.id in died))
        ]

    def _matches_fully(self, rest: Node, message: Message, of_last: bool) -> bool:
        """Match the message by the fault it died of and, if that does not decide, by the body in its blob."""
        fault = message.faults[-1] if of_last else None
        match = matches(rest, Candidate(message, self.now_ms, fault))
        if match is not None:
            return match
        try:
            return matches(rest, Candidate(message, self.now_ms, fault, whole_body(self._store, message))) is True
        except (Unreadable, BlobsUnavailable):
            self.unread += 1
            return False


def of_lane(node: Node, lane: Lane) -> Node:
    """Return the selector for messages of this lane, with its terms about lanes resolved. It matches quarantined and
    done ones only if it names them by `lane:quarantine` or `lane:done`, outside of any `not`; never cancelled ones."""
    if lane is Lane.DEAD:
        return _resolved(node, lane)
    if (named := _naming(node, lane)) == NONE:
        return NONE
    meant = _resolved(named, lane)
    return both((_of_done(meant), _NOT_CANCELLED)) if lane is Lane.DONE else meant


def unnamed(node: Node, lane: Lane) -> Node:
    """Return the selector for the lane as if it named the lane; `NONE` if it already does."""
    return NONE if of_lane(node, lane) != NONE else _resolved(node, lane)


def _with_merged(node: Node, states: Mapping[str, GroupState]) -> Node:
    """Return the selector with each fingerprint also meaning those that are merged into it."""
    match node:
        case Term("fingerprint", values) if states:
            known = [each for each in values if isinstance(each, Pattern)]
            more = [
                Pattern((name,))
                for name in states
                if any(each.fits(top) for top in above(states, name) for each in known)
            ]
            return Term("fingerprint", tuple(dict.fromkeys((*values, *more))))
        case Not(inner):
            return Not(_with_merged(inner, states))
        case And(nodes):
            return And(tuple(_with_merged(each, states) for each in nodes))
        case Or(nodes):
            return Or(tuple(_with_merged(each, states) for each in nodes))
        case _:
            return node


def _naming(node: Node, lane: Lane) -> Node:
    match node:
        case Term("lane", values):
            return node if Pattern((lane.value,)) in values else NONE
        case Term() | Not():
            return NONE
        case And(nodes):
            return both((*nodes, either(_naming(n, lane) for n in nodes)))
        case Or(nodes):
            return either(_naming(n, lane) for n in nodes)


def _of_done(node: Node) -> Node:
    """Adapt the selector to done messages, which died of no fault. For them `age` counts from the time they were done,
    as `failed` does for dead messages from their death."""
    match node:
        case Term("error" | "fingerprint"):
            return NONE
        case Term("age", values):
            return Term("failed", values)
        case Term():
            return node
        case Not(inner):
            return opposite(_of_done(inner))
        case And(nodes):
            return both(_of_done(n) for n in nodes)
        case Or(nodes):
            return either(_of_done(n) for n in nodes)


def _resolved(node: Node, lane: Lane) -> Node:
    match node:
        case Term("lane", values):
            return ALL if Pattern((lane.value,)) in values else NONE
        case Term():
            return node
        case Not(inner):
            return opposite(_resolved(inner, lane))
        case And(nodes):
            return both(_resolved(n, lane) for n in nodes)
        case Or(nodes):
            return either(_resolved(n, lane) for n in nodes)


# -- what the store answers


def split(node: Node, until_ms: int, now_ms: int) -> tuple[Filter, Node]:
    """Split a selector into the store's filter, for messages that died before `until_ms`, and the rest."""
    fields: dict[str, Any] = {}
    since_ms = 0
    left: list[Node] = []
    for term in node.nodes if isinstance(node, And) else (node,):
        match term:
            case Term("failed", (Age() | PointInTime() as value,)):
                begin_ms, end_ms = _bounds(value, now_ms)
                since_ms, until_ms = max(since_ms, begin_ms), min(until_ms, end_ms)
            case Term("id", values) if "ids" not in fields and all(map(_is_exact, values)):
                fields["ids"] = _texts(values)
            case Term(field, values) if field in _INDEXED and field not in fields and all(map(_is_exact, values)):
                texts = _texts(values)
                fields[field] = texts[0] if len(texts) == 1 else texts
            case _:
                left.append(term)
    return Filter(**fields, since_ms=since_ms or None, until_ms=max(0, until_ms)), both(left)


def _texts(values: tuple[TermValue, ...]) -> tuple[str, ...]:
    return tuple(value.parts[0] for value in values if isinstance(value, Pattern))


def _is_exact(value: TermValue) -> bool:
    return isinstance(value, Pattern) and len(value.parts) == 1


def _bounds(value: Age | PointInTime, now_ms: int) -> tuple[int, int]:
    """Return the range of times at which a matching message died; the second time is excluded."""
    at_ms = now_ms - value.ms if isinstance(value, Age) else value.ms
    later = value.op[0] == ("<" if isinstance(value, Age) else ">")
    with_it = value.op.endswith("=")
    return (at_ms + (not with_it), _END_MS) if later else (0, at_ms + with_it)
