"""How a worker behaves while its store cannot be reached, and after that.

During an outage no worker can renew leases, so leases of living workers expire. The first worker to reach the store
again must not claim their messages. So a worker claims an expired lease only if its holder had the chance to renew it:
this worker has itself written to the store after the expiry, and long enough ago for the renewals that waited with that
write.
"""

from __future__ import annotations

import time

from ..errors import StoreError
from ..events import Notify

PAUSE_S = (0.05, 2.0)  # the first and the longest pause after a failure of the store, in seconds
HEADWAY_S = 0.25  # seconds after a write of this worker in which waiting writes of other workers succeed
SLOW_S = 1.0  # seconds: a write that took longer counts as an outage
BACK_WITHIN_S = PAUSE_S[1] + 0.5  # seconds in which every other worker notices the end of an outage
RENEWS_MS = 2000  # a lease that expired less than so many ms after a write of this worker could still have been renewed
RENEWS_SHARE = 0.6  # the share of a lease that bounds RENEWS_MS: holders renew after a third of it


class Outage:
    """Sleeps after each failure of the store, each time twice as long; reports the start and the end of an outage."""

    pause_s: float
    wrote_s: float

    def __init__(self, notice: Notify, lease_s: float) -> None:
        self._notice, self._renews_ms = notice, min(RENEWS_MS, int(lease_s * 1000 * RENEWS_SHARE))
        self.pause_s = 0.0  # the last pause, in seconds; 0 while the store works
        self.wrote_s = self._before_s = self._last_s = time.monotonic()
        self._silent_s = lease_s / 3

    def failed(self, error: StoreError) -> None:
        if not self.pause_s:
            self._notice("store_unavailable", str(error))
        self.pause_s = min(max(self.pause_s * 2, PAUSE_S[0]), PAUSE_S[1])
        self._away(time.monotonic())
        time.sleep(self.pause_s)

    def wrote(self, sent_s: float) -> bool:
        """Note that a write sent at `sent_s` succeeded; return True if it ended an outage."""
        now_s = time.monotonic()
        self.wrote_s = now_s
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
        """Note that an outage ended at `now_s`, so that earlier writes do not count as chances to renew."""
        self._last_s = now_s + BACK_WITHIN_S - HEADWAY_S

    def lapsed_by_ms(self, store_ms: int) -> int:
        """Return the latest expiry of leases that this worker may claim; `store_ms` is the store's time now."""
        now_s = time.monotonic()
        written_s = self._last_s if now_s - self._last_s >= HEADWAY_S else self._before_s
        return store_ms - int((now_s - written_s) * 1000) + self._renews_ms

    @property
    def is_silent(self) -> bool:
        """True if no write of this worker has succeeded for so long that its renewals are overdue."""
        return time.monotonic() - self.wrote_s > self._silent_s
