"""Limit what a worker claims: no more messages of a task than its breaker, cool-down, rate and concurrency allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...flow import permits
from ...message import ClaimRequest
from .local_state import LimitState, LimitStates
from .shared_state import TRIES, SharedState

if TYPE_CHECKING:
    from ...store import Store

LOOK_MS = 1000  # ms between two claims from a queue whose known tasks are held back, for messages of tasks unknown here
TRY_MS = 10_000  # ms between two searches of a queue for held-back messages that are in groups
GROUPED_SHARE = 4  # one in so many places of a worker is used to claim messages that then give up their groups' places
GuardedTasks = tuple[tuple[LimitState, ...], set[str]]  # guards, and the tasks that share exactly these guards
_NONE: frozenset[str] = frozenset()


class ClaimLimits:
    """Computes what one worker may claim now."""

    def __init__(self, guards: LimitStates, shared: SharedState, store: Store, worker: str) -> None:
        self._guards, self._shared, self._store, self._worker = guards, shared, store, worker
        self._empty: dict[str, set[str]] = {}  # by queue: the tasks without due messages since the last execution ended
        self._looked_ms: dict[str, int] = {}  # with all known tasks held back: last claim of unknown ones
        self.grouped: set[str] = set()  # tasks with held-back messages in groups
        self._tried_ms: dict[str, int] = {}  # by queue: the last search for messages of `grouped`
        self._turns = 0  # with room for one message, every second turn is given to them
        self.looking: set[str] = set()  # queues that the last `split` searches for unknown tasks

    def split(self, rooms: Mapping[str, int]) -> list[tuple[str, int, frozenset[str]]]:
        """Return the claims for the room of each queue: (queue, limit, tasks to skip). Limited tasks get no more
        messages than may run, and their tokens are taken here; these claims come first, as they are small."""
        now_ms = self._shared.now_ms()
        for guard in self._guards.whole.values():
            guard.promised = 0
        self.looking.clear()
        asks = []
        for queue, room in rooms.items():
            asks += [(queue, limit, skip) for limit, skip in self._split(queue, room, now_ms)]
        return asks

    def _split(self, queue: str, room: int, now_ms: int) -> list[tuple[int, frozenset[str]]]:
        kinds = self._guards.kinds(queue)
        self._shared.refresh({guard for guards, _ in kinds for guard in guards}, now_ms)
        most = [min((self._open(guard, now_ms).count for guard in guards), default=math.inf) for guards, _ in kinds]
        everything = _NONE.union(*(tasks for _, tasks in kinds))
        giving, way = self._giving_way(queue, [kinds[n] for n in range(len(kinds)) if most[n] <= 0], everything, room)
        # by the tightest guard: how many messages to claim, and their tasks
        bounded: dict[LimitState, tuple[int, set[str]]] = {}
        held, free, left = set[str](), set[LimitState](), room - giving
        for n in sorted(range(len(kinds)), key=most.__getitem__):  # the tightest limit first
            guards, tasks = kinds[n]
            if len(guards) > 1:  # the tightest first, so that the others give no more tokens than it allows
                guards = tuple(sorted(guards, key=lambda guard: self._open(guard, now_ms).count))
            count, by = left if most[n] > 0 else 0, None
            for guard in guards:
                allowed = self._allow(guard, count, now_ms)
                if allowed < count:
                    count, by = allowed, guard
            if by is None and most[n] > 0:
                free.update(guards)
                continue
            held |= tasks
            if by is None:
                continue
            if by not in bounded and not count and by.promised and left > 1:
                count = 1  # all is promised, perhaps to tasks without due messages
            if by in bounded or count:
                more, others = bounded.get(by, (0, set()))
                bounded[by] = more + count, others | tasks  # tasks that share a limit share a claim
            for guard in guards:
                guard.promised += count
            left -= count
        if not held:
            return [(room, _NONE)]
        for guard in free:
            guard.promised += left
        asks = [(count, everything - tasks) for count, tasks in bounded.values()]
        if giving:
            asks.append((giving, everything - way))
        if not left:
            return asks
        return [*asks, (left, frozenset(held))] if held < everything or self._looks(queue, now_ms) else asks

    def _bars(self, guards: tuple[LimitState, ...], now_ms: int) -> bool:
        return any(permits.barred(guard.state, guard.d, now_ms, guard.pool) for guard in guards)

    def _giving_way(
        self, queue: str, held: Sequence[GuardedTasks], everything: frozenset[str], room: int
    ) -> tuple[int, frozenset[str]]:
        """Return the limit and skipped tasks of a claim for messages that are to give up their groups' places: those
        that an outage holds back, in a queue with other tasks. They are deferred, so that one tenant's outage of one
        dependency does not stop the tenant's other tasks. Messages without a group wait unclaimed, and the head of a
        strict group keeps its place anyway."""
        now_ms = self._shared.last_ms
        barred = _NONE.union(*(tasks for guards, tasks in held if self._bars(guards, now_ms)))
        if not barred or barred == everything or self._guards.strict(queue):
            return 0, _NONE
        if known := barred & self.grouped:
            self._turns += 1
            return room // GROUPED_SHARE or self._turns % 2, known
        if abs(now_ms - self._tried_ms.get(queue, -TRY_MS)) < TRY_MS:
            return 0, _NONE
        self._tried_ms[queue] = now_ms
        return 1, barred

    def _looks(self, queue: str, now_ms: int) -> bool:
        """Return True, once per LOOK_MS, to claim unknown tasks of the queue, as its known ones are held back."""
        if abs(now_ms - self._looked_ms.get(queue, -LOOK_MS)) < LOOK_MS:
            return False
        self._looked_ms[queue] = now_ms
        self.looking.add(queue)
        return True

    def _open(self, guard: LimitState, now_ms: int) -> permits.ClaimAllowance:
        """Return how many messages this guard allows to claim now; tokens of an earlier turn are dropped."""
        if guard.turn != guard.state.breaker.turn:
            guard.pool, guard.turn = 0, guard.state.breaker.turn  # from an earlier turn of the breaker
        if not guard.pool and guard.d.rate is not None:
            guard.each = permits.each_of(guard.state, guard.d.rate)
        return permits.allowance(guard.state, guard.d, now_ms, guard.free(self._worker), guard.pool, guard.each)

    def _allow(self, guard: LimitState, wanted: int, now_ms: int) -> int:
        """Return how many of `wanted` the guard allows to claim beside those promised, and take their tokens."""
        wanted = int(min(wanted, self._open(guard, now_ms).count - guard.promised))
        if wanted <= 0 or not permits.bounded(guard.state, guard.d):
            return max(0, wanted)
        need = wanted - (guard.pool - guard.promised)
        for _ in range(TRIES if need > 0 else 0):
            state, count = permits.take(self._shared.with_seen(guard, now_ms), guard.d, need, now_ms, guard.each)
            if not count:
                break
            if not self._shared.write([(guard, state)], now_ms):
                guard.pool, guard.taken_ms = guard.pool + count, now_ms
                break
        return max(0, min(wanted, guard.pool - guard.promised))

    def note(self, asks: Sequence[ClaimRequest], short: set[str], settled: bool) -> None:
        """Record the tasks without due messages: all that were claimed from a `short` queue. Executions that ended
        (`settled`) may have enqueued more."""
        if settled:
            self._empty.clear()
        for ask in asks:
            if ask.queue in short:
                tasks = _NONE.union(*(tasks for _, tasks in self._guards.kinds(ask.queue)))
                self._empty.setdefault(ask.queue, set()).update(tasks - ask.skip)

    def rests(self, queue: str, paused: frozenset[str], *, stops: bool) -> bool:
        """Return True if all due messages of the queue are of `paused` tasks or, with `stops`, belong to dependencies
        that may not be called at all now."""
        now_ms, rests, empty = self._store.now_ms(), False, self._empty.get(queue, set())
        for guards, tasks in self._guards.kinds(queue):
            rests = rests or bool(tasks & paused)
            if stops and any(permits.stopped(guard.state, guard.d, now_ms) for guard in guards):
                rests = True
            elif not tasks <= empty | paused:
                return False
        return rests

    def waits(self, queue: str) -> tuple[frozenset[str] | None, float]:
        """Return the tasks of the queue not to be claimed now (None: all), and the ms until that may change."""
        kinds, now_ms = self._guards.kinds(queue), self._store.now_ms()
        grouped = _NONE if self._guards.strict(queue) else self.grouped
        held, giving_way, pause_ms = set[str](), set[str](), math.inf
        for guards, tasks in kinds:
            for guard in guards:
                allowance = self._open(guard, now_ms)
                if allowance.count <= 0:
                    held |= tasks
                    giving_way |= tasks & grouped if self._bars((guard,), now_ms) else _NONE
                    pause_ms = min(pause_ms, max(1.0, allowance.next_ms - now_ms))
        if not held:
            return _NONE, math.inf
        everything = _NONE.union(*(tasks for _, tasks in kinds))
        return None if held == everything else frozenset(held - giving_way), pause_ms
