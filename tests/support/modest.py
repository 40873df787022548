"""A store that promises less than those of redrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from redrive.errors import Unsupported
from redrive.message import (
    ClaimRequest,
    Counts,
    Draft,
    Exchange,
    LeaseStatus,
    Message,
    Page,
    PutResult,
    Receipt,
    Settled,
    Settlement,
    Swap,
    version_of,
)
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore


class ModestStore(MemoryStore):
    """What a queue such as SQS promises: no fence, no keys, no crash counts, no batches, short delays."""

    traits = replace(
        MemoryStore.traits,
        name="modest",
        batch_max=10,
        delay_ms_max=900_000,
        fenced=False,
        atomic_moves=False,
        counts_crashes=False,
        unique=False,
        takes_over=False,
        replaces=False,
        exact_counts=False,
        batches=False,
    )
    batch_counts, batch_ids, changed_batches = Store.batch_counts, Store.batch_ids, Store.changed_batches
    mark_batches = Store.mark_batches

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        if any(draft.key is not None for draft in drafts):
            raise Unsupported("this store knows no unique keys")
        return super().put(drafts, swaps=swaps, tx=tx)

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        if any(draft.key is not None for s in settlements for draft in s.follow_ups):
            raise Unsupported("this store knows no unique keys")
        stopped = [self._stopped(s.swaps) for s in settlements]
        done = super().exchange(settlements, asks, swaps=swaps)
        settled = [word if stop else _accepted(word) for stop, word in zip(stopped, done.settled, strict=True)]
        return Exchange(
            settled, [replace(d, message=replace(d.message, crashes=0)) for d in done.deliveries], done.clogged
        )

    def _stopped(self, swaps: Sequence[Swap]) -> bool:
        found = self.cells.read([swap.key for swap in swaps])
        return any(swap.version != version_of(cell) for swap, cell in zip(swaps, found, strict=True))

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        return [message and replace(message, crashes=0) for message in super().find(ids)]

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        words = super().extend(receipts, lease_ms=lease_ms, alone=alone)
        return [LeaseStatus.HELD if word is LeaseStatus.LOST else word for word in words]

    def peek(self, *args: Any, **parts: Any) -> Page:
        page = super().peek(*args, **parts)
        return replace(page, messages=[replace(message, crashes=0) for message in page.messages])

    def counts(self, queue: str | None = None) -> Counts:
        return Counts()


def _accepted(word: Settled) -> Settled:
    return Settled.OK if word is Settled.STALE else word
