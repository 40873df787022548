"""Work queues: claim messages, run their handlers on the event loop, in threads or in child processes, and settle them.

The pipeline, in the order a message meets it: store_loop.py claims in batches, execution.py admits, an executor in
`executors/` runs, settlement.py decides, store_loop.py settles, delivery_events.py reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .services import MakeService, Service
    from .worker import Worker

__all__ = ["MakeService", "Service", "Worker"]


def __getattr__(name: str) -> Any:
    """Import the worker at its first use: commands that only read its records start faster without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Worker":
        from .worker import Worker

        return Worker
    from . import services

    return getattr(services, name)
