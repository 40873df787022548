"""What a worker runs beside messages, handed to it by the app: redrive runs, and ingestion of dead letters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Service(Protocol):
    """A service with threads of its own: `begin` when the worker starts, `close` when it stops."""

    def begin(self) -> None: ...

    def close(self) -> None: ...


class RunService(Protocol):
    """Moves the messages of redrive runs. The worker's store thread calls it."""

    def look(self, *, now: bool = False) -> None:
        """Start to work if there are open runs: checked once a second, or `now`."""

    def busy(self, queues: Collection[str]) -> bool:
        """Whether a run may still move messages of these queues; a burst waits for them."""

    def close(self) -> None:
        """Finish the current step and let other workers continue."""
