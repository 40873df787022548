"""What a worker does while its store cannot be reached, and after it is back.

While a store is away no worker can renew a lease. So leases run out whose holders live, and who gets to the store first
when it is back must not take their messages. A worker claims a lease that ran out only if its holder could have renewed
it: if this worker itself has written to the store since, and some time before now, in which the holder's own renewal,
which was kept waiting as long, got through.
"""

from __future__ import annotations

import time

from ..errors import StoreError
from ..events import Notify

PAUSE_S = (0.05, 2.0)  # the first and the longest pause
HEADWAY_S = 0.25  # how long others get, after a write of ours, to write what the store kept waiting
SLOW_S = 1.0  # a write that took longer met a store that was away
BACK_WITHIN_S = PAUSE_S[1] + 0.5  # how long others may take to notice that the store is back
RENEWS_MS = 2000  # a lease that ran out so soon after a write of ours could have been renewed then
RENEWS_SHARE = 0.6  # of a lease, at most: holders renew when a third of it is over


class Outage:
    """Sleeps after each failure of the store, twice as long each time; reports the first failure and the end."""

    def __init__(self, notice: Notify, lease_s: float) -> None:
        self._notice, self._renews_ms = notice, min(RENEWS_MS, int(lease_s * 1000 * RENEWS_SHARE))
        self.pause_s = 0.0  # 0 while the store works
        self.wrote_s = self._before_s = self._last_s = time.monotonic()
        self._silent_s = lease_s / 3

    def failed(self, error: StoreError) -> None:
        """Pause after a failure."""
        if not self.pause_s:
            self._notice("store_unavailable", str(error))
        self.pause_s = min(max(self.pause_s * 2, PAUSE_S[0]), PAUSE_S[1])
        self._away(time.monotonic())
        time.sleep(self.pause_s)

    def wrote(self, sent_s: float) -> bool:
        """A write went through that was sent then. Returns whether the store was away before."""
        self.wrote_s = now_s = time.monotonic()
        if self.pause_s:
            self.pause_s = 0.0
            self._away(now_s)
            self._notice("store_back", "the store works again")
            return True
        if now_s - self._last_s >= HEADWAY_S:
            self._before_s, self._last_s = self._last_s, now_s
            if now_s - sent_s > max(SLOW_S, self._silent_s):
                self._away(now_s)
                return True
        return False

    def _away(self, now_s: float) -> None:
        """The store was away until now: what was written before says nothing of renewals since."""
        self._last_s = now_s + BACK_WITHIN_S - HEADWAY_S

    def lapsed_by_ms(self, store_ms: int) -> int:
        """By when leases must have run out that this worker may claim, if the store's time is `store_ms`."""
        now_s = time.monotonic()
        written_s = self._last_s if now_s - self._last_s >= HEADWAY_S else self._before_s
        return store_ms - int((now_s - written_s) * 1000) + self._renews_ms

    @property
    def is_silent(self) -> bool:
        """Whether no write of this worker has gone through for so long that renewals are overdue."""
        return time.monotonic() - self.wrote_s > self._silent_s
