"""Limit the rate of requests: each takes the next slot of a fixed beat."""

from __future__ import annotations

import asyncio

from ..errors import Snooze

CATCH_UP_S = 0.1  # seconds; slots missed before that are lost, so that a pause is not followed by a burst


class Pacer:
    """Hands out slots, 1/rate seconds apart, or at once without a rate. Belongs to one event loop."""

    def __init__(self, rate: float | None) -> None:
        self._every_s = 0.0 if rate is None else 1 / rate
        self._next_s: float | None = None
        self._stopped = asyncio.Event()

    async def slot(self) -> None:
        """Wait for a slot. Raises Snooze once the pacer is stopped: the message is given back, no attempt spent."""
        if not self._every_s:
            return
        now = asyncio.get_running_loop().time()
        slot_s = now if self._next_s is None else max(self._next_s, now - CATCH_UP_S)
        self._next_s = slot_s + self._every_s
        if slot_s > now and not self._stopped.is_set():
            try:
                await asyncio.wait_for(self._stopped.wait(), slot_s - now)
            except TimeoutError:
                return
        if self._stopped.is_set():
            raise Snooze(0, "stopped before it was sent")

    def wait_max_s(self, waiting: int) -> float:
        """Return the longest wait for a slot, in seconds, while `waiting` requests wait."""
        return self._every_s * waiting

    def stop(self) -> None:
        """Let every wait for a slot end with Snooze."""
        self._stopped.set()
