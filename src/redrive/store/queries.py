"""Queries, the second part of a store: find messages without claiming them."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence

from ..errors import Unsupported
from ..message import BatchCounts, Counts, DueCount, FailureGroup, Filter, Group, Ids, Lane, Message, Page
from .base import StoreBase

LOOKED_MAX = 10_000  # messages that a store without an index of ids examines


class QueryOperations(StoreBase):
    """Queries for the command line, metrics and triage. A store implements `find`, `counts`, `queues` and `peek`."""

    @abstractmethod
    def find(self, ids: Sequence[str]) -> list[Message | None]:
        """Return the messages with these ids, in the order of `ids`; None for a message that is not stored.

        Without `traits.finds` also None for one that waits, or that another handle has claimed. With `traits.cancels`
        such a message is returned from its record: its content is ABSENT, and `ready` may mean that it runs elsewhere.
        Without `traits.triages` None for one at rest.
        """

    def ids_from(self, first: str, last: str, *, limit: int) -> Ids:
        """Return the ids of stored messages from `first` to `last` inclusive, sorted, at most `limit`, to complete the
        beginning of an id. A store without an index of ids examines a bounded number of messages, and the result says
        if there were more messages."""
        lanes = [Lane.READY, Lane.LEASED, Lane.DONE] if self.traits.finds else []
        lanes += [Lane.DEAD, Lane.QUARANTINE] if self.traits.triages else []
        ids, looked = set[str](), 0
        for lane in lanes:
            page = self.peek(lane, limit=500)
            while True:
                looked += len(page.messages)
                ids.update(message.id for message in page.messages if first <= message.id <= last)
                if page.cursor is None or looked >= LOOKED_MAX:
                    break
                page = self.peek(lane, limit=500, cursor=page.cursor)
        return Ids(tuple(sorted(ids)[:limit]), looked < LOOKED_MAX)

    @abstractmethod
    def counts(self, queue: str | None = None) -> Counts:
        """Return the number of messages in each lane of the queue; None counts all queues."""

    def counts_by_queue(self) -> dict[str, Counts]:
        """Return the `counts` of every queue in `queues`, in one call."""
        return {queue: self.counts(queue) for queue in self.queues()}

    def due_counts(self, queue: str, bounds_ms: Sequence[int]) -> list[DueCount]:
        """Return the number of waiting messages of the queue that become due after each bound and up to the next,
        inclusive. `bounds_ms` ascend; the result has one entry less. Leased messages do not wait, but a lease that ends
        in more than an hour may count. Raises Unsupported if the store does not know due times. Unless a store
        overrides this method, it reads every waiting message."""
        if not self.traits.finds:
            raise Unsupported(f"{self.traits.name} does not tell when its messages come due")
        counts = [DueCount(0, 0)] * (len(bounds_ms) - 1)
        cursor: str | None = ""
        while cursor is not None:
            page = self.peek(Lane.READY, where=Filter(queue=queue), limit=500, cursor=cursor or None)
            for message in page.messages:
                at = bisect_left(bounds_ms, message.due_ms or 0) - 1
                if 0 <= at < len(counts):
                    counts[at] = DueCount(counts[at].all + 1, counts[at].retries + (message.attempt > 0))
            cursor = page.cursor
        return counts

    @abstractmethod
    def queues(self) -> list[str]:
        """Return the names of all queues that hold messages or settings, sorted."""

    def outgoing(self) -> dict[str, Counts]:
        """Return, by queue, the counts of redriven messages that are not yet sent back to the service that delivers
        them; `counts` includes them. `oldest_age_s` is the time since the earliest of their redrives. Empty for a store
        that delivers its own messages."""
        return {}

    @abstractmethod
    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return a page of the lane's messages (None: of every lane), without claiming them. `lane`, as every enum
        here, may be text. Raises ValueError for a cursor of another store or query, ConfigError for a word that is not
        a lane, Unsupported for dead and quarantine without `traits.triages`, for other lanes without `traits.finds`."""

    def batch_counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        """Return the counts of these batches, in the order of `ids`: zeros for one without members. Raises Unsupported
        without `traits.batches`."""
        raise Unsupported(f"{self.traits.name} keeps no counts of batches")

    def batch_ids(self, *, after: str = "", limit: int = 100, failed: bool = False) -> list[str]:
        """Return the ids, sorted and above `after`, of all batches with counts; with `failed`, only those with a
        member that is dead or in quarantine, at a cost that does not grow with the other batches. Empty without
        `traits.batches`."""
        return []

    def changed_batches(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return the ids, sorted and above `after`, of batches that changed since `mark_batches` and that have nothing
        open or a member that died. A member that is still open leaves the batch out, unless one died. Empty without
        `traits.batches`."""
        return []

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        """Return the dead messages grouped by (fingerprint, task), the largest group first; with `trend`, each group
        also counts those that died in the last two hours."""
        raise Unsupported(f"{self.traits.name} has no access to dead messages")

    def groups(self, queue: str) -> list[Group]:
        """Return those groups of the queue that have waiting messages or a width of their own, sorted by name. Raises
        Unsupported without `traits.widths`."""
        raise Unsupported(f"{self.traits.name} does not list groups")

    def paused(self) -> frozenset[str]:
        return frozenset()
