"""Compute the delay before the next attempt: a term that grows, a cap and jitter.

All of it is pure: values in, values out. The retry index n counts from 0, the first retry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from ..duration import Duration, seconds, show
from ..errors import ConfigError
from ..fault import Fault

Jitter = Literal["none", "additive", "symmetric", "full", "equal", "decorrelated"]
CustomDelay = Callable[[int, Fault | None], float]

YEAR_S = 365 * 86_400.0  # the cap if none is given
CENTURY_S = 100 * YEAR_S  # upper bound of every cap: keeps sums finite and times within a calendar
_JITTERS: tuple[str, ...] = get_args(Jitter)
_N_MAX = 10**18  # a larger n would change no delay, and does not fit into a float


def draw(message_id: str, redrives: int, fence: int) -> float:
    """Return the uniform draw in [0, 1) for one claim of a message.

    It is a hash of the arguments: the same in every process and Python version, without a random source, and another
    one with every fence, so that two messages that collide once do not collide for ever.

    >>> draw("a", 0, 1) == draw("a", 0, 1), draw("a", 0, 1) == draw("a", 0, 2)
    (True, False)
    """
    from hashlib import blake2b  # imported late: it loads OpenSSL

    text = f"{redrives}/{fence}/{message_id}"  # numbers first, so that no two triples share a text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """The delay before retry n: a term d, capped, then spread by jitter. Delays are float seconds.

    The term is exponential, `d = min(cap, base * factor**n)`; see also `fixed`, `linear` and `custom`. A cap above a
    century counts as a century. The kinds of jitter (U is uniform, drawn by the caller):

    - `none` d
    - `additive` d + U(0, share*d)
    - `symmetric` d ± share*d
    - `full` U(0, d)
    - `equal` d/2 + U(0, d/2)
    - `decorrelated` U(base, min(cap, 3*previous)), previous being the last delay, base before the first

    The cap is applied before jitter: delays at the cap stay spread, and may exceed it by `share`. `full`, `equal` and
    `decorrelated` are those of "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).

    >>> [Backoff(base="2s", jitter="none").seconds(n, 0.5) for n in (0, 1, 2, 10, 11, 10**6)]
    [2.0, 4.0, 8.0, 2048.0, 3600.0, 3600.0]
    >>> [Backoff(base="8s", jitter=j).seconds(0, 0.75) for j in ("full", "equal", "decorrelated")]
    [6.0, 7.0, 20.0]
    >>> [Backoff(base="8s", jitter=j, share=0.5).seconds(0, 0.75) for j in ("additive", "symmetric")]
    [11.0, 10.0]
    """

    base: float
    factor: float
    cap: float
    jitter: Jitter
    share: float
    step: float | None
    fn: CustomDelay | None

    def __init__(
        self,
        base: Duration = "2s",
        factor: float = 2,
        cap: Duration | None = "1h",
        jitter: Jitter = "full",
        share: float = 0.1,
        *,
        step: Duration | None = None,
        fn: CustomDelay | None = None,
    ) -> None:
        """`factor` is 1 or more, `share` 0 to 1, `cap` at least `base`, `cap=None` a year; `step` and `fn` belong to
        `linear` and `custom`.

        Raises ConfigError, ValueError or TypeError.
        """
        if jitter not in _JITTERS:
            raise ValueError(f"backoff jitter {jitter!r} is unknown; known: {', '.join(_JITTERS)}")
        if fn is not None and not callable(fn):
            raise TypeError(f"custom backoff {fn!r} is not callable; expected fn(n, fault) -> seconds")
        base_s, cap_s = seconds(base, "backoff base"), YEAR_S if cap is None else seconds(cap, "backoff cap")
        if base_s > cap_s:
            raise ConfigError(
                f"backoff base {show(base_s)} is above its cap {show(cap_s)}, so every delay would be the cap; "
                "expected base= up to the cap, or a larger cap="
            )
        set_fields(
            self,
            base=base_s,
            factor=_number(factor, "backoff factor", 1, 1e300),
            cap=min(CENTURY_S, cap_s),
            jitter=jitter,
            share=_number(share, "backoff share", 0, 1),
            step=None if step is None else seconds(step, "backoff step"),
            fn=fn,
        )

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: Jitter = "none", share: float = 0.1) -> Backoff:
        """Return a backoff with the same delay every time: d = delay.

        >>> [Backoff.fixed("60s").seconds(n, 0.5) for n in (0, 1, 10**6)]
        [60.0, 60.0, 60.0]
        """
        delay_s = seconds(delay, "fixed backoff")
        return cls(delay_s, 1, max(delay_s, YEAR_S), jitter, share)

    @classmethod
    def linear(
        cls,
        base: Duration,
        step: Duration | None = None,
        *,
        cap: Duration | None = None,
        jitter: Jitter = "none",
        share: float = 0.1,
    ) -> Backoff:
        """Return a backoff that grows by `step` (default: `base`): d = min(cap, base + step*n); `cap=None` is a year.

        >>> [Backoff.linear("5s", step="5s", cap="18s").seconds(n, 0.5) for n in range(5)]
        [5.0, 10.0, 15.0, 18.0, 18.0]
        """
        return cls(base, 1, cap, jitter, share, step=base if step is None else step)

    @classmethod
    def custom(
        cls, fn: CustomDelay, *, cap: Duration | None = None, jitter: Jitter = "none", share: float = 0.1
    ) -> Backoff:
        """Return a backoff that calls `fn(n, fault)` for d in seconds; `fault` is None in previews.

        Negative answers count as 0; NaN, infinity and answers above the cap (`None`: a year) as the cap. Errors of `fn`
        pass through; an answer that is not a number raises TypeError. `decorrelated` takes the answer as base.

        >>> [Backoff.custom(lambda n, fault: 10 * n - 5).seconds(n, 0.5) for n in range(3)]
        [0.0, 5.0, 15.0]
        """
        return cls(0, 1, cap, jitter, share, fn=fn)

    def seconds(self, n: int, u: float, previous: float | None = None, fault: Fault | None = None) -> float:
        """Return the delay before retry n for the uniform draw u in [0, 1): finite and never negative, for any n.

        `previous` is the last delay in seconds, for decorrelated jitter; None stands for the base. Raises ValueError
        for a negative n or a draw outside [0, 1].
        """
        if not 0 <= u <= 1:
            raise ValueError(f"draw {u!r} is outside [0, 1)")
        term_s = self._term(n, fault)
        low_s, high_s = self._bounds(term_s) if self.jitter != "decorrelated" else self._walk(term_s, previous)
        return min(high_s, low_s + u * (high_s - low_s))

    def range(self, n: int) -> tuple[float, float]:
        """Return the least and the greatest delay that jitter can give before retry n, in seconds.

        For `decorrelated` the greatest is that of the longest walk, min(cap, base * 3**(n+1)).

        >>> Backoff(jitter="equal").range(2), Backoff(jitter="decorrelated").range(2)
        ((4.0, 8.0), (2.0, 54.0))
        """
        term_s = self._term(n, None)
        if self.jitter != "decorrelated":
            return self._bounds(term_s)
        low_s, _ = self._walk(term_s, None)
        return low_s, max(low_s, _geometric(low_s, 3.0, n + 1, self.cap))

    def _term(self, n: int, fault: Fault | None) -> float:
        if n < 0:
            raise ValueError(f"retry index {n} is negative; the first retry is 0")
        if self.fn is not None:
            return self._asked(n, fault)
        if self.step is not None:
            return min(self.cap, self.base + self.step * min(n, _N_MAX))
        return _geometric(self.base, self.factor, n, self.cap)

    def _asked(self, n: int, fault: Fault | None) -> float:
        assert self.fn is not None
        answer: Any = self.fn(n, fault)
        try:
            asked_s = answer.total_seconds() if isinstance(answer, timedelta) else float(answer)
        except OverflowError:
            asked_s = math.inf
        except (TypeError, ValueError) as error:
            raise TypeError(f"custom backoff gave {answer!r} for retry {n}; expected seconds") from error
        return max(0.0, asked_s) if asked_s < self.cap else self.cap  # NaN is not below the cap

    def _bounds(self, term_s: float) -> tuple[float, float]:
        share_s = self.share * term_s
        match self.jitter:
            case "additive":
                return term_s, term_s + share_s
            case "symmetric":
                return term_s - share_s, term_s + share_s
            case "full":
                return 0.0, term_s
            case "equal":
                return term_s / 2, term_s
            case _:
                return term_s, term_s

    def _walk(self, term_s: float, previous: float | None) -> tuple[float, float]:
        low_s = term_s if self.fn is not None else min(self.base, self.cap)
        return low_s, max(low_s, min(self.cap, 3 * (low_s if previous is None else previous)))


def _geometric(first: float, factor: float, n: int, cap: float) -> float:
    """Return min(cap, first * factor**n), for any n."""
    try:
        return min(cap, first * factor ** min(n, _N_MAX))
    except OverflowError:  # factor**n beyond 1.8e308, from n = 1024 on at factor 2
        if not first or not cap:
            return 0.0
        exponent = math.log2(first) + min(n, _N_MAX) * math.log2(factor)
        return cap if exponent >= math.log2(cap) else min(cap, 2.0**exponent)


def _number(value: float, what: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} {value!r} is refused: expected a number")
    if not least <= value <= most:
        raise ValueError(f"{what} {value!r} is refused: expected a number from {least:g} to {most:g}")
    return float(value)


def set_fields(frozen: object, **values: object) -> None:
    """Set the fields of a frozen dataclass in its own `__init__`."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
