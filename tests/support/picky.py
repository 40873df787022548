"""A store that refuses some drafts."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.errors import EnqueueError, StoreUnavailable
from redrive.message import ClaimRequest, Exchange, Settlement, Swap
from redrive.stores.memory.store import MemoryStore


class Picky(MemoryStore):
    """Refuses, in an exchange, what its door let through, as a store might that knows more than its traits say."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 1

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        if any(draft.key == "bad" for s in settlements for draft in s.follow_ups):
            raise EnqueueError("it is bad")
        if len(settlements) == 1 and settlements[0].follow_ups and self.failures:
            self.failures -= 1
            raise StoreUnavailable("for a moment")
        return super().exchange(settlements, asks, swaps=swaps)
