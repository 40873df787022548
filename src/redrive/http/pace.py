"""At most so many requests per second, evenly: each send takes the next slot of a fixed beat."""

from __future__ import annotations

import asyncio
import re

from ..duration import seconds
from ..errors import ConfigError, Snooze

CATCH_UP_S = 0.1  # slots missed longer ago than that are lost, so that a pause is not followed by a burst
_EXPECTED = "expected a number per unit of time, such as 50/s, 600/m or 5/2s"


def read_rate(text: str) -> float:
    """Requests per second from text such as "50/s" or "600/m". Raises ConfigError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*([0-9]*[a-z0-9. ]*)", text)
    try:
        if found is None:
            raise ValueError
        per_s = seconds(found[2] if found[2][:1].isdigit() else f"1{found[2]}", "rate")
        return _positive(float(found[1]) / per_s)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"rate {text!r} is refused: {_EXPECTED}") from None


def _positive(rate: float) -> float:
    if not 0 < rate < 1e6:
        raise ValueError
    return rate


class Pacer:
    """Hands out slots 1/rate seconds apart; without a rate every slot is now. Belongs to one event loop."""

    def __init__(self, rate: float | None) -> None:
        self._every_s = 0.0 if rate is None else 1 / rate
        self._next_s: float | None = None
        self._stopped = asyncio.Event()

    async def slot(self) -> None:
        """Wait for a slot. Raises Snooze once the pacer is stopped: the message goes back, no attempt spent."""
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
        """How long a slot can be away when so many wait for one."""
        return self._every_s * waiting

    def stop(self) -> None:
        """Let nobody wait any longer."""
        self._stopped.set()
