"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .formats import timestamp
from .status import schedule_state

if TYPE_CHECKING:
    from ..schedule import Schedule
    from ..status import ScheduleStatus


def schedule_record(found: Schedule, status: ScheduleStatus, now_ms: int) -> dict[str, Any]:
    """A schedule as a row of the list."""
    return {
        "state": schedule_state(status, now_ms),
        "name": found.name,
        "cron": found.times.shown,
        "tz": found.times.tz,
        "task": found.task.name,
        "queue": found.queue,
        "missed": str(found.missed),
        "last_at": timestamp(status.last_ms),
        "next_at": timestamp(status.next_ms),
        "late_s": None if status.late_ms is None else status.late_ms / 1000,
        "paused": status.paused,
    }
