"""What a worker asks for: how many messages of which queue it has places for, and which of them may run now."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..message import Ask, Delivery
from ..registry import Queue

if TYPE_CHECKING:
    from .flow.controller import Flow

BATCH_MAX = 1000
_NONE: frozenset[str] = frozenset()


class RetryShares:
    """How many places of each ask are for due retries: none, where the queue's last claim was short, as then there is
    no backlog to wait behind."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self._shares = {q.name: q.retry_share for q in queues}
        self._owed: dict[str, float] = {}  # to the retries of each queue with a backlog: less than one place

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


class Places:
    """The places of one worker for claimed messages: per queue its concurrency and prefetch, all together `capacity`.

    `total` bounds the runs under way, `prefetch` is what each queue, or with a total the worker, may hold beyond;
    `ask_max` bounds what one exchange asks for.
    """

    def __init__(self, queues: Sequence[Queue], total: int, prefetch: int | None, ask_max: int) -> None:
        self._flow: Flow | None = None
        self._ask_max = min(ask_max, BATCH_MAX)
        self._most = {q.name: q.concurrency + (q.concurrency if prefetch is None else prefetch) for q in queues}
        together = sum(self._most.values())
        self.capacity = min(together, total * 2 if prefetch is None else total + prefetch)
        self._shares = [self._most]  # what the queues may hold, to be filled in this order
        if any(q.weight != 1 for q in queues):
            weights = sum(q.weight for q in queues)
            self._shares.insert(0, {q.name: math.ceil(self.capacity * q.weight / weights) for q in queues})
        self._asked_of_dry = 1 if len(queues) > 1 and self.capacity < together else BATCH_MAX
        self.taken: Counter[str] = Counter()
        self._retries = RetryShares(queues)
        self._dry: set[str] = set()  # queues that gave less than they were asked for, since the last wait
        self._clogged: frozenset[str] = frozenset()

    def watched_by(self, flow: Flow) -> None:
        """From here on flow control says how many of which tasks to ask for."""
        self._flow = flow

    def asks(self, leaving: Sequence[str], lease_ms: int, worker: str) -> list[Ask]:
        """What to claim: per queue its free places, all together no more than the worker's, of tasks that flow control
        bounds no more than may run. `leaving` names the queue of each message that is settled in the same exchange.

        A dry queue is left out, so that its places go to the next one. Where there is something to settle anyway it is
        asked too, for one message if others want its places, to notice when it is dry no more.
        """
        rooms = self._rooms(Counter(leaving))
        if self._flow is None:
            wanted = [(name, room, _NONE) for name, room in rooms.items()]
        else:
            wanted = [(name, rooms.pop(name), _NONE) for name in self._clogged & rooms.keys()]
            wanted += self._flow.split(rooms)
        return [Ask(name, room, lease_ms, skip, worker, self._retries.take(name, room)) for name, room, skip in wanted]

    def _rooms(self, leaving: Counter[str]) -> dict[str, int]:
        free = min(self.capacity - self.taken.total() + leaving.total(), self._ask_max)
        rooms = dict.fromkeys(self._most, 0)
        for share in self._shares:
            for name, most in share.items():
                room = most - self.taken[name] + leaving[name] - rooms[name]
                if name in self._dry:
                    room = min(room, self._asked_of_dry - rooms[name]) if leaving else 0
                more = max(0, min(room, free))
                rooms[name] += more
                free -= more
        return {name: room for name, room in rooms.items() if room > 0}

    def asks_to_wait(self, lease_ms: int, worker: str) -> tuple[list[Ask], float]:
        """What there is room for, were it due, and in how many ms flow control may let more of it run."""
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
        """What came of the asks; the queues that gave less than they were asked for."""
        if self._flow is not None:
            clogged -= self._flow.looking  # what is known there may wait in its order
        given, asked = Counter(delivery.message.queue for delivery in deliveries), Counter[str]()
        for ask in asks:
            asked[ask.queue] += ask.limit
        short = {queue for queue, limit in asked.items() if given[queue] < limit}
        self._retries.note(asked.keys() - short, short)
        self._dry = (self._dry - asked.keys()) | (short - clogged)
        self._clogged = clogged
        return short

    def waited(self) -> None:
        """Any queue may have something again."""
        self._dry.clear()
