"""Run periodic work beside the deliveries of a worker."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..events import Notify


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

    def finish(self) -> None:
        """Do everything now: a burst has ended. May raise StoreError."""

    def close(self) -> None:
        """Stop: the worker has ended."""


#: Makes a service, given the worker's name and what reports a notice to observers.
MakeService = Callable[[str, Notify], Service]
