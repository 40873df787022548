"""Which queues are paused: SQS cannot say, so a cell does, which is looked at now and then."""

from __future__ import annotations

import json
import math
import time

from ...errors import Unsupported
from ...message import Swap, version_of
from ...store import Cells
from .dead_letters import NO_CELLS

PAUSES = "sqs/paused"
EVERY_S = 1.0


class Pauses:
    """The pauses of one store. Without cells there are none."""

    def __init__(self, cells: Cells | None) -> None:
        self._cells = cells
        self.seen: tuple[float, frozenset[str]] = (-math.inf, frozenset())  # when the cell was read, and its queues

    def queues(self) -> frozenset[str]:
        """Those that are paused, as they were a moment ago."""
        if self._cells is None:
            return frozenset()
        looked_s, names = self.seen
        if time.monotonic() - looked_s >= EVERY_S:
            cell = self._cells.read([PAUSES])[0]
            names = frozenset(json.loads(cell.value)) if cell else frozenset()
            self.seen = time.monotonic(), names
        return names

    def set(self, queue: str, paused: bool) -> None:
        """Raises Unsupported where there are no cells."""
        if self._cells is None:
            raise Unsupported(f"queue {queue!r} cannot be paused. {NO_CELLS}")
        while True:
            cell = self._cells.read([PAUSES])[0]
            names = set(json.loads(cell.value)) if cell else set()
            names = names | {queue} if paused else names - {queue}
            value = json.dumps(sorted(names)).encode() if names else None
            if self._cells.swap([Swap(PAUSES, version_of(cell), value)])[0]:
                self.seen = time.monotonic(), frozenset(names)
                return
