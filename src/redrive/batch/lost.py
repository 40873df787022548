"""Find batches whose state is gone or unreadable while a member is open or failed: nothing puts their callbacks."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Unreadable
from ..ids import wholes_of
from ..store import Store
from .state import cell_of, state_in

PAGE = 500
READ_MAX = 20_000  # most batches that are looked at


def lost_batches(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the id of each such batch among the first READ_MAX, and a line that says what to do. Raises StoreError."""
    after = ""
    for _ in range(READ_MAX // PAGE):
        ids = store.batch_ids(after=after, limit=PAGE)
        if not ids:
            return
        wholes = [wholes_of(id)[-1] for id in ids]  # a step has no state of its own
        cells = store.cells.read([cell_of(id) for id in wholes])
        for id, cell, counts in zip(wholes, cells, store.batch_counts(ids), strict=True):
            why = ""
            try:
                why = "" if state_in(store, id, cell) else "is gone"
            except Unreadable as error:
                why = f"cannot be read ({' '.join(str(error).split())[:200]})"
            if why and counts.open + counts.dead + counts.quarantine:
                yield (
                    id,
                    f"the state of batch {id} {why}, so none of its callbacks is put; its {counts.open:,} open members "
                    f"run on, {counts.dead + counts.quarantine:,} failed: redrive or discard these, and enqueue what "
                    "was to follow by hand",
                )
        after = ids[-1]
