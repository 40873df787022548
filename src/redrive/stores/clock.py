"""Estimate the clock of a server from the times in its replies, without asking for it."""

from __future__ import annotations

import time


class Clock:
    """An estimate of the server's clock from the times its replies carry.

    A reading S was taken between sending and receiving: so the offset to our own monotonic clock lies in
    [S - received, S + 1 - sent]. The largest lower bound is kept until a reading contradicts it (a clock was set, or
    drifts): so the estimate is never ahead of the server by more than one round trip and the millisecond it counts in.
    """

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def saw(self, server_ms: int, sent_s: float) -> None:
        """A reply to what was sent at `sent_s` (time.monotonic()) carried this time of the server's."""
        least = server_ms - time.monotonic() * 1000
        offset = self._offset_ms
        if offset is None or offset < least or offset > server_ms + 1 - sent_s * 1000:
            self._offset_ms = least

    def now_ms(self) -> int | None:
        """None before the first reply."""
        return None if self._offset_ms is None else int(time.monotonic() * 1000 + self._offset_ms)


def wall_ms() -> int:
    """This machine's clock, for stores that have no other."""
    return time.time_ns() // 1_000_000
