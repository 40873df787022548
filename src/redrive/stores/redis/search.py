"""Queries of the Redis store."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...ids import is_id
from ...message import BatchCounts, Counts, DueCount, FailureGroup, Filter, Group, Ids, Lane, Message, Page
from .. import validation
from .namespace import RedisNamespace
from .pages import QUEUES_AT_ONCE, with_faults
from .rows import id_bytes, id_text, names_of, read_counts

GROUPS_AT_ONCE = 500
ID_PAGES_MAX = 400  # how many pages of some 5,000 ids the server scans at most


class RedisQueries(RedisNamespace):
    """The queries of the Redis store."""

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        known = [id for id in dict.fromkeys(ids) if is_id(id)]
        raw = [id_bytes(id) for id in known]
        parts = zip(known, with_faults(self._call, raw), strict=True)
        messages = {id: one[0] for id, one in parts if one is not None}
        return [messages.get(id) for id in ids]

    def ids_from(self, first: str, last: str, *, limit: int) -> Ids:
        low, high = id_bytes(first), id_bytes(last)
        common = next((n for n in range(16) if low[n] != high[n]), 16)
        pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", low[:common]) + b"*"
        cursor, matching = "0", set[bytes]()
        for _ in range(ID_PAGES_MAX):
            leads_on, ids = self._call("ids", (cursor,), pattern)
            matching.update(id for id in ids if low <= id <= high)
            cursor = leads_on.decode()
            if cursor == "0":
                break
        return Ids(tuple(id_text(id.hex()) for id in sorted(matching)[:limit]), cursor == "0")

    def counts(self, queue: str | None = None) -> Counts:
        every = self._counts(self._queues() if queue is None else [queue])
        oldest_ms = max((row[6] for row in every), default=0)
        return _counted([sum(row[n] for row in every) for n in (*range(6), 7)], oldest_ms)

    def due_counts(self, queue: str, bounds_ms: Sequence[int]) -> list[DueCount]:
        rows = self._call("due_counts", (queue, list(bounds_ms)))
        return [DueCount(every, min(every, retries), bool(exact)) for every, retries, exact in rows]

    def counts_by_queue(self) -> dict[str, Counts]:
        held, said = self._named()
        queues = sorted(held | said)
        return {
            queue: _counted([*row[:6], row[7]], row[6])
            for queue, row in zip(queues, self._counts(queues), strict=True)
            if queue in said or any([*row[:6], row[7]])
        }

    def queues(self) -> list[str]:
        return list(self.counts_by_queue())

    def _counts(self, queues: Sequence[str]) -> list[list[int]]:
        rows: list[list[int]] = []
        for first in range(0, len(queues), QUEUES_AT_ONCE):
            rows += self._call("counts", (queues[first : first + QUEUES_AT_ONCE],))
        return rows

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        return self._looks.peek(lane, where, limit, cursor)

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        return self._looks.failure_groups(where, self.now_ms() if trend else None)

    def batch_counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        return [read_counts(packed) for packed in self._call("batch_counts", (ids,))]

    def batch_ids(self, *, after: str = "", limit: int = 100, failed: bool = False) -> list[str]:
        return names_of(self._call("batch_ids", (limit, failed), after.encode()))

    def changed_batches(self, *, after: str = "", limit: int = 100) -> list[str]:
        return names_of(self._call("changed_batches", (limit,), after.encode()))

    def groups(self, queue: str) -> list[Group]:
        standing, own = self._call("group_names", (queue,))
        names = sorted({*names_of(standing), *names_of(own)} - {""})
        answer: list[Group] = []
        for first in range(0, len(names), GROUPS_AT_ONCE):
            some = names[first : first + GROUPS_AT_ONCE]
            for name, (width, taken, parked, blocked) in zip(some, self._call("groups", (queue, some)), strict=True):
                answer.append(Group(queue, name, width, taken, parked, id_text(blocked.hex()) if blocked else None))
        return answer

    def paused(self) -> frozenset[str]:
        return frozenset(names_of(self._call("paused", None)))


def _counted(numbers: Sequence[int], oldest_ms: int) -> Counts:
    ready, scheduled, leased, dead, quarantine, done, parked = numbers
    return Counts(ready, scheduled, leased, dead, quarantine, done, oldest_ms / 1000, parked)
