"""Counts of batches in the PostgreSQL store.

A commit that moves members inserts a row for each batch and kind of move, so that it waits for no other commit. A look
that finds many such rows adds them to the row of the batch, and so does the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec.structs import astuple

from ...errors import StoreError
from ...message import BatchCounts, BatchMark
from .rows import ints, numbers, texts
from .session import Session
from .statements import AnyConnection, Cursor, Statements

FOLD_AT = 64  # rows of a batch at which an exchange that finds them adds them up


def count(st: Statements, c: AnyConnection, new: Mapping[tuple[str, str], int]) -> None:
    """Count new members, in the caller's transaction: how many of a batch begin in which of its counts."""
    st.do(c, "count", texts([id for id, _ in new]), texts([state for _, state in new]), ints([*new.values()]))


def counts(link: Session, st: Statements, ids: Sequence[str]) -> list[BatchCounts]:
    rows = {id: said for id, *said, _ in link.read(lambda c: st.rows(c, "batch_counts", texts(ids)))}
    return [BatchCounts(*rows[id]) for id in ids]


def ended(link: Session, st: Statements, ids: set[str], died: set[str]) -> tuple[str, ...]:
    """Return those of the batches `ids` that have nothing open, and `died`. To be called after the commit that counted
    their members: of two commits at the same time, neither sees the other, but the later look sees both."""
    over = set(died)
    with suppress(StoreError):  # the claims must be returned; `changed_batches` has what is not named here
        rows = link.read(lambda c: st.rows(c, "batch_counts", texts([*ids])))
        over |= {id for id, still_open, *_ in rows if still_open == 0}
        if long := [id for id, *_, waiting in rows if waiting >= FOLD_AT]:
            fold(link, st, long, 1000)
    return tuple(sorted(over))


def fold(link: Session, st: Statements, ids: Sequence[str] | None = None, limit: int | None = None) -> int:
    """Add up to `limit` moves to the rows of their batches; returns how many. A power cut may undo it, which changes
    no count."""

    def work(c: AnyConnection, _: object) -> Cursor:
        st.do(c, "patience", False)
        return st.do(c, "fold_all", limit) if ids is None else st.do(c, "fold", limit, texts(ids))

    return int(link.pipeline(work, locked=False).fetchall()[0][0])


def mark(link: Session, st: Statements, marks: Sequence[BatchMark]) -> None:
    marks = [*{(mark.id, mark.counts): mark for mark in marks}.values()]  # of two that apply the last one counts
    fold(link, st, [mark.id for mark in marks])
    listed = [f"{{{','.join(map(str, astuple(mark.counts)))}}}" for mark in marks]
    args = texts([mark.id for mark in marks]), texts(listed), numbers([mark.keep_ms for mark in marks])
    link.pipeline(lambda c, _: st.do(c, "mark_batches", *args, st.now()))
