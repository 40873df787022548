"""Poison: quarantine of messages that crash their process."""

from __future__ import annotations

from dataclasses import dataclass

from ..duration import Duration, seconds
from .backoff import set_fields

CRASHES_MAX = 10  # crashes in one life after which a message is quarantined in any case; so many are kept as evidence


@dataclass(frozen=True, slots=True, init=False)
class Poison:
    """Quarantines a message that kills its process: after `crashes` that hit it while it ran alone, in one life.

    A crash with other messages in the process marks all of them as suspects and quarantines none. Suspects run again
    together, in smaller groups each time their process dies, in the end alone. `within` bounds the time from the first
    to the last of the crashes alone; without it they may be any time apart. A worker refuses a `within` that could
    never be met: the death of a host shows only when the lease runs out, so crashes are at least a lease and a restart
    apart. Ten crashes of one life, alone or not, quarantine a message in any case. Raises ValueError or TypeError.

    >>> Poison(), Poison(2, within="1h")
    (Poison(crashes=3, within=None), Poison(crashes=2, within=3600.0))
    """

    crashes: int
    within: float | None

    def __init__(self, crashes: int = 3, within: Duration | None = None) -> None:
        if type(crashes) is not int or not 1 <= crashes <= CRASHES_MAX:
            raise ValueError(f"crashes {crashes!r} is refused: expected a whole number from 1 to {CRASHES_MAX}")
        within_s = None if within is None else seconds(within, "within")
        if within_s == 0:
            raise ValueError(f"within {within!r} is refused: expected a duration above 0, or None for no window")
        set_fields(self, crashes=crashes, within=within_s)
