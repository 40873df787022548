"""Answer "what is going on?" and "why is it not running?" from what a store holds now.

`reasons.py` finds what holds a message back; every command that explains a wait prints what it returns. `flow.py` and
`timing.py` are its parts for dependencies and for times. `read.py` builds the `Status` that `app.status()` returns;
`needs.py` (what needs a person), `batches.py` and `workers.py` are its parts. `running.py` says where messages run.
`hurry.py` makes messages due by hand, and answers with what holds them.
"""

from __future__ import annotations

from ..schedule.lateness import ScheduleStatus, schedule_statuses
from .batches import read_batches
from .hold import Hold
from .hurry import RunNow, run_now, told
from .read import read_status
from .reasons import Reasons
from .record import Need, QueueStatus, Status
from .running import Running, running_of
from .upcoming import HOUR_S, MINUTE_S, TEN_S, Upcoming, Wave, read_upcoming
from .workers import WorkerStatus, hung_workers, worked, worker_reports

__all__ = [
    "HOUR_S",
    "MINUTE_S",
    "TEN_S",
    "Hold",
    "Need",
    "QueueStatus",
    "Reasons",
    "RunNow",
    "Running",
    "ScheduleStatus",
    "Status",
    "Upcoming",
    "Wave",
    "WorkerStatus",
    "hung_workers",
    "read_batches",
    "read_status",
    "read_upcoming",
    "run_now",
    "running_of",
    "schedule_statuses",
    "told",
    "worked",
    "worker_reports",
]
