"""Compute how late schedules are, and if a scheduler runs them."""

from __future__ import annotations

from msgspec import Struct

from ..registry import Registry
from ..store import Store
from .declare import Schedule, state_in
from .presence import LATELY_MS, last_seen
from .turn import ScheduleState

LATE_MS = 5_000  # ms; a scheduler enqueues a tick within about a second


class ScheduleStatus(Struct, frozen=True, kw_only=True):
    """The status of a schedule: `late_ms` is how long its first tick that was not enqueued is overdue, or None.
    `seen_ms` is when a scheduler last ran the schedule, None if never. Times are ms of the store's clock."""

    name: str
    late_ms: int | None = None
    last_ms: int | None = None
    next_ms: int | None = None
    seen_ms: int | None = None
    unattended: bool = False  # no scheduler has run the schedule within LATELY_MS
    paused: bool = False

    @property
    def is_late(self) -> bool:
        """True if the schedule needs attention: a tick is overdue, or no scheduler runs the schedule."""
        return not self.paused and (self.unattended or (self.late_ms or 0) >= LATE_MS)


def schedule_statuses(app: Registry, store: Store) -> tuple[ScheduleStatus, ...]:
    """Return the status of each of the app's schedules, late ones first. Raises StoreError."""
    if not app.schedules:
        return ()
    seen, now_ms = last_seen(store), store.now_ms()
    cells = store.cells.read([schedule.key for schedule in app.schedules.values()])
    statuses = [
        _status(schedule, state_in(cell), seen.get(schedule.name), now_ms)
        for schedule, cell in zip(app.schedules.values(), cells, strict=True)
    ]
    return tuple(sorted(statuses, key=lambda one: (not one.is_late, -(one.late_ms or 0))))


def _status(schedule: Schedule, state: ScheduleState | None, seen_ms: int | None, now_ms: int) -> ScheduleStatus:
    known = state is not None and state.spec == schedule.times.spec
    paused = state.paused if state is not None else False
    waiting_ms = next(schedule.times.after(state.seen_ms), None) if state and known and not paused else None
    return ScheduleStatus(
        name=schedule.name,
        late_ms=now_ms - waiting_ms if waiting_ms is not None and waiting_ms < now_ms else None,
        last_ms=state.last_ms if state else None,
        next_ms=next(schedule.times.after(now_ms), None),
        seen_ms=seen_ms,
        unattended=not paused and (seen_ms is None or now_ms - seen_ms >= LATELY_MS),
        paused=paused,
    )
