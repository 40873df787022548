"""Enqueue tasks by the clock, each tick once, however many schedulers run.

`cron.py` computes ticks, `turn.py` decides which of them are due (pure), `declare.py` makes their messages, and
`scheduler.py` enqueues them.
"""

from __future__ import annotations

from .declare import Schedule, periodic
from .scheduler import Scheduler
from .turn import Missed, State, Turn, turn

__all__ = ["Missed", "Schedule", "Scheduler", "State", "Turn", "periodic", "turn"]
