"""The guards of a message: a worker's copies of the shared states of its dependencies."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ...flow import dependency as flow
from ...flow.breaker import Breaker
from ...flow.budget import Budget
from ...flow.dependency import Dependency, DependencyState, PendingEvidence
from ...flow.limits import Rate
from ...message import Cell, GroupOrder, Message, version_of
from ...registry import Registry

KEYED_MAX = 10_000  # guards of keys that a worker keeps; the least recently used one is dropped first
QUEUE, TASK, RATE = "queue:", "task:", ":rate"  # prefixes and a suffix in the names of rates that have no breaker


class LimitState:
    """The guard of one dependency, or of one key of it: its state as last read, and the evidence since that."""

    about: str
    cell: str
    d: Dependency
    exhausted_ms: int
    pace_ms: float
    promised: int
    read_ms: float
    running: int
    seen: PendingEvidence
    state: DependencyState
    taken_ms: float
    turn: int

    __slots__ = (
        "about",
        "cell",
        "d",
        "each",
        "exhausted_ms",
        "pace_ms",
        "pool",
        "promised",
        "read_ms",
        "running",
        "seen",
        "state",
        "taken_ms",
        "turn",
        "version",
    )

    def __init__(self, d: Dependency, key: str) -> None:
        self.d, self.about, self.cell = d, flow.about_of(d.name, key), flow.cell_of(d.name, key)
        self.state, self.read_ms = DependencyState(), -math.inf
        self.version: int | None = 0  # None: unknown after a swap
        self.seen = PendingEvidence()
        self.running, self.pace_ms, self.exhausted_ms = 0, 50.0, 0
        self.pool: int = 0  # tokens taken and not used yet
        self.promised: int = 0  # how many of them are promised to claims
        self.each: float = 0.0  # with weights: the permits that each of these tokens stands for
        self.taken_ms, self.turn = 0.0, 0  # the time at which the tokens were taken, and the turn of the breaker then

    def saw(self, cell: Cell | None, now_ms: int) -> None:
        """Take over the state in a cell that was read at `now_ms`."""
        self.state, self.version, self.read_ms = flow.decode(cell), version_of(cell), now_ms

    def wrote(self, state: DependencyState, now_ms: int) -> None:
        """Take over a state that was written at `now_ms`, and drop the evidence, which it includes."""
        self.state, self.version, self.read_ms, self.seen = state, None, now_ms, PendingEvidence()

    def free(self, worker: str) -> float:
        """Return how many more calls this worker may begin under its share of the adaptive concurrency."""
        return math.inf if self.d.concurrency is None else flow.share(self.state, self.d, worker) - self.running


class LimitStates:
    """The guards of one worker, by task and queue, and by key if a dependency is split by `per`."""

    def __init__(self, app: Registry) -> None:
        self._app = app
        self._plans: dict[tuple[str, str], tuple[Dependency, ...]] = {}
        self._keyed: OrderedDict[str, LimitState] = OrderedDict()
        self._kinds: dict[str, dict[tuple[LimitState, ...], set[str]]] = {}  # by queue: tasks by guards
        self.whole: dict[str, LimitState] = {}  # by the dependency's name: guards without a key
        self.fixed: dict[tuple[str, str], tuple[LimitState, ...]] = {}  # of a (task, queue) without keys
        self.weighted: set[str] = set()  # names of the guards whose rates have weights
        for task in app.tasks.values():
            self._plan(task.name, task.queue)

    def __bool__(self) -> bool:
        return any(self._plans.values())

    def __iter__(self) -> Iterator[LimitState]:
        yield from self.whole.values()
        yield from self._keyed.values()

    def names(self) -> set[str]:
        """Return the names of all dependencies of the app's tasks."""
        return {d.name for plan in self._plans.values() for d in plan}

    def strict(self, queue: str) -> bool:
        """Return whether the app declares strict order for the queue's groups."""
        return queue in self._app.queues and self._app.queues[queue].group_order is GroupOrder.STRICT

    def kinds(self, queue: str) -> list[tuple[tuple[LimitState, ...], set[str]]]:
        """Return the tasks known to be on a queue, with the guards that they share."""
        return [*self._kinds.get(queue, {}).items()]

    def of(self, message: Message) -> tuple[LimitState, ...]:
        """Return the guards of a message, that of its dependency last; empty for most messages."""
        if message.task not in self._app.tasks:
            return ()  # not cached, as producers may send any task name
        plan = self._plan(message.task, message.queue)
        if all(d.per is None for d in plan):
            fixed = self.fixed[message.task, message.queue] = tuple(self.whole[d.name] for d in plan)
            return fixed
        return tuple(self.whole[d.name] if d.per is None else self._guard(d, message) for d in plan)

    def _plan(self, task: str, queue: str) -> tuple[Dependency, ...]:
        plan = self._plans.get((task, queue))
        if plan is None:
            plan = self._plans[task, queue] = controls(self._app, task, queue)
            self.weighted.update(d.name for d in plan if d.rate is not None and d.rate.cost is not None)
            shared = tuple(self.whole.setdefault(d.name, LimitState(d, "")) for d in plan if d.per is None)
            self._kinds.setdefault(queue, {}).setdefault(shared, set()).add(task)
        return plan

    def _guard(self, d: Dependency, message: Message) -> LimitState:
        key = flow.key_of(d, message)
        cell = flow.cell_of(d.name, key)
        guard = self._keyed.get(cell)
        if guard is None:
            guard = self._keyed[cell] = LimitState(d, key)
            if len(self._keyed) > KEYED_MAX:
                oldest = next((c for c, g in self._keyed.items() if not g.running and not g.seen), None)
                if oldest is not None:
                    del self._keyed[oldest]
        self._keyed.move_to_end(cell)
        return guard


def is_rate(name: str) -> bool:
    """Return True if `name` is that of a queue's, a task's or a key's rate, which has no breaker."""
    return name.startswith((QUEUE, TASK)) or name.endswith(RATE)


def of_queue(d: Dependency) -> bool:
    """Return True if this dependency is a queue's own rate."""
    return d.name.startswith(QUEUE)


def controls(app: Any, task: str, queue: str) -> tuple[Dependency, ...]:
    """Return the controls of this task's messages on this queue: rates, then the breaker over all keys, if any, then
    the dependency. Empty for most."""
    known = app.tasks.get(task)
    if known is None:
        return ()
    d: Dependency | None = app.dependencies.get(known.dependency or task)
    if d is None and known.dependency is not None:
        d = Dependency(known.dependency, Budget(), Breaker())
    rates: list[tuple[str, Rate]] = []
    queued = app.queues[queue].rate if queue in app.queues else None
    if queued is not None:
        rates += _windows(f"{QUEUE}{queue}", queued)
    if known.rate is not None:
        rates += _windows(f"{TASK}{task}", known.rate)
    if d is not None and d.rate is not None:
        first, *others = _windows(d.name, d.rate)
        if d.rate.per is not None and d.rate.cost is None:
            first = (f"{d.name}{RATE}", d.rate)
        if first[0] == d.name:
            rates += others
        else:
            rates += [first, *others]
            d = replace(d, rate=None)
    # A queue's or task's name may contain a slash, a dependency's name may not.
    own = [Dependency(name.replace("/", "|"), rate=rate, per=rate.per) for name, rate in rates]
    parent = flow.parent_of(d) if d is not None else None
    return tuple(control for control in (*own, parent, d) if control is not None)


def _windows(name: str, rate: Rate) -> list[tuple[str, Rate]]:
    """Return the rates declared for `name`, each with the name of its guard. The first one has the name itself unless
    it has weights: older workers, which know none, would take the debts of its cell for a changed rate."""
    return [(name if not n and each.cost is None else f"{name}:{n + 1}{RATE}", each) for n, each in enumerate(rate.all)]
