"""Which queues come near the number of messages that SQS allows in flight: beyond it nothing is delivered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ...errors import ConfigError, StoreError
from .queues import Place, Queues
from .receive import Receivers

IN_FLIGHT_MAX = 120_000  # of one queue
CROWDED = 0.9  # of that: from here on what waits is sent anew, as a delayed message is not in flight
CROWD_EVERY_S = 10.0
CROWD_RECEIVED = 500  # messages received since the last look; below that no queue comes near it


class Crowds:
    """What is known of each queue; looked at now and then."""

    def __init__(self, places: Queues, receivers: Receivers, *, tell: Callable[[str, str], None]) -> None:
        self._places, self._receivers, self._tell = places, receivers, tell
        self._looks: dict[str, tuple[float, int, bool]] = {}  # by URL: when, messages received by then, and the answer

    def crowded(self, place: Place) -> bool:
        """Whether the queue comes near the number of messages that it may have in flight."""
        at_s, received, crowded = self._looks.get(place.url, (-math.inf, 0, False))
        if time.monotonic() - at_s < CROWD_EVERY_S or (
            not crowded and self._receivers.received - received < CROWD_RECEIVED
        ):
            return crowded
        try:
            _, flying, _ = self._places.counts(place.url)
        except (StoreError, ConfigError):
            return crowded
        now_crowded = flying >= CROWDED * IN_FLIGHT_MAX
        if now_crowded and not crowded:
            self._tell(place.queue, f"{flying} messages in flight, of {IN_FLIGHT_MAX}; retries are sent anew")
        self._looks[place.url] = time.monotonic(), self._receivers.received, now_crowded
        return now_crowded
