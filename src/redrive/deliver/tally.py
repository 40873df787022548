"""What a delivery has come to so far, as far as this process saw it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence

from ..events import Event, Fate

ENDS = ("done", "dead", "quarantined", "cancelled")
RATE_WINDOW_S = 5.0


class Tally:
    """An observer that counts fates. It is written by the store thread, but for `put`, which is the ingest's."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.put = 0  # messages put
        self.delivered_later = 0  # done, though not at the first attempt
        self._retrying = 0
        self._base = 0  # messages that waited when this process began
        self.last_error = ""
        self.notices: deque[str] = deque(maxlen=20)
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            if not isinstance(event, Fate):
                self.notices.append(f"{event.name}: {event.text}")
                continue
            self.outcomes[event.outcome] += 1
            if event.outcome in ENDS:
                self.delivered_later += event.outcome == "done" and event.attempt > 1
                self._retrying -= event.attempt > 1
            elif event.outcome == "retry":
                self._retrying += event.attempt == 1
            if event.text:
                self.last_error = event.text

    @property
    def waiting(self) -> int:
        """Messages in the store that have not ended."""
        return self._base + self.put - self.ended

    def correct(self, waiting: int) -> None:
        """Go by what the store says."""
        self._base += waiting - self.waiting

    @property
    def retrying(self) -> int:
        """Messages that failed at least once and have not ended."""
        return max(0, min(self._retrying, self.waiting))

    @property
    def ended(self) -> int:
        """Messages that came to an end here."""
        return sum(self.outcomes[name] for name in ENDS)

    @property
    def retries(self) -> int:
        return self.outcomes["retry"]

    def rate(self) -> float:
        """Messages that ended per second, over the last seconds."""
        now, ended = time.monotonic(), self.ended
        self._marks.append((now, ended))
        while len(self._marks) > 2 and self._marks[0][0] < now - RATE_WINDOW_S:
            self._marks.popleft()
        since, before = self._marks[0]
        return (ended - before) / max(now - since, 0.001)
