"""Batches, said plainly: a list of all members there ever were, with what became of each, counted anew at each look.

A member that is still stored is a `Kept`; of one that left, only the fate is known. Nothing is added up on the way, so
that what a store adds up wrongly is wrong here in no way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tests.support.store_model.kept import Kept

from redrive.message import BatchCounts, BatchMark


class Former(NamedTuple):
    """A member that is not stored any more, or no member. `became`: the field that counts it; None where another took
    its place."""

    batch: str
    became: str | None
    opened: int = 0
    died: int = 0


@dataclass(slots=True)
class Looked:
    """What is known of a batch beside its members. `changed`: its counts are others than those of the last mark."""

    counts: BatchCounts
    changed: bool = True
    expires_ms: int | None = None  # from when on it may be forgotten


class PlainBatches:
    """It holds no message: the stored ones are given to each call."""

    def __init__(self) -> None:
        self.former: list[Former] = []
        self.looked: dict[str, Looked] = {}

    def copy(self) -> PlainBatches:
        """`looked` changes only between the calls, so it is shared."""
        other = PlainBatches()
        other.former, other.looked = [*self.former], self.looked
        return other

    # -- what becomes of members

    def leave(self, k: Kept, became: str | None) -> None:
        if k.batch is not None and k.member:
            self.former.append(Former(k.batch, became, k.opened, k.died))

    def refuse(self, batch: str | None) -> None:
        """A draft for it was a duplicate."""
        if batch is not None:
            self.former.append(Former(batch, "duplicate"))

    # -- counting

    def count(self, kept: Iterable[Kept]) -> dict[str, BatchCounts]:
        """Of each batch that has, or had, a member."""
        members = [*self.former]
        members += [Former(k.batch, k.counted_as, k.opened, k.died) for k in kept if k.batch is not None and k.member]
        tallies: dict[str, dict[str, int]] = {}
        for batch, became, opened, died in members:
            tally = tallies.setdefault(batch, {"opened": 0, "died": 0})
            tally["opened"] += opened
            tally["died"] += died
            if became is not None:
                tally[became] = tally.get(became, 0) + 1
        return {batch: BatchCounts(**tally) for batch, tally in tallies.items()}

    def notice(self, kept: Iterable[Kept]) -> None:
        """After each step: what counts otherwise than before has changed, and is kept."""
        for batch, counts in self.count(kept).items():
            if batch not in self.looked or self.looked[batch].counts != counts:
                self.looked[batch] = Looked(counts)

    def mark(self, mark: BatchMark, now: int) -> None:
        looked = self.looked.get(mark.id)
        if looked is not None and looked.counts == mark.counts:
            looked.changed, looked.expires_ms = False, None if mark.keep_ms is None else now + mark.keep_ms

    def news(self) -> list[str]:
        """Those that changed, and have nothing open or somebody dead."""
        return sorted(
            batch
            for batch, looked in self.looked.items()
            if looked.changed and (not looked.counts.open or looked.counts.dead or looked.counts.quarantine)
        )

    # -- forgetting

    def may_be_forgotten(self, batch: str | None, now: int) -> bool:
        """Its time is over, or nothing is known of it but that it had a member."""
        looked = self.looked.get(batch or "")
        if looked is None:
            return False
        return looked.counts == BatchCounts() or (looked.expires_ms is not None and looked.expires_ms <= now)

    def forget(self, batch: str, kept: Iterable[Kept]) -> None:
        """Those of it that are done and stored still are no members any more, though they name it."""
        del self.looked[batch]
        self.former = [one for one in self.former if one.batch != batch]
        for k in kept:
            k.member = k.member and k.batch != batch
