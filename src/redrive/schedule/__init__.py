"""Schedules: tasks enqueued by the clock, each tick once, however many schedulers run.

`times.py` knows when the ticks are, `turn.py` which of them are due (pure), `declare.py` what each one enqueues,
`runner.py` does it.
"""

from __future__ import annotations

from .declare import Schedule, periodic
from .scheduler import Scheduler
from .turn import Missed, State, Turn, turn

__all__ = ["Missed", "Schedule", "Scheduler", "State", "Turn", "periodic", "turn"]
