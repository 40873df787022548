"""Stop a batch: cancel its members that wait. `advance` decides it, `follow` calls this after that commit."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from ..audit import Audit
from ..message import Cancel, Lane, Swap
from ..store import Store
from .ref import BatchRef, cancel_all
from .state import BatchState, cell_of, state_in, swap_of

ACTOR = "redrive"
AT_ONCE = 10_000  # members that one call cancels; the next one goes on


def stop(store: Store, batch: BatchState) -> None:
    """Cancel members that wait, then note in one commit that the batch is stopped, with an entry in the audit log.

    If it is cut off in between, the next call goes on; of two calls at once, one writes the entry. More than AT_ONCE
    members take several calls. Raises StoreError, Conflict.
    """
    ref = BatchRef(batch.id, store)
    words = cancel_all(store, list(islice(ref.members(Lane.READY), AT_ONCE)))
    if len(words) == AT_ONCE and Cancel.CANCELLED in words:
        return
    counts, audit = ref.counts, Audit(store)
    dead = counts.dead + counts.quarantine
    why = f"stop_if={batch.stop_if}: {dead:,} of {counts.total:,} members are dead"
    entry = audit.entry("cancel", ACTOR, why, count=counts.cancelled, about=f"batch/{batch.id}")

    def write(swaps: list[Swap]) -> None:
        (cell,) = store.cells.read([cell_of(batch.id)])
        state = state_in(store, batch.id, cell)
        if state is not None and not state.stopped:
            store.put([], swaps=[*swaps, swap_of(store, replace(state, stopped=True), cell)])

    audit.commit(entry, write)
