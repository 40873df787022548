"""Rates whose calls cost more than one permit (`Rate(cost=…)`). Pure.

A call may start when the calls before it are paid, whatever it costs itself, and those after it wait until it is paid.
So an expensive call never waits for ever behind cheap ones, and no cost must be known before a claim. The pace leaves
room in each window for one call of `burst` permits and for what started early, so that a window has at most its number
of permits. `tat_ms` is when all is paid; what `ctx.spend` corrects moves it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .limits import WEIGHT_SLACK, Rate

DEBT_MAX_MS = 3_600_000  # ms; the longest time that one debt holds calls back, or two windows if these are longer
_NEW = 0.1  # the weight of the last call in the mean cost


def cost_of(rate: Rate, args: Sequence[object], kwargs: dict[str, object]) -> float:
    """Return what a call with these arguments costs. Raises what the function of the cost raises, and ValueError or
    TypeError unless it returns a number from 0."""
    cost = rate.cost(*args, **kwargs) if callable(rate.cost) else rate.cost
    return checked(cost, f"the cost of a call by rate {rate.text!r}")


def checked(cost: object, what: str) -> float:
    """Return the cost if it is a finite number from 0. Raises ValueError or TypeError that begins with `what`."""
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        raise TypeError(f"{what} is {cost!r}: expected a number")
    if not 0 <= cost < math.inf:
        raise ValueError(f"{what} is {cost!r}: expected a finite number from 0")
    return float(cost)


def ahead_ms(rate: Rate) -> float:
    """Return how far ahead of the time `tat_ms` may be."""
    window_ms = rate.slack_ms / WEIGHT_SLACK  # in which the pace gives the permits of one window
    return max(DEBT_MAX_MS, 2 * window_ms)


def charge(tat_ms: float, rate: Rate, permits: float, now_ms: int) -> float:
    """Return the new `tat_ms` after permits were spent, or with a number below 0, given back."""
    if permits <= 0:
        return tat_ms + permits * rate.every_ms
    since_ms = max(tat_ms, float(now_ms))
    return max(since_ms, min(since_ms + permits * rate.every_ms, now_ms + ahead_ms(rate)))


def ready(tat_ms: float, rate: Rate, now_ms: int, each: float) -> tuple[int, int]:
    """Return how many calls of the cost `each` could start now, and when the next one may (now_ms if one may now)."""
    room_ms = now_ms + rate.slack_ms - max(tat_ms, float(now_ms))
    if room_ms < 0:
        return 0, math.ceil(tat_ms - rate.slack_ms)
    return math.floor(room_ms / (max(each, 1e-6) * rate.every_ms)) + 1, now_ms


def ask(
    tat_ms: float, rate: Rate, costs: Sequence[float], now_ms: int, later_ms: float, *, reserve: bool
) -> tuple[float, float, list[int]]:
    """Ask for calls of these costs, in order; returns the new `tat_ms`, the new `later_ms` and when each may start
    (now_ms: now). What may not start now spends nothing, but with `reserve` it is paid for, and starts at its time."""
    slots = []
    most_ms = now_ms + ahead_ms(rate)
    later_ms = later_ms if later_ms <= most_ms else 0.0  # the clock was set back
    for cost in costs:
        early_ms = rate.slack_ms if reserve else 2 * rate.slack_ms  # a call that was claimed by the mean cost may go
        if not cost or tat_ms <= now_ms + early_ms:
            slots.append(now_ms)
        else:
            from_ms = tat_ms if reserve else max(tat_ms, later_ms)
            slots.append(max(now_ms + 1, math.ceil(from_ms - rate.slack_ms)))
            if not reserve:
                later_ms = min(from_ms + cost * rate.every_ms, most_ms)  # a cost that a payload says may be enormous
                continue
            later_ms = from_ms
        tat_ms = charge(tat_ms, rate, cost, now_ms) if cost else tat_ms
    return tat_ms, later_ms, slots


def mean(before: float, costs: Sequence[float]) -> float:
    """Return the mean cost of a call after calls of these costs."""
    for cost in costs:
        before = before + _NEW * (cost - before) if before else cost
    return before
