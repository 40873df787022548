"""The ramp: bounds how fast waiting messages start after a breaker closes.

Slots open at a rate of r0·2^(t/τ) a second, τ = 10 s. So N(t) = r0·τ/ln 2·(2^(t/τ) − 1) have opened by t, and slot k
opens at t(k) = τ·log2(1 + k·ln 2/(r0·τ)). From 3/s: 43 slots in 10 s, 130 in 20 s, 1,000 in 46 s.

A slot is the time to ask, and `enter` decides if the call starts: never above the rate, however many messages come
late, and never above the rate used so far: after n calls r0 + n·ln 2/τ, which is the ramp's own if every slot is used.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

DOUBLING_S = 10.0
IDLE_MS = 10_000  # ms; the ramp ends when no message has waited for so long
RATE_MAX = 10_000.0  # calls a second; the ramp ends above this rate
UNUSED_MS = 100  # ms for which unused slots are kept, so that a late worker makes no burst
RATE_LEAST = 1.0  # lowest rate after the ramp fell back, in calls a second
EARLY_MS = 50  # ms of the rate that may start at once, since messages do not arrive to the millisecond
_EXPONENT_MAX = 60.0


class Ramp(Struct, frozen=True, array_like=True):
    """A ramp that began at `start_ms` with `rate` slots a second. Times are ms. `calls` and `bad` count the calls that
    ended in `second` (of the epoch)."""

    start_ms: int
    rate: float
    given: float = 0.0  # number of slots that were taken or have passed
    last_ms: int = 0  # the latest slot that a message waited for
    second: int = 0
    calls: int = 0
    bad: int = 0
    gone: int = 0  # number of calls that started
    tat_ms: float = 0.0  # when a call at exactly the ramp's rate would start next (GCRA)
    late_ms: float = 0.0  # time for the next caller that is early or late to ask again


def start(rate: float, now_ms: int, *, deaf: bool = False) -> Ramp:
    """Return a ramp that starts now. `deaf`: calls that end in this second do not count, since they began before it."""
    return Ramp(now_ms, max(rate, RATE_LEAST), last_ms=now_ms, second=now_ms // 1000 + deaf)


def slots(rate: float, ms: float) -> float:
    """Return N(t), the number of slots opened `ms` after the start of a ramp of `rate`."""
    exponent = min(max(ms, 0.0) / 1000 / DOUBLING_S, _EXPONENT_MAX)
    return rate * DOUBLING_S / math.log(2) * (math.exp2(exponent) - 1)


def slot_ms(rate: float, k: float) -> int:
    """Return t(k) in whole ms, rounded up so that no slot opens early.

    >>> [slot_ms(3, k) for k in (0, 1, 2, 43, 1000)]
    [0, 330, 652, 9954, 45913]
    """
    return math.ceil(DOUBLING_S * 1000 * math.log2(1 + k * math.log(2) / (rate * DOUBLING_S)))


def rate(ramp: Ramp, now_ms: int) -> float:
    """Return the calls per second allowed at `now_ms`: limited by the growth so far, and by the calls that started."""
    exponent = max(0, now_ms - ramp.start_ms) / 1000 / DOUBLING_S
    grown = ramp.rate * math.exp2(min(exponent, _EXPONENT_MAX))
    return min(grown, ramp.rate + ramp.gone * math.log(2) / DOUBLING_S)


def peek(ramp: Ramp, now_ms: int) -> int:
    """Return when the next slot opens; a time in the past if one is open."""
    return max(_slot_ms(ramp, now_ms), math.ceil(ramp.tat_ms - EARLY_MS))


def take(ramp: Ramp, now_ms: int) -> tuple[Ramp, int]:
    """Take the next slot; return its time in ms. At that time the owner still has to call `enter`."""
    at_ms = _slot_ms(ramp, now_ms)
    last_ms = max(ramp.last_ms, at_ms) if at_ms > now_ms else ramp.last_ms
    return replace(ramp, given=_next(ramp, now_ms) + 1, last_ms=last_ms), at_ms


def enter(ramp: Ramp, now_ms: int) -> tuple[Ramp, int]:
    """Let the owner of an open slot start now, or return when the owner asks again."""
    if _room(ramp, now_ms) > 0:
        return _gone(ramp, 1, now_ms), now_ms
    from_ms = max(ramp.late_ms, ramp.tat_ms - EARLY_MS)
    at_ms = math.ceil(from_ms)
    # Spread the callers at the rate reached by then: at the present rate thousands would wait too long.
    growth = math.exp2(min((at_ms - now_ms) / 1000 / DOUBLING_S, _EXPONENT_MAX))
    every_ms = 1000 / min(RATE_MAX, rate(ramp, now_ms) * growth)
    return replace(ramp, late_ms=from_ms + every_ms, last_ms=max(ramp.last_ms, at_ms)), at_ms


def ready(ramp: Ramp, now_ms: int) -> int:
    """Return how many open slots may be used now."""
    open_now = math.floor(slots(ramp.rate, now_ms - ramp.start_ms) - _next(ramp, now_ms)) + 1
    return max(0, min(open_now, _room(ramp, now_ms)))


def take_ready(ramp: Ramp, count: int, now_ms: int) -> Ramp:
    """Take and use `count` slots that `ready` reported as open."""
    return _gone(replace(ramp, given=_next(ramp, now_ms) + count), count, now_ms)


def put_back(ramp: Ramp, count: int, now_ms: int) -> Ramp:
    """Reopen `count` slots that were taken and not used, unless they have become too old."""
    tat_ms = ramp.tat_ms - count * 1000 / rate(ramp, now_ms)
    return replace(ramp, given=max(0.0, ramp.given - count), gone=max(0, ramp.gone - count), tat_ms=max(0.0, tat_ms))


def wanted(ramp: Ramp, now_ms: int) -> Ramp:
    """Record that a message now waits for a slot, so that the ramp does not end."""
    return replace(ramp, last_ms=max(ramp.last_ms, now_ms))


def _room(ramp: Ramp, now_ms: int) -> int:
    """Return how many calls may start now by the rate alone, regardless of slots."""
    early_ms = now_ms + EARLY_MS - max(ramp.tat_ms, float(now_ms))
    return 0 if early_ms < 0 else math.floor(early_ms * rate(ramp, now_ms) / 1000) + 1


def _gone(ramp: Ramp, count: int, now_ms: int) -> Ramp:
    tat_ms = max(ramp.tat_ms, float(now_ms)) + count * 1000 / rate(ramp, now_ms)
    return replace(ramp, gone=ramp.gone + count, tat_ms=tat_ms)


def _slot_ms(ramp: Ramp, now_ms: int) -> int:
    return ramp.start_ms + slot_ms(ramp.rate, _next(ramp, now_ms))


def record(ramp: Ramp, calls: int, bad: int, now_ms: int) -> Ramp:
    """Count `calls` that ended in this second; `bad` of them failed or were throttled."""
    second = now_ms // 1000
    if second < ramp.second or not calls:
        return ramp
    if second > ramp.second:
        return replace(ramp, second=second, calls=calls, bad=bad)
    return replace(ramp, calls=ramp.calls + calls, bad=ramp.bad + bad)


def look(ramp: Ramp, bad_rate: float, now_ms: int) -> Ramp | None:
    """Return the ramp as it is at `now_ms`: None if it has ended, and a new ramp at half the rate once a second
    certainly has at least two bad calls and a larger share of bad calls than `bad_rate`."""
    per_s = rate(ramp, now_ms)
    if now_ms >= ramp.last_ms + IDLE_MS or per_s > RATE_MAX:
        return None
    calls = ramp.calls if now_ms // 1000 > ramp.second else max(ramp.calls, per_s)
    if now_ms // 1000 < ramp.second or ramp.bad < 2 or ramp.bad <= bad_rate * calls:
        return ramp
    return replace(start(per_s / 2, now_ms, deaf=True), tat_ms=ramp.tat_ms)


def _next(ramp: Ramp, now_ms: int) -> float:
    return max(ramp.given, slots(ramp.rate, now_ms - ramp.start_ms - UNUSED_MS))
