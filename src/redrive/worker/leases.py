"""Renew the leases of the messages that a worker holds, and end the executions whose leases are lost."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from ..errors import StoreError
from ..fault import STARTED_MAX, Crash
from ..message import LeaseStatus
from ..store import Store
from ..system import host
from .crash.ledger import CrashSlots
from .delivery_events import Reporter
from .execution import Execution, InFlightExecutions
from .idempotency import KeyClaims
from .outage import Outage

KILL_MS = 3_600_000  # ms for which a request to kill is stored
BEAT_EVERY_S = 0.25  # seconds between two signs of life of the store thread


def kill_cell(id: str) -> str:
    """Return the key of the cell that requests killing the child process of a cancelled message."""
    return f"kill/{id}"


class LeaseRenewals:
    """Renews the leases of one worker's messages, and its claims of idempotency keys. Used by the store thread."""

    due_s: float
    renew_s: float

    def __init__(
        self,
        store: Store,
        in_flight: InFlightExecutions,
        keys: KeyClaims | None,
        slots: CrashSlots | None,
        loop: asyncio.AbstractEventLoop,
        outage: Outage,
        reporter: Reporter,
        *,
        lease_s: float,
        grace_s: float,
    ) -> None:
        self._store, self._in_flight, self._keys, self._slots, self._loop = store, in_flight, keys, slots, loop
        self._outage, self._reporter, self._lease_s, self._grace_s = outage, reporter, lease_s, grace_s
        self._to_mark: deque[tuple[Execution, Callable[[LeaseStatus], None]]] = deque()
        self._busy_until_s = 0.0  # time.monotonic() at which the last running timeout ends
        self.due_s = 0.0  # time.monotonic() at which to call `beat` next
        self.renew_s = 0.0  # time.monotonic() at which to renew the leases next
        self.draining = False

    def beat(self, now_s: float) -> None:
        """Renew the leases if due, mark waiting suspects as alone, and record that the store thread is not blocked."""
        renew = now_s >= self.renew_s
        if renew:
            self.renew_s = now_s + self._lease_s / 3
        self.due_s = min(now_s + BEAT_EVERY_S, self.renew_s)  # first, as another thread may set it to 0 (`mark_soon`)
        if renew:
            self._renew(now_s)
        if self._slots is not None:
            self._slots.beat_store(now_s, self._busy_until_s)
        if self._to_mark:
            self._mark_alone()

    def _renew(self, now_s: float) -> None:
        """Renew every lease, but not beyond the end of the execution's timeout and grace."""
        groups: dict[int, list[Execution]] = {}
        self._busy_until_s = 0.0
        for execution in self._in_flight.all():
            left_s = self._lease_s
            if execution.started_s:
                ends_s = execution.deadline_s + self._grace_s
                self._busy_until_s = max(self._busy_until_s, ends_s)
                left_s = min(left_s, ends_s - now_s)
            if left_s > 0:
                groups.setdefault(math.ceil(left_s * 1000), []).append(execution)
        self._renew_keys()
        for lease_ms, executions in groups.items():
            for at in range(0, len(executions), self._store.traits.batch_max):
                if not self._extend(executions[at : at + self._store.traits.batch_max], lease_ms):
                    self.renew_soon()
                    return

    def renew_soon(self) -> None:
        """Let the next `beat` renew the leases: the store could not be reached when the renewal was due."""
        self.due_s = self.renew_s = 0.0

    def _renew_keys(self) -> None:
        if self._keys is None or self.draining:
            return
        held = self._in_flight.all()
        waiting = [
            execution
            for execution in held
            if execution.claim is not None and not execution.started_s and not execution.over
        ]
        try:
            lost = self._keys.renew(waiting)
        except StoreError as error:
            self._outage.failed(error)
            return
        for execution in lost:
            self.lose(execution)

    def _extend(self, executions: Sequence[Execution], lease_ms: int) -> bool:
        before_s, isolated = time.monotonic(), list[Execution]()
        try:
            statuses = self._store.extend([execution.delivery.receipt for execution in executions], lease_ms=lease_ms)
        except StoreError as error:
            self._outage.failed(error)
            return False
        self._outage.wrote(before_s)
        for execution, status in zip(executions, statuses, strict=True):
            if status is LeaseStatus.LOST:
                self.lose(execution)
                continue
            execution.until_s = before_s + lease_ms / 1000
            if status is LeaseStatus.CANCEL and execution.context is not None:
                execution.context.stop("cancel")
                if execution.executor == "process":
                    isolated.append(execution)
        if isolated:
            self._kill_asked(isolated)
        return True

    def _kill_asked(self, executions: Sequence[Execution]) -> None:
        """Kill the child process of each execution for which a person requested that."""
        try:
            cells = self._store.cells.read([kill_cell(execution.delivery.message.id) for execution in executions])
        except StoreError as error:  # the next renewal reads the requests again
            self._outage.failed(error)
            return
        for execution, cell in zip(executions, cells, strict=True):
            if cell is not None and execution.context is not None:
                execution.cause = execution.cause or "cancel"
                execution.context.stop("kill")

    def mark_soon(self, execution: Execution, then: Callable[[LeaseStatus], None]) -> None:
        """Let the store thread mark this execution as running alone, then call `then` on the event loop's thread with
        the status of its lease. Thread-safe."""
        self._to_mark.append((execution, then))
        self.due_s = 0.0
        self._store.nudge()

    def _mark_alone(self) -> None:
        """Mark executions as alone in the store, before their handlers start: a kill after that counts as a crash
        alone, an earlier one as a crash of a suspect."""
        while self._to_mark:
            (execution, then), before_s, lease_ms = self._to_mark[0], time.monotonic(), math.ceil(self._lease_s * 1000)
            try:
                [status] = self._store.extend([execution.delivery.receipt], lease_ms=lease_ms, alone=True)
            except StoreError as error:
                self._outage.failed(error)
                return
            self._to_mark.popleft()
            execution.until_s = before_s + self._lease_s
            if status is LeaseStatus.LOST and self._in_flight.still([execution]):
                self.lose(execution)
            self._loop.call_soon_threadsafe(then, status)

    def lose(self, execution: Execution) -> None:
        """Drop an execution whose lease is lost, and ask its handler to stop."""
        if execution.settling:
            return  # the settlement was sent already, and the store will refuse it as stale
        self._in_flight.remove([execution.delivery])
        self._loop.call_soon_threadsafe(execution.end, "lease")
        self._reporter.lost(execution.delivery.message)

    def lose_earlier(self, id: str) -> Crash | None:
        """Stop holding an earlier execution of this message, whose lease expired; return the evidence of its crash. The
        ledger still has it as started, so a kill would count a second crash."""
        crash = None
        for execution in [execution for execution in self._in_flight.all() if execution.delivery.message.id == id]:
            crash = self._evidence(execution)
            self.lose(execution)
        return crash

    def _evidence(self, execution: Execution) -> Crash | None:
        if not execution.started_s:
            return None
        held = self._in_flight.all()
        ids = [other.delivery.message.id for other in held if other.started_s and not other.finished_s]
        return Crash(
            cause="lease",
            run_s=time.monotonic() - execution.started_s,
            alone=execution.alone,
            started=tuple(ids[:STARTED_MAX]),
            started_count=len(ids),
            worker=self._reporter.worker,
            host=host(),
        )
