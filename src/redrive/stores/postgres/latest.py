"""Puts that take a key over from what does not wait, and that replace what does, in a transaction of the caller.

The row of the key is locked before the row of its holder. Acks lock them the other way round, so a holder's row is
taken only if it is free: one that is being claimed does not wait any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...message import Draft, PutResult
from .rows import ids, put_rows
from .statements import AnyConnection, Statements


def taken_again(drafts: Sequence[Draft]) -> int | None:
    """Return the index of the first draft that takes the key of an earlier one; None if no draft does."""
    if not any(draft.replace or draft.waiting for draft in drafts):
        return None
    earlier: set[tuple[str, str | None]] = set()
    for n, draft in enumerate(drafts):
        if (draft.replace or draft.waiting) and (draft.task, draft.key) in earlier:
            return n
        if draft.key is not None:
            earlier.add((draft.task, draft.key))
    return None


def take_over(
    st: Statements,
    c: AnyConnection,
    drafts: Sequence[Draft],
    held: dict[int, PutResult],
    over: Sequence[int],
    now: int | None,
) -> list[int]:
    """Settle, for the drafts at these indexes, what becomes of the holders of their keys. Returns the indexes of drafts
    that take the key over; they leave `held`. The others are duplicates of what waits, or have replaced it.

    A holder that waits stays locked up to the commit, so no worker begins it before.
    """
    waiting = dict[str, str | None](st.rows(c, "lock_waiting", ids(sorted(held[n].id for n in over))))
    free, replaced = [], []
    for n in over:
        draft, id = drafts[n], held[n].id
        if id not in waiting or (draft.replace and waiting[id] != draft.queue):
            free.append(n)
            del held[n]
        elif draft.replace:
            replaced.append(n)
    if replaced:
        rows = put_rows([drafts[n] for n in replaced], [held[n].id for n in replaced])
        states = dict(st.rows(c, "replace_waiting", *rows, now))
        held.update({n: PutResult(held[n].id, True, states[held[n].id], True) for n in replaced})
    return free
