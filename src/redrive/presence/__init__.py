"""Tell who is alive: each worker and scheduler keeps a cell in the store, and `read_workers` reads them all.

keeper.py and figures.py are imported by those that tell: workers (`worker/telemetry/`) and schedulers.
"""

from __future__ import annotations

from .directory import GONE_MS, RENEW_S, Entry, read_workers
from .record import HeldMessage, QueueWork, WorkerInfo

__all__ = ["GONE_MS", "RENEW_S", "Entry", "HeldMessage", "QueueWork", "WorkerInfo", "read_workers"]
