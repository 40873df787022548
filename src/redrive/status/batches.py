"""Batches that need a person: partial ones, and those that are filled no more though they were never sealed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..batch import BatchInfo, BatchPhase, infos, roots
from ..store import Store
from .hold import words
from .record import Need

READ_MAX = 300  # most batches of each kind that are read for one status: failed ones, changed ones, the first ones
NAMED_MAX = 20  # partial batches that have a need of their own; one more need counts the rest
IDLE_MS = 3_600_000  # ms for which a producer adds no member before that is a need
_PARTIAL = ("--state", "partial")


class ReadBatches(NamedTuple):
    """Batches as read; `unread`: there may be more that need a person."""

    found: Sequence[BatchInfo] = ()
    unread: bool = False


def read_batches(store: Store) -> ReadBatches:
    """Read the first READ_MAX batches. If there are more, also up to READ_MAX with a failed member, and up to READ_MAX
    with news, as has any batch that was never sealed and has nothing open. One call of the store if there are no
    batches. Raises StoreError."""
    ids = store.batch_ids(limit=READ_MAX + 1)
    if len(ids) <= READ_MAX:
        return ReadBatches(infos(store, roots(ids)))
    failed, changed = store.batch_ids(failed=True, limit=READ_MAX), store.changed_batches(limit=READ_MAX)
    unread = READ_MAX in (len(failed), len(changed))
    return ReadBatches(infos(store, roots([*ids[:READ_MAX], *failed, *changed])), unread)


def batch_needs(batches: Sequence[BatchInfo], now_ms: int) -> Iterator[Need]:
    """Yield the needs of these batches: of those that wait for a redrive, and of those whose producer is gone. Pure."""
    for batch in batches:
        if batch.state is BatchPhase.FILLING and now_ms - batch.filled_ms >= IDLE_MS:
            yield _unsealed(batch)
    partial = sorted((batch for batch in batches if batch.waits_for_redrive), key=lambda batch: batch.created_ms)
    yield from map(_partial, partial[:NAMED_MAX])
    if (more := len(partial) - NAMED_MAX) > 0:
        text, next = f"{more:,} more batch{'es are' if more > 1 else ' is'} partial", words("batch", "list", *_PARTIAL)
        yield Need(area="batches", text=text, next=next, place=("batches",), query={"state": "partial"})


def _partial(batch: BatchInfo) -> Need:
    dead, quarantine = batch.counts.dead, batch.counts.quarantine
    text = f"batch {batch.name} is partial: {dead or quarantine:,} of {batch.counts.total:,} members "
    text += f"{'is' if (dead or quarantine) == 1 else 'are'} {'dead' if dead else 'in quarantine'}"
    text += f", {quarantine:,} in quarantine" if dead and quarantine else ""
    lane = () if dead else ("lane:quarantine",)
    next = words("dlq", "list", f"batch:{batch.id}", *lane)
    return Need(area="batches", text=text, next=next, about=f"batch/{batch.id}", place=("batches", batch.id))


def _unsealed(batch: BatchInfo) -> Need:
    total = batch.counts.total
    text = f"batch {batch.name} is not sealed after {total:,} member{'s' * (total != 1)}, and its producer adds no more"
    next = words("batch", "show", batch.id)
    return Need(
        area="batches", text=text, next=next, about=f"batch/{batch.id}", place=("batches", batch.id),
        since_ms=batch.filled_ms,
    )  # fmt: skip
