"""How many messages a worker claims, and which ones it holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ..message import Ask, Delivery, Receipt
from ..registry import Queue
from .crash.ledger import Slots
from .execution import Execution
from .flow.claims import ClaimLimits

BATCH_MAX = 1000
_NONE: frozenset[str] = frozenset()


class RetryShares:
    """How many messages of each claim may be due retries ahead of a backlog: none if the queue's last claim was short,
    because then there is no backlog."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self._shares = {q.name: q.retry_share for q in queues}
        self._owed: dict[str, float] = {}  # to the retries of each queue with a backlog: less than one message

    def take(self, queue: str, limit: int) -> int:
        owed = self._owed.get(queue)
        if owed is None:
            return 0
        owed += self._shares[queue] * limit
        self._owed[queue] = owed - int(owed)
        return int(owed)

    def note(self, full: Iterable[str], short: Iterable[str]) -> None:
        for queue in full:
            self._owed.setdefault(queue, 0.0)
        for queue in short:
            self._owed.pop(queue, None)


class Capacity:
    """How many messages one worker may hold: per queue its concurrency and prefetch, all together `capacity`.

    `total` bounds the messages that run at once; `prefetch` is how many more each queue, or the worker if there is a
    total, may hold; `claim_max` bounds one claim. `flow` says which tasks may be claimed now.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        total: int,
        prefetch: int | None,
        claim_max: int,
        flow: ClaimLimits | None = None,
    ) -> None:
        self._flow = flow
        self._claim_max = min(claim_max, BATCH_MAX)
        self._most = {q.name: q.concurrency + (q.concurrency if prefetch is None else prefetch) for q in queues}
        together = sum(self._most.values())
        self.capacity = min(together, total * 2 if prefetch is None else total + prefetch)
        self._shares = [self._most]  # how many each queue may hold, filled in this order
        if any(q.weight != 1 for q in queues):
            weights = sum(q.weight for q in queues)
            self._shares.insert(0, {q.name: math.ceil(self.capacity * q.weight / weights) for q in queues})
        self._from_dry = 1 if len(queues) > 1 and self.capacity < together else BATCH_MAX
        self.taken: Counter[str] = Counter()
        self._retries = RetryShares(queues)
        self._dry: set[str] = set()  # queues whose last claim was short, since the last wait
        self._clogged: frozenset[str] = frozenset()

    def asks(self, leaving: Sequence[str], lease_ms: int, worker: str) -> list[Ask]:
        """What to claim: as many messages of each queue as it and the worker have room for, and no more of each task
        than flow control allows. `leaving` names the queue of each message that is settled in the same exchange.

        A dry queue is left out, so that the next one gets its room. If something is settled anyway, a dry queue is
        asked too, for one message if others want its room, to notice new messages.
        """
        rooms = self._rooms(Counter(leaving))
        if self._flow is None:
            wanted = [(name, room, _NONE) for name, room in rooms.items()]
        else:
            wanted = [(name, rooms.pop(name), _NONE) for name in self._clogged & rooms.keys()]
            wanted += self._flow.split(rooms)
        return [Ask(name, room, lease_ms, skip, worker, self._retries.take(name, room)) for name, room, skip in wanted]

    def _rooms(self, leaving: Counter[str]) -> dict[str, int]:
        free = min(self.capacity - self.taken.total() + leaving.total(), self._claim_max)
        rooms = dict.fromkeys(self._most, 0)
        for share in self._shares:
            for name, most in share.items():
                room = most - self.taken[name] + leaving[name] - rooms[name]
                if name in self._dry:
                    room = min(room, self._from_dry - rooms[name]) if leaving else 0
                more = max(0, min(room, free))
                rooms[name] += more
                free -= more
        return {name: room for name, room in rooms.items() if room > 0}

    def asks_to_wait(self, lease_ms: int, worker: str) -> tuple[list[Ask], float]:
        """What could be claimed if it were due, and in how many ms flow control may allow more."""
        if self.taken.total() >= self.capacity:
            return [], math.inf
        free = [name for name, most in self._most.items() if self.taken[name] < most]
        if self._flow is None:
            return [Ask(name, 1, lease_ms, worker=worker) for name in free], math.inf
        asks, wake_ms = [], math.inf
        for name in free:
            skip, pause_ms = (_NONE, math.inf) if name in self._clogged else self._flow.waits(name)
            wake_ms = min(wake_ms, pause_ms)
            if skip is not None:
                asks.append(Ask(name, 1, lease_ms, skip, worker))
        return asks, wake_ms

    def note(self, asks: Sequence[Ask], deliveries: Sequence[Delivery], clogged: frozenset[str]) -> set[str]:
        """Record what was claimed; returns the queues that gave less than was asked."""
        if self._flow is not None:
            clogged -= self._flow.looking  # there the known tasks may wait
        given, asked = Counter(delivery.message.queue for delivery in deliveries), Counter[str]()
        for ask in asks:
            asked[ask.queue] += ask.limit
        short = {queue for queue, limit in asked.items() if given[queue] < limit}
        self._retries.note(asked.keys() - short, short)
        self._dry = (self._dry - asked.keys()) | (short - clogged)
        self._clogged = clogged
        return short

    def waited(self) -> None:
        """After a wait any queue may have due messages again."""
        self._dry.clear()


class InFlight:
    """The executions that a worker holds leases of. Each has a slot in the crash ledger and counts against capacity.

    `ended` is called for each one that leaves. Used by the store thread; others may read `all`.
    """

    def __init__(self, capacity: Capacity, slots: Slots | None, ended: Callable[[Execution], None] | None) -> None:
        self._held: dict[Receipt, Execution] = {}
        self._capacity, self._slots, self._ended = capacity, slots, ended

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[Execution]:
        """All of them, at this moment."""
        return list(self._held.values())

    def add(self, runs: Sequence[Execution]) -> None:
        """Hold these."""
        held, slots = self._held, self._slots
        for run in runs:
            message = run.delivery.message
            if slots is not None:
                run.slot = slots.take(message.id, message.fence)
            held[run.delivery.receipt] = run
        self._capacity.taken.update([run.delivery.message.queue for run in runs])

    def still(self, runs: Sequence[Execution]) -> list[Execution]:
        """Those of them that are still held."""
        held = self._held
        return [run for run in runs if run.delivery.receipt in held]

    def remove(self, deliveries: Sequence[Delivery]) -> None:
        """Hold these no more: they are settled, or their leases are lost."""
        taken = self._capacity.taken
        for delivery in deliveries:
            run = self._held.pop(delivery.receipt, None)
            if run is not None:
                taken[delivery.message.queue] -= 1
                if run.counted and self._ended is not None:
                    self._ended(run)
                if self._slots is not None:
                    self._slots.give(run.slot)
