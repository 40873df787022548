"""Leave messages of paused tasks unclaimed.

Once a second a worker reads the cell with all pauses of tasks, and its claims skip these tasks from then on. Messages
that it has claimed and not begun go back to their places. A claim without `skip`, behind too many skipped messages,
also returns messages of paused tasks: they are put off for a minute or two, so that those behind them are in reach.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

from ..chance import uniform
from ..decide import Refusal
from ..message import Deferral, decoded
from ..paused_task import CELL, PausedTask, decode, held_tasks, pause_of
from ..store import Store
from .execution import Execution
from .rollout.pauses import TaskPauses
from .services import Service

READ_S = 1.0  # seconds between two reads of the pauses
AWAY_S = (60.0, 120.0)  # for how long a claimed message of a paused task is put off: at least, and at most


class PausedTasks(Service):
    """Keeps `left.paused` as people say. Used by the store thread. Where claims cannot skip tasks (SQS), no task can be
    paused, and nothing is read."""

    left: TaskPauses

    def __init__(self, store: Store, tasks: Collection[str], left: TaskPauses) -> None:
        self._store, self._tasks, self.left = store, tasks, left
        self._pauses: dict[str, PausedTask] = {}
        self._due_s = 0.0 if store.traits.cells and store.traits.skips else math.inf

    def look(self, *, now: bool = False) -> None:
        """Read the pauses once a second. Raises StoreError."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + READ_S
        (cell,) = self._store.cells.read([CELL])
        self._pauses = {} if cell is None else decoded(cell, decode, self._pauses)  # damage changes nothing
        if self._pauses or self.left.paused:
            self.left.pause(held_tasks(self._pauses, self._tasks, self._store.now_ms()))

    def put_off(self, executions: Sequence[Execution]) -> Sequence[Execution]:
        """Refuse the executions of paused tasks; return the others."""
        paused, now_ms = self.left.paused, self._store.now_ms()
        for execution in executions:
            if execution.delivery.message.task in paused:
                pause = pause_of(self._pauses, execution.delivery.message.task, now_ms)
                until_ms = now_ms if pause is None else pause.until_ms or math.inf
                at_ms = min(now_ms + round(uniform(*AWAY_S) * 1000), until_ms)
                execution.refusal = Refusal(int(at_ms), Deferral("pause", execution.delivery.message.task))
        return [execution for execution in executions if execution.refusal is None]
