"""Put the callbacks of batches that are due, each in one commit with the state that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from ..errors import Conflict, EnqueueError, Unreadable
from ..message import BatchCounts, BatchMark, Cell, Draft, PutResult, Swap
from ..store import Store
from .advance import Advance, advance
from .state import KEPT_MS, BatchState, cell_of, state_in, swap_of

Complain = Callable[[str, str], None]  # takes the id of a batch, and why its callbacks cannot be put


class BatchApp(Protocol):
    """What puts messages: an app."""

    @property
    def store(self) -> Store: ...

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]: ...


class Due(Struct, frozen=True):
    """A batch as read, and what it calls for."""

    cell: Cell | None
    state: BatchState
    counts: BatchCounts
    made: Advance


def follow(app: BatchApp, ids: Sequence[str], complain: Complain) -> None:
    """Put the callbacks that are due for these batches, then mark the batches, so that `changed_batches` leaves them
    out. Any number of processes may do so at once. Raises StoreError; what was not put is due at the next call."""
    store = app.store
    for some in _parts(list(dict.fromkeys(ids)), store.traits.batch_max // 4):  # a batch may have three callbacks
        marks, dues = list[BatchMark](), list[Due]()
        for id, counts, due in _read(store, some, complain):
            if due is None:
                marks.append(_mark(id, counts, ended=True))
            elif due.made.state != due.state:
                dues.append(due)
            elif due.state.sealed:  # one that is being filled stays among the changed ones, until it is sealed
                marks.append(_mark_of(due))
        marks += [_mark_of(due) for due in _put(app, dues, complain) if due.made.state.sealed]
        if marks:
            store.mark_batches(marks)


def _read(store: Store, ids: Sequence[str], complain: Complain) -> Iterator[tuple[str, BatchCounts, Due | None]]:
    """Yield each batch with its counts and what it calls for; None for one whose state is gone or unreadable."""
    cells = store.cells.read([cell_of(id) for id in ids])
    counts = store.batch_counts(ids)  # after the cells: newer counts are never judged by an older state that applies
    now_ms = store.now_ms()
    for id, cell, n in zip(ids, cells, counts, strict=True):
        try:
            state = state_in(store, id, cell)
        except Unreadable as error:
            complain(id, str(error))
            state = None
        yield id, n, None if state is None else Due(cell, state, n, advance(state, n, now_ms))


def _put(app: BatchApp, dues: Sequence[Due], complain: Complain) -> list[Due]:
    """Put the callbacks of these batches in one commit; if one is refused, each in its own. Returns those written."""
    if not dues:
        return []
    drafts = [draft for due in dues for draft in due.made.callbacks]
    try:
        app.put(drafts, swaps=[swap_of(app.store, due.made.state, due.cell) for due in dues])
    except Conflict:
        return [] if len(dues) == 1 else [done for due in dues for done in _put(app, [due], complain)]
    except EnqueueError as error:
        if len(dues) > 1:
            return [done for due in dues for done in _put(app, [due], complain)]
        complain(dues[0].state.id, f"a callback is refused: {error}")
        return []
    return [*dues]


def _mark_of(due: Due) -> BatchMark:
    return _mark(due.state.id, due.counts, ended=due.made.state.ended_ms is not None)


def _mark(id: str, counts: BatchCounts, *, ended: bool) -> BatchMark:
    left = counts.open or counts.dead or counts.quarantine  # a dead member may have been imported after the end
    return BatchMark(id, counts, KEPT_MS if ended and not left else None)


def _parts(ids: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    for at in range(0, len(ids), max(1, most)):
        yield ids[at : at + max(1, most)]
