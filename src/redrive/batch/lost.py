"""Find batches whose state is gone or unreadable while a member is open or failed: nothing puts their callbacks."""

from __future__ import annotations

from collections.abc import Iterator

from ..ids import root_of
from ..store import Store
from .read import PAGE, wholes
from .ref import roots

READ_MAX = 20_000  # most batches that are looked at


def lost_batches(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the id of each such batch among the first READ_MAX, and a line that says what to do. Raises StoreError."""
    after = ""
    for _ in range(READ_MAX // PAGE):
        ids = store.batch_ids(after=after, limit=PAGE)
        if not ids:
            return
        states = {whole.id: whole for whole in wholes(store, roots(ids))}
        for id, counts in zip(ids, store.batch_counts(ids), strict=True):
            whole = states[root_of(id)]  # a step has no state of its own
            if whole.state is None and counts.open + counts.dead + counts.quarantine:
                why = f"cannot be read ({' '.join(whole.why.split())[:200]})" if whole.why else "is gone"
                yield (
                    whole.id,
                    f"the state of batch {whole.id} {why}, so none of its callbacks is put; its {counts.open:,} open "
                    f"members run on, {counts.dead + counts.quarantine:,} failed: redrive or discard these, and "
                    "enqueue what was to follow by hand",
                )
        after = ids[-1]
