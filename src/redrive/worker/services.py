"""Run periodic work beside the deliveries of a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from ..errors import StoreError
from ..events import Notify

TICK_S = 0.05  # the least seconds between two calls of services


class Service:
    """Periodic work of a worker: retention, redrive runs, the ingest of dead-letter queues.

    The store thread calls it, so a service with long work has a thread of its own.
    """

    def begin(self) -> None:
        """Start the work. Called once, when the worker starts."""

    def look(self, *, now: bool = False) -> None:
        """Do the work that is due; with `now`, check for work even between two checks. May raise StoreError."""

    def busy(self, queues: Collection[str]) -> bool:
        """Return True if a burst worker of these queues has to wait for this service."""
        return False

    def carried(self) -> Sequence[str]:
        """Return the ids of the redrive runs that this service carries out. Thread-safe."""
        return ()

    def finish(self) -> None:
        """Do all work that is left, at the end of a burst. May raise StoreError."""

    def close(self) -> None:
        """Stop the work, at the end of the worker."""


#: Creates a service, given the worker's name and the function that reports a notice.
MakeService = Callable[[str, Notify], Service]


class Services:
    """The services of one worker. `failed` is called with each error of the store."""

    due_s: float

    def __init__(self, services: Sequence[Service], failed: Callable[[StoreError], None]) -> None:
        self._services, self._failed = services, failed
        self.due_s = 0.0  # time.monotonic() of the next `look`

    def begin(self) -> None:
        for service in self._services:
            service.begin()

    def look(self, *, now: bool = False) -> None:
        """Let each service do the work that is due."""
        self.due_s = time.monotonic() + TICK_S
        for service in self._services:
            try:
                service.look(now=now)
            except StoreError as error:
                self._failed(error)

    def busy(self, queues: Collection[str]) -> bool:
        """Return True if a burst worker of these queues has to wait for one of the services."""
        return any(service.busy(queues) for service in self._services)

    def carried(self) -> list[str]:
        """Return the ids of the redrive runs that the services carry out. Thread-safe."""
        return [id for service in self._services for id in service.carried()]

    def finish(self) -> None:
        """Let each service do all work that it has left."""
        for service in self._services:
            try:
                service.finish()
            except StoreError as error:
                self._failed(error)

    def closes(self) -> list[Callable[[], None]]:
        """Return the functions that close the services, in the order in which to call them."""
        return [service.close for service in reversed(self._services)]
