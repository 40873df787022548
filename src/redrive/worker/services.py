"""Run periodic work beside the deliveries of a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from ..errors import StoreError
from ..events import Notify

TICK_S = 0.05  # how often services are called at most


class Service:
    """Periodic work that a worker carries along: retention, redrive runs, the drain of dead-letter queues.

    The store thread calls it, so a service with long work has a thread of its own.
    """

    def begin(self) -> None:
        """Start: called once, when the worker starts."""

    def look(self, *, now: bool = False) -> None:
        """Do what is due; with `now`, look for work even if that is not due yet. May raise StoreError."""

    def busy(self, queues: Collection[str]) -> bool:
        """Whether a burst worker of these queues has to wait for it."""
        return False

    def carried(self) -> Sequence[str]:
        """The ids of the redrive runs that it carries now. From any thread."""
        return ()

    def finish(self) -> None:
        """Do everything now: a burst has ended. May raise StoreError."""

    def close(self) -> None:
        """Stop: the worker has ended."""


#: Makes a service, given the worker's name and what reports a notice to observers.
MakeService = Callable[[str, Notify], Service]


class Services:
    """The services of one worker. `failed` handles a store that cannot be reached."""

    def __init__(self, services: Sequence[Service], failed: Callable[[StoreError], None]) -> None:
        self._services, self._failed = services, failed
        self.due_s = 0.0  # time.monotonic() of the next look

    def begin(self) -> None:
        """Start all of them."""
        for service in self._services:
            service.begin()

    def look(self, *, now: bool = False) -> None:
        """Let each do what is due."""
        self.due_s = time.monotonic() + TICK_S
        for service in self._services:
            try:
                service.look(now=now)
            except StoreError as error:
                self._failed(error)

    def busy(self, queues: Collection[str]) -> bool:
        """Whether a burst worker of these queues has to wait for one of them."""
        return any(service.busy(queues) for service in self._services)

    def carried(self) -> list[str]:
        """The ids of the redrive runs that they carry now. From any thread."""
        return [id for service in self._services for id in service.carried()]

    def finish(self) -> None:
        """Let each do everything now."""
        for service in self._services:
            try:
                service.finish()
            except StoreError as error:
                self._failed(error)

    def close(self) -> None:
        """Stop all of them."""
        for service in reversed(self._services):
            service.close()
