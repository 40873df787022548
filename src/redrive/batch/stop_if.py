"""The rule by which a batch stops: `stop_if="dead>20%"`. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

from ..errors import ConfigError
from ..message import BatchCounts

ENDED_MIN = 20  # members that must have ended before a share of them stops a batch
_RULE = re.compile(r"\s*dead\s*>\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(%?)\s*")


class StopIf(Struct, frozen=True):
    """Stop a batch once more than `limit` of its members are dead or in quarantine: a number, or with `share` a
    percentage of all members."""

    limit: float
    share: bool = False

    @classmethod
    def parse(cls, said: str) -> StopIf:
        """Parse "dead>20%" or "dead>100". Raises ConfigError."""
        match = _RULE.fullmatch(str(said))
        if match is not None:
            rule = cls(float(match[1]), bool(match[2]))
            if rule.limit < 100 if rule.share else rule.limit.is_integer():
                return rule
        raise ConfigError(f"stop_if={said!r}: expected a share or a number, such as 'dead>20%' or 'dead>100'")

    def __str__(self) -> str:
        return f"dead>{self.limit:.12g}{'%' if self.share else ''}"

    def is_reached(self, counts: BatchCounts) -> bool:
        """True if too many members are dead, and some are open. A share counts once ENDED_MIN members have ended, and
        duplicates are no part of it."""
        dead, all = counts.dead + counts.quarantine, counts.total - counts.duplicate
        if not counts.open or (self.share and all - counts.open < ENDED_MIN):
            return False
        return dead * 100 > self.limit * all if self.share else dead > self.limit
