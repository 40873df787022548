"""Enqueue tasks by the clock, each tick once, however many schedulers run.

`cron.py` computes ticks, `turn.py` decides which of them are due (pure), `declare.py` makes their messages, and
`scheduler.py` enqueues them. `presence.py` warns about schedules that no scheduler runs.
"""

from __future__ import annotations

from .declare import Schedule, periodic, state_in
from .presence import LATELY_MS, SchedulerWatch, last_seen, warning
from .scheduler import Scheduler
from .turn import Missed, State, Turn, turn

__all__ = [
    "LATELY_MS",
    "Missed",
    "Schedule",
    "Scheduler",
    "SchedulerWatch",
    "State",
    "Turn",
    "last_seen",
    "periodic",
    "state_in",
    "turn",
    "warning",
]
