"""Limit how many messages a worker claims, holds and runs."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from ..message import ClaimRequest, Delivery
from ..registry import Queue
from .flow.claims import ClaimLimits
from .rollout.pauses import TaskPauses

T = TypeVar("T")
BATCH_MAX = 1000
_NONE: frozenset[str] = frozenset()


class RetryShares:
    """Computes how many messages of each claim are to be due retries ahead of a backlog: none if the queue's last claim
    was short, as there is no backlog then."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self._shares = {q.name: q.retry_share for q in queues}
        self._owed: dict[str, float] = {}  # by queue: the fraction of a retry still to be requested

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
    """The numbers of messages that one worker may hold: per queue its concurrency and prefetch, in all `capacity`.

    `total` bounds the messages that run at once; `prefetch` is the number beyond it that each queue, or the worker if
    there is a total, may hold; `claim_max` bounds one claim. `flow` limits the tasks to claim; `left` has those left
    to newer workers, and the paused ones. `gather` has, by queue, the most messages that one call may gather.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        total: int,
        prefetch: int | None,
        claim_max: int,
        flow: ClaimLimits | None = None,
        left: TaskPauses | None = None,
        gather: Mapping[str, int] = {},
    ) -> None:
        self._flow, self._left = flow, left
        self._claim_max = min(claim_max, BATCH_MAX)
        runs = {q.name: q.concurrency * gather.get(q.name, 1) for q in queues}
        total *= max((gather.get(q.name, 1) for q in queues), default=1)
        self._most = {name: most + (most if prefetch is None else prefetch) for name, most in runs.items()}
        together = sum(self._most.values())
        self.capacity: int = min(together, total * 2 if prefetch is None else total + prefetch)
        self._shares = [self._most]  # by queue, the most messages to hold; filled in order
        if any(q.weight != 1 for q in queues):
            weights = sum(q.weight for q in queues)
            self._shares.insert(0, {q.name: math.ceil(self.capacity * q.weight / weights) for q in queues})
        self._from_dry = 1 if len(queues) > 1 and self.capacity < together else BATCH_MAX
        self._retries = RetryShares(queues)
        self._dry: set[str] = set()  # queues that gave fewer messages than requested since the last wait
        self._clogged: frozenset[str] = frozenset()

    def asks(
        self,
        held: Mapping[str, int],
        leaving: Sequence[str],
        lease_ms: int,
        worker: str,
        lapsed_by_ms: int | None = None,
    ) -> list[ClaimRequest]:
        """Return the claim requests: for each queue as many messages as it and the worker have room for, within the
        limits of flow control for each task. `held` has the number of messages that the worker holds of each queue,
        `leaving` the queue of each message that the same exchange settles.

        A dry queue is left out, so that the next one gets its room. If the exchange settles messages anyway, a dry
        queue is included, to notice new messages: with a limit of one if others need its room.
        """
        rooms = self._rooms(held, Counter(leaving))
        if self._flow is None:
            wanted = [(name, room, _NONE) for name, room in rooms.items()]
        else:
            wanted = [(name, rooms.pop(name), _NONE) for name in self._clogged & rooms.keys()]
            wanted += self._flow.split(rooms)
        if self._left:
            wanted = self._without(self._left, wanted)
        take = self._retries.take
        return [
            ClaimRequest(name, room, lease_ms, skip, worker, take(name, room), lapsed_by_ms)
            for name, room, skip in wanted
        ]

    def _without(
        self, left: TaskPauses, wanted: Sequence[tuple[str, int, frozenset[str]]]
    ) -> list[tuple[str, int, frozenset[str]]]:
        queues = []
        for name, room, skip in wanted:
            more = left.skip(name)
            if more is not None:
                queues.append((name, room, skip if name in self._clogged else skip | more))
        return queues

    def _rooms(self, held: Mapping[str, int], leaving: Counter[str]) -> dict[str, int]:
        free = min(self.capacity - sum(held.values()) + leaving.total(), self._claim_max)
        rooms = dict.fromkeys(self._most, 0)
        for share in self._shares:
            for name, most in share.items():
                room = most - held[name] + leaving[name] - rooms[name]
                if name in self._dry:
                    room = min(room, self._from_dry - rooms[name]) if leaving else 0
                more = max(0, min(room, free))
                rooms[name] += more
                free -= more
        return {name: room for name, room in rooms.items() if room > 0}

    def asks_to_wait(self, held: Mapping[str, int], lease_ms: int, worker: str) -> tuple[list[ClaimRequest], float]:
        """Return requests of one message for each queue with room, to wait for its due time, and the ms until flow
        control may allow more."""
        if sum(held.values()) >= self.capacity:
            return [], math.inf
        free = [name for name, most in self._most.items() if held[name] < most]
        left = self._left or None
        if self._flow is None and left is None:
            return [ClaimRequest(name, 1, lease_ms, worker=worker) for name in free], math.inf
        asks, wake_ms = [], math.inf if left is None else left.wake_ms()
        for name in free:
            skip: frozenset[str] | None = _NONE
            if name not in self._clogged:
                if self._flow is not None:
                    skip, pause_ms = self._flow.waits(name)
                    wake_ms = min(wake_ms, pause_ms)
                more = _NONE if left is None else left.skip(name)
                skip = None if skip is None or more is None else skip | more
            if skip is not None:
                asks.append(ClaimRequest(name, 1, lease_ms, skip, worker))
        return asks, wake_ms

    def note(self, asks: Sequence[ClaimRequest], deliveries: Sequence[Delivery], clogged: frozenset[str]) -> set[str]:
        """Record the claimed messages; return the queues that gave fewer messages than `asks` requested."""
        if self._flow is not None:
            clogged -= self._flow.looking  # claims that skipped their known tasks, which may be due
        if clogged and self._left:
            self._left.note(clogged)
        given, asked = Counter([delivery.message.queue for delivery in deliveries]), Counter[str]()
        for ask in asks:
            asked[ask.queue] += ask.limit
        short = {queue for queue, limit in asked.items() if given[queue] < limit}
        self._retries.note(asked.keys() - short, short)
        self._dry = (self._dry - asked.keys()) | (short - clogged)
        self._clogged = clogged
        return short

    def rests(self, queue: str, *, stops: bool) -> bool:
        """Return True if all due messages of the queue are of paused tasks or, with `stops`, held back by flow control.
        Call it after claims that found no message."""
        paused = _NONE if self._left is None else self._left.paused
        if self._flow is None:
            return bool(paused) and queue in self._dry
        return self._flow.rests(queue, paused, stops=stops)

    def waited(self) -> None:
        """Clear the dry queues after a wait, as any queue may have due messages again."""
        self._dry.clear()


class WorkerLimit(Generic[T]):
    """Limits how many executions one worker runs at once over all its queues."""

    closed: bool
    lock: threading.Lock
    free: int

    def __init__(self, total: int) -> None:
        self.free = total
        self.closed = self.over = False  # `closed`: no execution may start for now; `over`: none may start ever again
        self.met_newer = False  # True once this worker claimed a message that may be of a newer release
        self.queues: list[QueueLimit[T]] = []
        self.lock = threading.Lock()

    def pause(self) -> None:
        with self.lock:
            self.closed = True

    def resume(self) -> list[T]:
        """Let executions start again after a pause; return the waiting ones that start now."""
        with self.lock:
            self.closed = self.over
            return self.start_waiting(self.free)

    def end(self) -> None:
        """Let no execution of any queue start any more."""
        with self.lock:
            self.closed = self.over = True

    def start_waiting(self, most: int) -> list[T]:
        """Count up to `most` waiting executions that may start now as started, and return them. Hold `lock`."""
        started: list[T] = []
        while not self.closed and len(started) < most and self.free > 0 and (queue := self.next_queue()) is not None:
            queue._running += 1
            self.free -= 1
            started.append(queue._waiting.popleft())
        return started

    def next_queue(self) -> QueueLimit[T] | None:
        """Return the queue whose waiting execution may start next, if there is one. Hold `lock`."""
        ready = [queue for queue in self.queues if queue._waiting and queue._running < queue._limit]
        return min(ready, key=lambda queue: queue._running / queue._weight, default=None)

    def waiting(self) -> list[T]:
        """Return the executions of all queues that are claimed and wait to start."""
        with self.lock:
            return [execution for queue in self.queues for execution in queue._waiting]


class QueueLimit(Generic[T]):
    """Limits how many executions of one queue this process runs at once; the others wait here, claimed but not started.

    At the worker's limit, the queue with the fewest executions for its `weight` starts the next one. Of equal shares,
    as always with infinite weights, the queue that was created first does.
    """

    def __init__(self, limit: int, worker: WorkerLimit[T], weight: float = math.inf) -> None:
        self._limit, self._worker, self._weight = limit, worker, weight
        self._running = 0
        self._waiting: deque[T] = deque()
        worker.queues.append(self)

    def meet_newer(self) -> None:
        """Note that this worker claimed a message that may be of a newer release."""
        self._worker.met_newer = True

    @property
    def is_full(self) -> bool:
        """True if no execution of this queue can start, at its own limit or the worker's."""
        return self._running >= self._limit or self._worker.free <= 0

    @property
    def is_at_limit(self) -> bool:
        """True if no execution of this queue can start, whatever other queues do."""
        return self._running >= self._limit

    def withdraw(self, chosen: Callable[[T], bool] = lambda execution: True) -> list[T]:
        """Forget the `chosen` executions of this queue that wait to start, and return them for the worker to release
        them."""
        with self._worker.lock:
            every = [*self._waiting]
            gone = [execution for execution in every if chosen(execution)]
            self._waiting.clear()
            self._waiting.extend(execution for execution in every if not chosen(execution))
            return gone

    def enter(self, executions: Sequence[T]) -> Sequence[T]:
        """Return the first of `executions`, as far as they start now; the others wait until `leave` returns them."""
        with self._worker.lock:
            free = 0 if self._worker.closed else max(0, min(self._limit - self._running, self._worker.free))
            started, later = executions[:free], executions[free:]
            self._running += len(started)
            self._worker.free -= len(started)
            self._waiting.extend(later)
            return started

    def leave(self, count: int = 1) -> list[T]:
        """Count `count` executions of this queue as ended; return those that start instead, also of another queue."""
        worker, waiting = self._worker, self._waiting
        with worker.lock:
            self._running -= count
            worker.free += count
            if not worker.closed and len(worker.queues) == 1:
                started = [waiting.popleft() for _ in range(min(count, len(waiting)))]
                self._running += len(started)
                worker.free -= len(started)
                return started
            return worker.start_waiting(count)

    def take(self, *, force: bool = False) -> bool:
        """Count an execution that did not `enter` as running; return False if the queue or the worker is at its limit.
        With `force` the limits are ignored: a suspect alone in the process shares it only with threads that outlived
        their leases."""
        with self._worker.lock:
            if not force and (self._running >= self._limit or self._worker.free <= 0):
                return False
            self._running += 1
            self._worker.free -= 1
            return True
