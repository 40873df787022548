"""What people do with resting messages in the PostgreSQL store: verdicts, and what retention removes."""

from __future__ import annotations

from collections.abc import Sequence

from ..message import Discard, Handle, Isolate, Keep, Lane, Redrive, Verdict
from ._door import not_yet
from ._postgres_changes import Connection, Statements
from ._postgres_groups import admit, lock
from ._postgres_rows import ids, ints, numbers, plain, texts


def judge(st: Statements, c: Connection, handles: Sequence[Handle], verdict: Verdict, now: int | None) -> list[bool]:
    """Whether each verdict held."""
    resting = [handle for handle in dict.fromkeys(handles) if handle.lane in (Lane.DEAD, Lane.QUARANTINE)]
    seen = (
        ids([handle.id for handle in resting]),
        ints([handle.redrives for handle in resting]),
        texts([handle.lane for handle in resting]),
    )
    match verdict:
        case Redrive():
            delay = verdict.delay_ms + (verdict.delay_ms > 0)
            fresh = (verdict.to_queue, verdict.attempts, verdict.run, verdict.keep_deadline)
            rows = st.rows(c, "redrive", *seen, delay, *fresh, now)
        case Discard():
            rows = st.rows(c, "discard", *seen)
        case Isolate(why):
            rows = st.rows(c, "isolate", *seen, plain(why), now)
        case _:
            raise not_yet(type(verdict).__name__)
    moved = {Handle(id, redrives, Lane(lane)) for id, redrives, lane in rows}
    return _verdicts(handles, verdict, moved)


def _verdicts(handles: Sequence[Handle], verdict: Verdict, moved: set[Handle]) -> list[bool]:
    """One after the other: what an earlier one left as a later one says can be judged again."""
    words = []
    for handle in handles:
        words.append(handle in moved)
        moved.discard(handle)
        if words[-1] and isinstance(verdict, Isolate):
            moved.add(handle._replace(lane=Lane.QUARANTINE))
    return words


def retain(st: Statements, c: Connection, lane: Lane, queue: str, keep: Keep, now: int | None) -> int:
    """Remove what this lane of the queue holds beyond the bounds; how many."""
    rested, seq = None, None
    if keep.count is not None:
        newest = st.rows(c, "nth_newest", lane.value, queue, max(0, keep.count - 1))
        if newest:
            rested, seq = newest[0][0], newest[0][1] + (keep.count == 0)
    if rested is None and keep.age_ms is None:
        return 0
    rows = st.rows(c, "going", lane.value, queue, rested, seq, keep.age_ms, now)
    names = {(queue, group) for _, group, holds, _ in rows if holds}
    if names:
        lock(st, c, names, (), now)
    seen = ids([row[0] for row in rows]), numbers([row[3] for row in rows])
    removed = st.rows(c, "retain", *seen, lane.value)[0][0] if rows else 0
    if names:
        admit(st, c, names, now)
    return int(removed)
