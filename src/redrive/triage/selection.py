"""Select messages: those that a selector matches, at one moment.

Counting, listing, planning and moving a selection all see the same messages. The store answers the part that its
indexes support, as a `Filter`, one lane at a time; the rest is matched message by message.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Self, Unpack

from msgspec import Struct
from msgspec.structs import asdict, replace

from ..batch import with_parts
from ..blobs import whole_body
from ..errors import BlobsUnavailable, SelectorError, Unreadable, Unsupported
from ..fault import Fault
from ..message import DAMAGED, Counts, Edit, FailureGroup, Filter, Hasten, Lane, Message, Page
from ..registry import Registry
from ..store import PAGE, Store, pages
from ..stores.failure_groups import grouped
from .auto.rules import held_fingerprints
from .group_states import GroupState, above, combined, read_states
from .lanes import LIVE, in_lane, of_lane, of_waiting, split, split_live, unnamed
from .paging import LaneQuery, by_counts, page_of, size_of, sum_of
from .search import died_of, died_of_last
from .select.match import Candidate, Unknown, matches
from .select.parser import parse
from .select.terms import ALL, LANES, NONE, And, Node, Not, Or, Pattern, Term, fields_of

if TYPE_CHECKING:  # only for types: commands without plans start faster without these modules
    from .redrive.options import PlanOptions
    from .redrive.plan import PlanHandle

# why a plan leaves out a message
QUARANTINED, HELD, NO_TASK, UNREAD, GROUPED = "quarantined", "held", "no such task", "unread", "in a group"
LOOKED_MAX, LOOKED_S = 20_000, 5.0  # the bounds of a look through messages that no index finds


class MatchCount(Struct, frozen=True):
    """The number of messages in a selection, or None if counting them would take too long: then `looked` messages were
    read, of the `of` among which they are."""

    count: int | None
    looked: int
    of: int

    def __str__(self) -> str:
        if self.count is not None:
            return f"{self.count:,}"
        return f"looked at the first {self.looked:,} of {self.of:,}; no count"


class Selection:
    """The messages that a selector matches among those dead at `now_ms`.

    Messages of other lanes are included only by their name: `lane:quarantine`, `lane:done` for kept done ones,
    `lane:scheduled`, `lane:ready`, `lane:parked` and `lane:leased` for those that wait or run and that were enqueued by
    then. With `every`, a selector that names no lane means all lanes. `str` returns the selector.
    """

    cut: bool
    unread: int
    looked: int

    def __init__(
        self,
        store: Store,
        selector: Node | str = "",
        now_ms: int | None = None,
        *,
        app: Registry | None = None,
        every: bool = False,
    ) -> None:
        """`now_ms` defaults to the store's time. Raises SelectorError, which points at the mistake; StoreError."""
        self.node: Node = parse(selector) if isinstance(selector, str) else selector
        self.now_ms: int = store.now_ms() if now_ms is None else now_ms
        self.unread = 0  # number of messages that the last pass left out, as the blob of their body was unreadable
        self._store, self._app = store, app
        self._meant = _with_merged(self.node, read_states(store)) if "fingerprint:" in str(self.node) else self.node
        self.looked, self.cut = 0, False  # messages that the last pass had to match itself; it ended at its bound
        self._most, self._seconds = math.inf, math.inf
        self._hosts = _hosts(store) if "host" in fields_of(self.node) else {}
        self._of_lane = in_lane if every else of_lane
        self._lanes = (*LIVE, *LANES) if every else (*LANES, *LIVE)

    @cached_property
    def _counts(self) -> Mapping[str, Counts]:
        """The counts of the queues that the selection names, if it is one, or of all."""
        queues = {queue if isinstance(queue, str) else "" for queue in (query.where.queue for query in self._queries)}
        one = queues.pop() if len(queues) == 1 else ""
        return {one: self._store.counts(one)} if one else self._store.counts_by_queue()

    @cached_property
    def _queries(self) -> Sequence[LaneQuery]:
        by_lane = [(lane, self._of_lane(self._meant, lane)) for lane in self._lanes]
        return [query for lane, node in by_lane if node != NONE for query in self._queries_of(lane, node)]

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
        since_ms = message.enqueued_ms if message.lane in LIVE else message.rested_ms or 0
        if message.lane not in (*LANES, *LIVE) or since_ms > self.now_ms:
            return False
        if fault is Unknown.FAULT:
            fault = message.faults[-1] if message.faults else None
        seen = Candidate(message, self.now_ms, fault, hosts=self._hosts)
        return matches(self._of_lane(self._meant, message.lane), seen) is True

    def matching(self, messages: Sequence[Message]) -> list[Message]:
        """Return those of these messages, which are of one lane, that are in the selection."""
        if not messages:
            return []
        lane = messages[0].lane
        return self._matching(LaneQuery(lane, Filter(), self._of_lane(self._meant, lane)), list(messages))

    def messages(self, limit: int | None = None) -> Iterator[Message]:
        """Yield at most `limit` messages, page by page: dead, then quarantined, then done ones, each oldest first; then
        leased and waiting ones by queue, in the order of enqueue. With `every`, leased and waiting ones first."""
        return islice((message for message, _ in self._matches()), limit)

    def ids(self, limit: int | None = None) -> Iterator[str]:
        return (message.id for message in self.messages(limit))

    def bounded(self, looked: int = LOOKED_MAX, seconds: float = LOOKED_S) -> Self:
        """Return this selection; from now on a pass ends once it has read so many messages that do not match, where no
        index has the answer, or has taken so long. `cut` then says so, and `looked` how many it has read."""
        self._most, self._seconds = looked, seconds
        return self

    def counted(self, looked: int = LOOKED_MAX, seconds: float = LOOKED_S) -> MatchCount:
        """Return the number of messages in the selection, from the store's counts and indexes if they have it; or None
        for it, if reading so many messages, or for so long, is not enough. Never a part of the number."""
        if self._all_dead and self.indexed:
            return MatchCount(self.count(), 0, 0)
        if self._store.traits.exact_counts and all(map(by_counts, self._queries)):
            return MatchCount(sum(sum_of(query, self._counts) for query in self._queries), 0, 0)
        until_s, read = time.monotonic() + seconds, Counter[bool]()
        for query in self._queries:
            for page in pages(self._store, query.lane, query.where):
                matching = len(self._matching(query, page))
                read += Counter({True: matching, False: len(page) - matching})
                if read.total() >= looked or time.monotonic() > until_s:
                    of = sum(size_of(query, self._counts) for query in self._queries)
                    if read.total() < of:
                        return MatchCount(None, read.total(), of)
        return MatchCount(read[True], read.total(), read.total())

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
        """Plan a redrive of these messages: freeze and count them without moving any. Of `lane:scheduled`, plan to make
        them due: they keep their lives, with their attempts, queues and deadlines. Of what waits (`lane:scheduled`,
        `lane:ready`, `lane:parked`), plan to change it, if an option says how: they keep all else.

        - `rate`: at most so many a second, such as "20/s" (default: 500).
        - `canary`: move so many first, and the rest once their outcomes are known; 0 for none. A plan of no more
          messages than that has no canary, and no slow start.
        - `slow_start`: begin with one a second, and double every 10 s.
        - `halve_on_failures`: halve the speed after each second in which more than a tenth failed.
        - `stop_if`: end the run at "failed>20%" of the outcomes so far, or at "failed>100" ("never": only a
          failed canary ends it).
        - `attempts`: attempts of the new life (default: the policy's). `to_queue`: another queue for all of them.
        - `delay`, `spread`: each message is due this much after its move, for `spread` a random part of it.
        - `priority`, `to_queue`, `deadline` (from the change on; 0 for none), `delay` and `spread` change what waits;
          `cancel` ends it. An edit whose messages are not all due, and a cancel, has no canary and no stop rule: a
          message is done once it is changed. An undo gives back what no worker has claimed since; what was cancelled
          comes back, unless it is in a group or a batch, or its unique key is taken.
        - `keep_deadline`: keep the deadlines. `gates`: what must hold while the run moves messages (default: closed
          breakers).

        The plan leaves out quarantined messages that the selector does not name, messages that a standing rule holds,
        messages of tasks that the app does not have, and those whose body is needed and unreadable; of waiting ones,
        those that flow control or a pause of their task holds, if they are to be due at another time, and those of
        groups, if their queue or due time is to change. `excluded` counts them by reason. Raises ConfigError
        (a SelectorError for lanes that do not go together), ValueError or TypeError for a bad value, StoreError, and
        Unsupported for waiting messages without `traits.hastens` or `traits.edits`.
        """
        from .redrive.plan import PlanHandle, is_edit

        waiting = of_waiting(self.node)
        edit = bool(waiting) and is_edit(options, scheduled=waiting == {"scheduled"})
        if waiting and not edit and waiting != {"scheduled"}:
            raise SelectorError(
                f"a plan of the lanes {', '.join(sorted(waiting))} has nothing to change",
                "expected priority, to_queue, delay, deadline or cancel, or lane:scheduled alone, to make it due",
            )
        if waiting:  # raises Unsupported, with the store's own reason
            self._store.triage([], Edit("", cancel=True) if edit else Hasten())
        excluded: Counter[str] = Counter()
        messages = self._editable(excluded, options) if edit else self._plannable(excluded, bool(waiting))
        return PlanHandle.make(
            self._store, messages, str(self), options, app=self._app, excluded=excluded,
            hurry=bool(waiting) and not edit, edit=edit,
        )  # fmt: skip

    def _editable(self, excluded: Counter[str], options: PlanOptions) -> Iterator[Message]:
        """Yield the waiting messages for a plan that changes them, and count in `excluded` those left out, by reason.
        A group keeps its order; what flow control defers keeps its time."""
        due = bool(options.get("delay") or options.get("spread"))
        moved = due or options.get("to_queue") is not None
        for message in self.messages():
            if message.damage is not None:
                excluded[DAMAGED] += 1
            elif moved and message.group is not None:
                excluded[GROUPED] += 1
            elif due and message.deferral is not None:
                excluded[HELD] += 1
            else:
                yield message
        excluded[UNREAD] += self.unread

    def _plannable(self, excluded: Counter[str], hurry: bool) -> Iterator[Message]:
        """Yield the messages for a plan, and count in `excluded` those left out, by reason."""
        known = self._app.tasks if self._app is not None and self._app.tasks else None
        held = () if hurry else held_fingerprints(self._store)
        rest = self.messages()
        while some := list(islice(rest, PAGE)):
            held_ids = died_of(self._store, some, held) if held else set()
            for message in some:
                if message.damage is not None:
                    excluded[DAMAGED] += 1
                elif message.id in held_ids or (hurry and message.deferral is not None):
                    excluded[HELD] += 1
                elif known is not None and message.task not in known:
                    excluded[NO_TASK] += 1
                else:
                    yield message
        excluded[UNREAD] += self.unread
        if not hurry:
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

    def _queries_of(self, lane: Lane, node: Node) -> Sequence[LaneQuery]:
        """Return the queries for messages of a lane. Those that run or wait are found queue by queue: indexes have them
        so."""
        if lane not in LIVE:
            return [self._query(lane, node)]
        where, rest = split_live(node, lane, self.now_ms)
        if where.ids is not None:
            return [LaneQuery(lane, where, rest)]
        queues = self._store.queues() if where.queue is None else sorted({*where.queue})
        return [LaneQuery(lane, replace(where, queue=queue), rest) for queue in queues]

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
        self.unread, self.looked, self.cut, misses, begun = 0, 0, False, 0, False
        until_s = time.monotonic() + self._seconds
        for query in self._queries:
            for page in pages(self._store, query.lane, query.where):
                if begun and (misses >= self._most or time.monotonic() > until_s):
                    self.cut = True
                    return
                messages, begun = self._matching(query, page), True
                if query.rest != ALL:
                    self.looked, misses = self.looked + len(page), misses + len(page) - len(messages)
                died = died_of_last(self._store, query.lane, messages) if faults else set()
                yield from ((m, m.faults[-1] if m.id in died else None) for m in messages)

    def _matching(self, query: LaneQuery, page: list[Message]) -> list[Message]:
        if query.lane in LIVE:
            page = [message for message in page if message.enqueued_ms <= self.now_ms]
        if query.rest == ALL:
            return page
        known = [matches(query.rest, Candidate(message, self.now_ms, hosts=self._hosts)) for message in page]
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
        match = matches(rest, Candidate(message, self.now_ms, fault, hosts=self._hosts))
        if match is not None:
            return match
        try:
            body = whole_body(self._store, message)
            return matches(rest, Candidate(message, self.now_ms, fault, body, self._hosts)) is True
        except (Unreadable, BlobsUnavailable):
            self.unread += 1
            return False


def _hosts(store: Store) -> dict[str, str]:
    """Return the hosts of the workers that report, by their names."""
    from ..presence import read_workers

    try:
        return {worker.name: worker.host for worker in read_workers(store)}
    except Unsupported:
        return {}


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
