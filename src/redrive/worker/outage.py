"""Pause a worker's store thread while its store cannot be reached."""

from __future__ import annotations

import time

from ..errors import StoreError
from ..events import Notify

PAUSE_S = (0.05, 2.0)  # the first and the longest pause


class Outage:
    """Sleeps after each failure of the store, twice as long each time; reports the first failure and the end."""

    def __init__(self, notice: Notify) -> None:
        self._notice = notice
        self.pause_s = 0.0  # 0 while the store works

    def failed(self, error: StoreError) -> None:
        """Pause after a failure."""
        if not self.pause_s:
            self._notice("store_unavailable", str(error))
        self.pause_s = min(max(self.pause_s * 2, PAUSE_S[0]), PAUSE_S[1])
        time.sleep(self.pause_s)

    def over(self) -> None:
        """The store works again."""
        self.pause_s = 0.0
        self._notice("store_back", "the store works again")
