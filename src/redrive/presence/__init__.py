"""Report which processes are alive: each worker, scheduler and carrier of redrive runs keeps a cell in the store.

`Keeper` keeps the cell of this process; `worker/telemetry/` fills in a worker's report. `read_workers` reads them all.
"""

from __future__ import annotations

from .directory import GONE_MS, RENEW_S, ProcessCell, drain_swaps, read_workers
from .figures import LoopLag, RateMeter
from .keeper import Keeper, is_on
from .knowledge import Knowledge, Release, Teller, release_of, waiting_tasks
from .record import LISTED_MAX, HeldMessage, Hung, QueueWork, WorkerInfo, with_claimed

__all__ = [
    "GONE_MS",
    "LISTED_MAX",
    "RENEW_S",
    "HeldMessage",
    "Hung",
    "Keeper",
    "Knowledge",
    "LoopLag",
    "ProcessCell",
    "QueueWork",
    "RateMeter",
    "Release",
    "Teller",
    "WorkerInfo",
    "drain_swaps",
    "is_on",
    "read_workers",
    "release_of",
    "waiting_tasks",
    "with_claimed",
]
