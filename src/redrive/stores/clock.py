"""Estimate the clock of a server from the times in its replies, without extra requests."""

from __future__ import annotations

import time


class Clock:
    """An estimate of the server's clock from the times in its replies.

    The server read its time S between sending and receiving here, so the offset to the local monotonic clock is in [S -
    received, S + 1 - sent]. The largest lower bound is kept until a reading contradicts it (a clock was set, or
    drifts). So the estimate is never ahead of the server by more than one round trip plus a millisecond.
    """

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def saw(self, server_ms: int, sent_s: float) -> None:
        """Correct the estimate by the time in the reply to a request sent at `sent_s` (time.monotonic())."""
        least = server_ms - time.monotonic() * 1000
        offset = self._offset_ms
        if offset is None or offset < least or offset > server_ms + 1 - sent_s * 1000:
            self._offset_ms = least

    def now_ms(self) -> int | None:
        """Return the server's estimated time in ms; None before the first reply."""
        return None if self._offset_ms is None else int(time.monotonic() * 1000 + self._offset_ms)


def wall_ms() -> int:
    """Return this machine's wall-clock time in ms, for stores without another clock."""
    return time.time_ns() // 1_000_000
