"""How many messages of a queue are where: SQS counts what lies in it, and cannot tell what waits from what runs."""

from __future__ import annotations

from collections.abc import Callable

from ...awsapi.client import REFUSED
from ...errors import ConfigError, StoreUnavailable
from ...message import Counts
from ...store import Store
from .in_flight import Holding
from .queues import Queues
from .receive import Receivers


class Counting:
    """Counts of one store's queues, with those that rest in `triage`."""

    def __init__(
        self,
        places: Queues,
        receivers: Receivers,
        holding: Holding,
        triage: Store | None,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._places, self._receivers, self._holding = places, receivers, holding
        self._triage, self._now_ms = triage, now_ms

    def of(self, queue: str) -> Counts:
        """Raises StoreUnavailable."""
        try:
            place = self._places.of(queue)
            ready, leased, scheduled = self._places.counts(place.url)
        except ConfigError as error:
            if REFUSED in str(error):
                raise StoreUnavailable(str(error)) from error
            ready = leased = scheduled = 0  # there is no such queue
        else:
            waiting = self._holding.hidden_in(place.url, self._now_ms())
            hidden = min(leased, waiting)  # SQS calls in flight what waits for its retry, too
            leased, scheduled = leased - hidden, scheduled + hidden
            if place.fifo and hidden and self._receivers.is_dry(place):  # what is visible stands behind that
                ready, scheduled = 0, scheduled + ready
        rest = Counts() if self._triage is None else self._triage.counts(queue)
        return Counts(
            ready=ready + rest.ready,
            scheduled=scheduled + rest.scheduled,
            leased=leased + rest.leased,
            dead=rest.dead,
            quarantine=rest.quarantine,
        )
