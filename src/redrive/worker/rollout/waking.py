"""Wake messages that wait for a newer worker, when that worker has started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...decide import parked_since_ms
from ...message import Filter, Hasten, Lane
from ...presence import Teller, release_of, waiting_tasks
from ...store import Store
from ...task import TaskSpec

TIMES = 3  # renewals that wake messages: workers that do not know this one yet may defer more of them meanwhile
PAGE = 100
PAGES_MAX = 200  # pages of messages that one wake reads at most


class Waking:
    """Reports the tasks of a worker at each renewal of its record, and at the first TIMES ones wakes messages that
    wait for them. Called on the thread that renews the record."""

    def __init__(
        self, store: Store, queues: Sequence[str], tasks: Mapping[str, TaskSpec], draining: Callable[[], bool]
    ) -> None:
        self._store, self._queues, self._tasks, self._draining = store, queues, tasks, draining
        self._teller, self._left = Teller(store), TIMES

    def renewed(self) -> None:
        """Report the worker's tasks after a renewal of its record; at first, wake messages, too. Raises StoreError."""
        if self._draining():
            return
        self._teller.tell(release_of(self._queues, self._tasks))
        if self._left:
            self.wake()
            self._left -= 1

    def wake(self) -> None:
        """Make messages of this worker's tasks due that no worker knew so far. Raises StoreError."""
        if not self._store.traits.hastens:
            return
        named = waiting_tasks(self._store)
        for queue in self._queues:
            mine = tuple(task for task in named.get(queue, ()) if task in self._tasks)
            if mine:
                self._wake(Filter(queue=queue, task=mine))

    def _wake(self, where: Filter) -> None:
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = self._store.peek(Lane.READY, where=where, limit=PAGE, cursor=cursor)
            now_ms = self._store.now_ms()
            waiting = [
                message.handle
                for message in page.messages
                if (message.due_ms or 0) > now_ms
                and message.version <= self._tasks[message.task].version
                and parked_since_ms(message) is not None
            ]
            if waiting:
                self._store.triage(waiting, Hasten())
            cursor = page.cursor
            if cursor is None:
                return
