"""Enqueue tasks by the clock, each tick once, however many schedulers run.

`cron.py` computes ticks, `turn.py` decides which of them are due (pure), `declare.py` makes their messages, and
`scheduler.py` enqueues them. `presence.py` warns about schedules that no scheduler runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .declare import Schedule, periodic, state_in
from .presence import LATELY_MS, SchedulerWatch, last_seen, warning
from .turn import Missed, ScheduleState, Turn, turn

if TYPE_CHECKING:
    from .scheduler import Scheduler

__all__ = [
    "LATELY_MS",
    "Missed",
    "Schedule",
    "ScheduleState",
    "Scheduler",
    "SchedulerWatch",
    "Turn",
    "last_seen",
    "periodic",
    "state_in",
    "turn",
    "warning",
]


def __getattr__(name: str) -> Any:
    """Import Scheduler at its first use, so that commands that only read schedules start without asyncio."""
    if name != "Scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from .scheduler import Scheduler

    return Scheduler
