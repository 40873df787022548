"""Limits on calls: a rate with exact slots (`Rate`), the cool-down that a Retry-After requests, and an adaptive
concurrency (`Aimd`).

All of it is pure: values and the time in, values out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

from msgspec import Struct

from ..duration import Duration, seconds
from ..errors import ConfigError
from .rules import number, put, span_s, whole

ASKED_SPREAD = 0.2  # a message that must wait r is due within [r, 1.2·r]
COOL_MAX_S = 6 * 3600.0  # longest cool-down in seconds; after it the next call may get another Retry-After
RATE_MAX_PER_S = 1e6
_BURST_S = 0.1  # seconds of the rate that the default burst holds
_SLIP_MS = 1e-3  # ms; floating point must not move a time past its millisecond
WEIGHT_SLACK = 0.0075  # share of a window of weighted calls that may start early, so that waking costs no permits
_LARGEST = 0.02  # share of a window that the default burst of weighted calls holds
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)([kM]?)\s*/\s*([0-9]*[a-z0-9. ]*)", re.ASCII)
_TIMES = {"": 1, "k": 1_000, "M": 1_000_000}
_PATH = re.compile(r"args(\.[^.\s]+)+")


def read_rate(text: str, what: str = "rate") -> float:
    """Return the rate per second that a text such as "50/s", "5000/h" or "5/2s" gives. Raises ConfigError, whose text
    begins with `what`.

    >>> read_rate("50/s"), read_rate("600/m"), read_rate("5/2s"), read_rate("1.2k/1m")
    (50.0, 10.0, 2.5, 20.0)
    """
    count, window_s = read_window(text, what)
    return count / window_s


def read_window(text: str, what: str = "rate") -> tuple[float, float]:
    """Return the number, and the time in seconds, of a text such as "100k/1m". Raises as `read_rate`."""
    match = _RATE.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        count = float(match[1]) * _TIMES[match[2]]
        window_s = seconds(match[3] if match[3][:1].isdigit() else f"1{match[3]}", "rate")
        if not 0 < count / window_s < RATE_MAX_PER_S:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"{what} {text!r} is refused: expected a number per unit of time, such as 50/s, 600/m or 5/2s"
        ) from None
    return count, window_s


def per_s(rate: str | float, what: str = "rate") -> float:
    """Return the rate per second, given as "20/s", "5000/h" or a number. Raises ConfigError or TypeError.

    >>> per_s("600/m"), per_s(0.5)
    (10.0, 0.5)
    """
    if isinstance(rate, str):
        return read_rate(rate, what)
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(f"{what} {rate!r} is refused: expected text such as '20/s' or '5000/h'")
    if not 0 < rate < RATE_MAX_PER_S:
        raise ConfigError(f"{what} {rate!r} is refused: expected more than 0 a second, or text such as '20/s'")
    return float(rate)


@dataclass(frozen=True, slots=True, init=False)
class Rate:
    """A limit of runs per unit of time, for all messages or for each key.

    A message that comes too early is deferred to the exact time of its slot; slots are 1/rate apart (GCRA, the generic
    cell rate algorithm of ATM, ITU-T I.371). `burst` may come at once after a pause: by default a tenth of a second's
    worth, at least 1. In any T seconds at most `burst + rate * T` runs start.

    `per` gives each key a rate of its own: "group" (the message's group) or the path of an argument, "args.shop.id".

    `cost` makes calls cost permits: a number, or a function of the handler's arguments that returns one (see
    flow/weights.py). At most the rate's number of permits is then spent in any window of its time, as long as no call
    costs more than `burst`: by default a fiftieth of that number, and at most half of it. `unit` names the permits,
    for people and for `ctx.spend`.

    >>> Rate("100/s").per_s, Rate("100/s").burst, Rate("5000/h").burst
    (100.0, 10, 1)
    >>> Rate("100k/1m", cost=len, unit="tokens").words
    '100k/1m of tokens, 2000 a call'
    """

    per_s: float
    burst: int
    per: str | None
    cost: Callable[..., float] | float | None
    unit: str | None
    text: str = field(compare=False)
    every_ms: float  # ms in which the rate gives one permit
    slack_ms: float  # ms by which weighted calls may start early
    others: tuple[Rate, ...]  # further rates that were declared together with this one

    # A checker takes the parameters of a lambda from a type that counts them, and not from `...`.
    @overload
    def __init__(
        self,
        rate: str,
        burst: int | None = None,
        per: str | None = None,
        *,
        cost: Callable[[Any], float],
        unit: str | None = None,
        others: tuple[Rate, ...] = (),
    ) -> None: ...
    @overload
    def __init__(
        self,
        rate: str,
        burst: int | None = None,
        per: str | None = None,
        *,
        cost: Callable[[Any, Any], float],
        unit: str | None = None,
        others: tuple[Rate, ...] = (),
    ) -> None: ...
    @overload
    def __init__(
        self,
        rate: str,
        burst: int | None = None,
        per: str | None = None,
        *,
        cost: Callable[..., float] | float | None = None,
        unit: str | None = None,
        others: tuple[Rate, ...] = (),
    ) -> None: ...
    def __init__(
        self,
        rate: str,
        burst: int | None = None,
        per: str | None = None,
        *,
        cost: Callable[..., float] | float | None = None,
        unit: str | None = None,
        others: tuple[Rate, ...] = (),
    ) -> None:
        """`burst` is from 1 to a million. Raises ConfigError or TypeError."""
        if not isinstance(rate, str):
            raise TypeError(f"rate {rate!r} is refused: expected text such as '100/s' or '5000/h'")
        if per is not None and per != "group" and not _PATH.fullmatch(str(per)):
            raise ConfigError(f"rate per {per!r} is refused: expected 'group' or the path of an argument, 'args.shop'")
        if unit is not None and not str(unit).isidentifier():
            raise ConfigError(f"rate unit {unit!r} is refused: expected a word, such as 'tokens'")
        count, window_s = read_window(rate)
        per_s = count / window_s
        least, most, every_ms, slack_ms = max(1, int(per_s * _BURST_S + _SLIP_MS)), 1_000_000, 1000 / per_s, 0.0
        if cost is not None:
            if not callable(cost):
                number(cost, "rate cost", 0, count)
            if count < 2:
                raise ConfigError(f"rate {rate!r} is refused: with cost=, expected at least 2 permits in its time")
            least, most = max(1, math.ceil(count * _LARGEST)), int(count / 2)
        burst = least if burst is None else whole(burst, "rate burst", 1, most)
        if cost is not None:  # what starts early, and the last call's cost, come on top of the pace in any window
            every_ms = window_s * 1000 / (count * (1 - 2 * WEIGHT_SLACK) - burst)
            slack_ms = count * WEIGHT_SLACK * every_ms
        put(self, per_s=per_s, burst=burst, per=per, cost=cost, unit=unit, text=rate.strip(), others=others)
        put(self, every_ms=every_ms, slack_ms=slack_ms)

    @property
    def all(self) -> tuple[Rate, ...]:
        """This rate, and those that were declared together with it."""
        return (self, *self.others)

    @property
    def words(self) -> str:
        """The rate for people: its text, its unit, and how many may go at once or may cost."""
        size = f"{self.burst} at once" if self.cost is None else f"{self.burst} a call"
        return f"{self.text}{f' of {self.unit}' if self.unit else ''}, {size}"


Rates = Rate | str | Sequence[Rate | str]  # what declares one rate, or several that all hold


def together(rates: Sequence[Rate]) -> Rate:
    """Return one of the rates with the others in its `others`: the first without a cost or `per`, if there is one."""
    first = next((rate for rate in rates if rate.cost is None and rate.per is None), rates[0])
    others = tuple(rate for rate in rates if rate is not first)
    return Rate(first.text, first.burst, first.per, cost=first.cost, unit=first.unit, others=others)


class Beat(Protocol):
    """A rate in slots: the number per second, and the burst after a pause."""

    @property
    def per_s(self) -> float: ...
    @property
    def burst(self) -> float: ...


def ask(tat_ms: float, rate: Beat, now_ms: int, n: int = 1) -> tuple[float, list[int]]:
    """Take the next n slots; returns the new `tat_ms`, and the time of each slot, in whole ms (≤ now_ms: go now).

    `tat_ms` is when the rate will be unused again (the theoretical arrival time), 0 at first. Taking n at once gives
    the same slots as one by one.
    """
    every_ms = 1000 / rate.per_s
    early_ms = (rate.burst - 1) * every_ms + _SLIP_MS
    tat_ms = max(tat_ms, float(now_ms))
    slots = []
    for _ in range(n):
        slots.append(max(now_ms, math.ceil(tat_ms - early_ms)))
        tat_ms += every_ms
    return tat_ms, slots


def ready(tat_ms: float, rate: Beat, now_ms: int) -> tuple[int, int]:
    """Return how many slots could be taken now, and when the next one opens (now_ms if one is open)."""
    every_ms = 1000 / rate.per_s
    open_ms = max(tat_ms, float(now_ms)) - ((rate.burst - 1) * every_ms + _SLIP_MS)
    if open_ms > now_ms:
        return 0, math.ceil(open_ms)
    return math.floor((now_ms - open_ms) / every_ms) + 1, now_ms


class CoolDown(Struct, frozen=True, array_like=True):
    """The end of a pause that a dependency requested, and the time over which waiting messages start after it."""

    until_ms: int = 0
    spread_ms: int = 0


def cool(state: CoolDown, asked_s: float, now_ms: int) -> CoolDown:
    """Return the later of the present and the requested cool-down, at most COOL_MAX_S; the spread is a fifth of it."""
    asked_ms = math.ceil(min(max(0.0, asked_s), COOL_MAX_S) * 1000)
    if now_ms + asked_ms <= state.until_ms:
        return state
    return CoolDown(now_ms + asked_ms, math.ceil(asked_ms * ASKED_SPREAD))


def until(state: CoolDown, u: float) -> int:
    """Return when a message with the uniform draw u in [0, 1) may run: at until_ms + u · spread_ms."""
    return state.until_ms + math.ceil(u * state.spread_ms)


@dataclass(frozen=True, slots=True, init=False)
class Aimd:
    """An adaptive concurrency: additive increase, multiplicative decrease.

    The limit begins at `start`, grows by `up` for each limit's worth of successes, and is multiplied by `down` when the
    dependency reports an overload, at most once per `interval`. It stays within `least` and `most`. (Chiu and Jain,
    1989; TCP's congestion avoidance, RFC 5681.)
    """

    start: float
    least: float
    most: float
    up: float
    down: float
    interval: float

    def __init__(
        self,
        start: float = 10,
        least: float = 1,
        most: float = 1000,
        up: float = 1,
        down: float = 0.5,
        interval: Duration = "1s",
    ) -> None:
        """1 ≤ `least` ≤ `start` ≤ `most` ≤ 100,000; `up` above 0 to 1,000, `down` from 0.01 to 0.99; `interval` up to
        an hour. Raises ConfigError, ValueError or TypeError."""
        put(
            self,
            least=number(least, "aimd least", 1, 100_000),
            most=number(most, "aimd most", 1, 100_000),
            start=number(start, "aimd start", 1, 100_000),
            up=number(up, "aimd up", 1e-6, 1000),
            down=number(down, "aimd down", 0.01, 0.99),
            interval=span_s(interval, "aimd interval", 0, 3600),
        )
        if not self.least <= self.start <= self.most:
            raise ConfigError(f"aimd start {start!r} is refused: expected least {least!r} ≤ start ≤ most {most!r}")


class AimdState(Struct, frozen=True, array_like=True):
    """The limit at present (0: the rule's `start`), and when it last fell."""

    limit: float = 0.0
    fell_ms: int = 0


def height(state: AimdState, aimd: Aimd) -> float:
    """Return the present limit, within the bounds of the rule, even if another rule wrote the state."""
    return min(aimd.most, max(aimd.least, state.limit or aimd.start))


def steer(state: AimdState, aimd: Aimd, successes: int, overloads: int, now_ms: int) -> AimdState:
    """Return the limit after these results. Overloads lower it, unless it fell within the interval; otherwise each
    success adds up/limit. The sum of many small steps, sqrt(limit² + 2·up·n), is independent of the batch size."""
    limit = height(state, aimd)
    if overloads > 0:
        if state.fell_ms and 0 <= now_ms - state.fell_ms < aimd.interval * 1000:
            return state
        return AimdState(max(aimd.least, limit * aimd.down), now_ms)
    if successes <= 0:
        return state
    return AimdState(min(aimd.most, math.sqrt(limit * limit + 2 * aimd.up * successes)), state.fell_ms)


def share(limit: float, workers: Sequence[str], me: str) -> int:
    """Return the share of the limit of all workers that the worker `me` gets.

    The shares add up to the limit, and differ by one at most. With more workers than the limit each still gets one, so
    that every message runs; the sum is then the number of workers.
    """
    names = sorted({*workers, me})
    each, over = divmod(int(limit), len(names))
    return max(1, each + (names.index(me) < over))
