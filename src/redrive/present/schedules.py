"""Schedules as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .formats import timestamp
from .status import schedule_state

if TYPE_CHECKING:
    from ..schedule import Schedule
    from ..status import ScheduleStatus


def schedule_record(schedule: Schedule, status: ScheduleStatus, now_ms: int) -> dict[str, Any]:
    """Return a schedule as a record: what the app declares, and how late it is."""
    return {
        "state": schedule_state(status, now_ms),
        "name": schedule.name,
        "cron": schedule.times.shown,
        "tz": schedule.times.tz,
        "task": schedule.task.name,
        "queue": schedule.queue,
        "missed": str(schedule.missed),
        "last_at": timestamp(status.last_ms),
        "next_at": timestamp(status.next_ms),
        "late_s": None if status.late_ms is None else status.late_ms / 1000,
        "paused": status.paused,
        "scheduler_seen_at": timestamp(status.seen_ms),
    }
