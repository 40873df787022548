"""Schedules: tasks enqueued by the clock, each tick once, however many schedulers run.

Begin with `scheduler`, the loop. `cron` computes the times of the ticks, `turn` which of them are due (pure), and
`declare` what each one enqueues.
"""

from __future__ import annotations

from .declare import Schedule, periodic
from .scheduler import Scheduler
from .turn import Missed, State, Turn, turn

__all__ = ["Missed", "Schedule", "Scheduler", "State", "Turn", "periodic", "turn"]
