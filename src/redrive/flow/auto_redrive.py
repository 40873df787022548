"""Decide when a dead message is redriven automatically, and when it is quarantined as poison. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec import Struct

from ..duration import Duration, milliseconds, show
from ..errors import ConfigError
from ..message import Isolate, Message, Redrive
from ..policy import YEAR_S, Backoff, draw
from .gates import Gates
from .limits import per_s
from .rules import number, put, span_s, whole

MOVED_MAX = 10_000  # most messages that one run moves
RATE_PER_S, JITTER = 10.0, 0.2
RUN_S = 10


@dataclass(frozen=True, slots=True, init=False)
class AutoRedrive:
    """Redrive dead messages automatically: `app.queue("crm", auto_redrive=AutoRedrive())`. Durations are kept as float
    seconds.

    - The n-th redrive of a message, n from 1, is min(cap, base·factor^(n-1)) after its death: after 1, 2, 4, 8 and 15
      minutes by default. All redrives count for n, also those by hand. Each gives a new life of `attempts` attempts
      (None: the policy's).
    - A message that dies again after `max_redrives` redrives is poison, and goes to quarantine.
    - At most `batch` times `concurrency` messages are redriven at once; the next ones follow once those have run.
    - `gates` must be open (see Gates): by default the breakers of the dependencies.
    - `rate` limits the redrives, such as "10/s" or "600/m", or a number a second.
    - `jitter` spreads each wait by ± this share of it, drawn for each. It applies after the cap, so that waits at the
      cap stay spread, and may exceed the cap by the share.

    Durations are up to a year (`cap=None`); `cap` is at least `base`, `factor` from 1 up, batch times concurrency up to
    10,000, `jitter` from 0 to 1. Raises ConfigError, ValueError or TypeError.

    >>> [AutoRedrive().delay_s(n) for n in (1, 2, 3, 4, 5, 6, 10**6)]
    [60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 900.0]
    """

    base: float
    factor: float
    cap: float
    max_redrives: int
    batch: int
    concurrency: int
    attempts: int | None
    gates: Gates
    rate: float
    jitter: float

    def __init__(
        self,
        base: Duration = "60s",
        factor: float = 2,
        cap: Duration | None = "15m",
        max_redrives: int = 5,
        batch: int = 10,
        concurrency: int = 5,
        attempts: int | None = None,
        gates: Gates | None = None,  # None: Gates()
        rate: str | float = RATE_PER_S,
        jitter: float = JITTER,
    ) -> None:
        put(
            self,
            base=span_s(base, "auto-redrive base", 0, YEAR_S),
            factor=number(factor, "auto-redrive factor", 1, 1e300),
            cap=YEAR_S if cap is None else span_s(cap, "auto-redrive cap", 0, YEAR_S),
            max_redrives=whole(max_redrives, "auto-redrive max_redrives", 1, 1000),
            batch=whole(batch, "auto-redrive batch", 1, MOVED_MAX),
            concurrency=whole(concurrency, "auto-redrive concurrency", 1, MOVED_MAX),
            attempts=None if attempts is None else whole(attempts, "auto-redrive attempts", 1, 1_000_000),
            gates=Gates() if gates is None else gates,
            rate=per_s(rate, "auto-redrive rate"),
            jitter=number(jitter, "auto-redrive jitter", 0, 1),
        )
        given: object = self.gates
        if not isinstance(given, Gates):
            raise TypeError(
                f"auto-redrive gates {given!r} is refused: expected Gates, such as Gates(window='22:00-06:00')"
            )
        if self.cap < self.base:
            raise ConfigError(
                f"auto-redrive cap {show(self.cap)} is below its base {show(self.base)}; expected no less than that"
            )
        if self.at_once > MOVED_MAX:
            raise ConfigError(
                f"auto-redrive batch {batch} times concurrency {concurrency} is {self.at_once:,} messages at once; "
                f"expected {MOVED_MAX:,} at most"
            )

    @property
    def at_once(self) -> int:
        """The most messages that may be redriven at once."""
        return self.batch * self.concurrency

    @property
    def run_max(self) -> int:
        """The most messages that one run moves: those of RUN_S at the rate, so that starting runs costs little."""
        return max(self.at_once, min(MOVED_MAX, math.ceil(self.rate * RUN_S)))

    def delay_s(self, n: int, u: float = 0.5) -> float:
        """Return the seconds from a message's death to its n-th redrive (n ≥ 1): min(cap, base·factor^(n-1)), ± up to
        `jitter` of that by the uniform draw u in [0, 1). The default is the middle.

        >>> [AutoRedrive(jitter=0.2).delay_s(1, u) for u in (0, 0.25, 0.5, 0.75)]
        [48.0, 54.0, 60.0, 66.0]
        """
        backoff = Backoff(self.base, self.factor, self.cap, "symmetric", self.jitter)
        return backoff.seconds(n - 1, u)

    def delay_ms(self, n: int, u: float = 0.5) -> int:
        """`delay_s` in milliseconds, rounded up."""
        return milliseconds(self.delay_s(n, u))


class Wait(Struct, frozen=True):
    """The decision to leave the message dead until `until_ms`."""

    until_ms: int


def next_step(message: Message, auto: AutoRedrive, now_ms: int) -> Wait | Redrive | Isolate:
    """Decide what happens now to a dead message: it waits, is redriven, or is isolated as poison. Pure."""
    if message.redrives >= auto.max_redrives:
        return Isolate(f"poison: dead again after {_times(message.redrives)}")
    at_ms = due_ms(message, auto)
    return Wait(at_ms) if at_ms > now_ms else Redrive(attempts=auto.attempts)


def due_ms(message: Message, auto: AutoRedrive) -> int:
    """Return when a dead message is redriven. The jitter is a hash per death, the same in every process."""
    u = draw(message.id, message.redrives, 0)  # no claim has the fence 0, so no retry of the message has the same draw
    return (message.rested_ms or 0) + auto.delay_ms(message.redrives + 1, u)


def _times(redrives: int) -> str:
    return "1 redrive" if redrives == 1 else f"{redrives:,} redrives"
