"""The children with one memory limit: assign executions to them, and compute how many are needed.

An isolated execution has its own child. Suspects share children, each with as many others as its company allows: many
suspects need few children, usually one. If it dies, each of them remains a suspect.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import NamedTuple

from ..execution import Execution
from .child_process import Child


class Waiting(NamedTuple):
    """A suspect that waits for a child: since when, and until when it may wait."""

    execution: Execution
    since_s: float
    until_s: float


class ChildPool:
    """The children with one memory limit: at most `limit` for isolated executions and `suspects_max` for suspects."""

    memory: int | None

    def __init__(self, memory: int | None, limit: int, suspects_max: int) -> None:
        self.memory, self._limit, self._suspects_max = memory, limit, suspects_max
        self.children: list[Child] = []
        self.idle: list[Child] = []
        self.isolated: deque[Execution] = deque()  # isolated executions that wait for a child
        self.suspects: list[Waiting] = []
        self.failures = 0  # children in a row that could not start
        self.not_before_s: float = 0.0

    @property
    def starting(self) -> int:
        """The number of living children that have not imported the app yet."""
        return sum(not child.ready and not child.dead for child in self.children)

    def wants_isolated(self) -> bool:
        """Return True if the waiting isolated executions need one more child, and the limit allows it."""
        mine = [child for child in self.children if not child.suspects and not child.retired]
        return len(mine) < self._limit and sum(not child.ready for child in mine) < len(self.isolated)

    def wants_shared(self) -> bool:
        """Return True if waiting suspects need one more child than is starting, and the limit allows it."""
        shared = self._shared()
        coming = sum(not child.ready for child in shared)
        sizes = Counter(one.execution.seats for one in self.suspects)
        wanted = sum(math.ceil(count / seats) for seats, count in sizes.items())
        return coming < wanted and len(shared) < self._suspects_max

    def shares(self) -> bool:
        """Return True if a child runs suspects, or is starting for them."""
        return bool(self._shared())

    def shared_child(self, execution: Execution, *, any_size: bool) -> Child | None:
        """Return a child for a suspect, if any: one with suspects of the same company, else an idle one, else, with
        `any_size`, any with room."""
        shared = [
            c
            for c in self._shared()
            if c.ready and not c.used_up and c.room > 0 and len(c.executions) < execution.seats
        ]
        for child in shared:
            if child.most == execution.seats:
                return child
        if self.idle and len(self._shared()) < self._suspects_max:
            child = self.idle.pop()  # the child used last, as its caches are warm
            child.suspects = True
            return child
        return shared[0] if shared and any_size else None

    def forget(self, child: Child) -> None:
        self.children.remove(child)
        if child in self.idle:
            self.idle.remove(child)

    def all_waiting(self) -> list[Execution]:
        """Remove all executions that wait for a child of this pool, and return them."""
        waiting = [*self.isolated, *(one.execution for one in self.suspects)]
        self.isolated.clear()
        self.suspects = []
        return waiting

    def _shared(self) -> list[Child]:
        return [child for child in self.children if child.suspects and not child.retired]
