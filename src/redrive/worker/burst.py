"""Decide when a burst worker, which stops by itself, has no more work."""

from __future__ import annotations

from collections.abc import Sequence

from ..store import Store
from .capacity import Capacity
from .services import Services


class Burst:
    """Decides when a burst ends: when no message of the queues is due or leased, except deferred ones and those of
    paused tasks.

    With `until_empty` it also waits for deferred and scheduled messages.
    """

    def __init__(
        self, store: Store, queues: Sequence[str], *, until_empty: bool, capacity: Capacity, services: Services
    ) -> None:
        self._store, self._queues, self._until_empty = store, queues, until_empty
        self._capacity, self._services = capacity, services

    def is_over(self) -> bool:
        """Return True if the burst has ended, given that the worker holds no message. Raises StoreError."""
        self._services.look(now=True)
        if self._services.busy({*self._queues} - {*self._store.paused()}):
            return False
        return not any(self._has_left(queue) for queue in self._queues)

    def _has_left(self, queue: str) -> bool:
        counts = self._store.counts(queue)
        held_back = self._capacity.rests(queue, stops=not self._until_empty)
        left = counts.leased or (0 if held_back else counts.ready)
        later = counts.scheduled + counts.parked
        if not left and self._until_empty and later:
            left = later - self._blocked_in(queue)
        return left > 0 and queue not in self._store.paused()

    def _blocked_in(self, queue: str) -> int:
        """Return how many messages of the queue are parked behind a dead one of their group. A burst does not wait for
        them, as a person has to act first."""
        if not self._store.traits.widths:
            return 0
        return sum(group.parked for group in self._store.groups(queue) if group.blocked_by is not None)
