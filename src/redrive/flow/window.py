"""The breaker's window: ten buckets of counts. The newest one is still being filled."""

from __future__ import annotations

from msgspec import Struct

BUCKETS = 10
_EMPTY = (0, 0, 0)


class CallWindow(Struct, frozen=True, array_like=True):
    """Counts of calls, failures and slow calls for each bucket, oldest first, flat. `newest` is the number of the last
    bucket since the epoch. A bucket is a tenth of the window long, so the buckets cover between nine and ten tenths of
    the window."""

    newest: int = 0
    counts: tuple[int, ...] = _EMPTY * BUCKETS


def moved(window: CallWindow, window_ms: int, now_ms: int) -> CallWindow:
    """Return the window as it is at `now_ms`; unchanged if the clock went back a little. A window from the far future
    had another bucket length: it starts empty."""
    newest = now_ms * BUCKETS // window_ms
    by = min(newest - window.newest, BUCKETS)
    if by < -BUCKETS:
        return CallWindow(newest)
    return window if by <= 0 else CallWindow(newest, window.counts[3 * by :] + _EMPTY * by)


def add(window: CallWindow, window_ms: int, calls: int, failed: int, slow: int, now_ms: int) -> CallWindow:
    """Return the window as it is at `now_ms`, with these calls in its newest bucket."""
    window = moved(window, window_ms, now_ms)
    *older, all_, bad, late = window.counts
    return CallWindow(window.newest, (*older, all_ + calls, bad + failed, late + slow))


def sums(window: CallWindow) -> tuple[int, int, int]:
    """Return the numbers of calls, failures and slow calls in the window."""
    calls, failed, slow = (sum(window.counts[i::3]) for i in range(3))
    return calls, failed, slow


def rates(window: CallWindow) -> tuple[int, float, float]:
    """Return the number of calls in the window, and the shares of them that failed and that were slow."""
    calls, failed, slow = sums(window)
    return calls, failed / max(calls, 1), slow / max(calls, 1)
