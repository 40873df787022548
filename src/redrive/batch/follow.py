"""Put the callbacks of batches and the messages of steps that are due, in one commit with the state that says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..errors import Conflict, EnqueueError, StoreError, Unreadable, Unsupported
from ..ids import wholes_of
from ..message import BatchCounts, BatchMark, Draft, PutResult, Swap
from ..store import Store
from . import repeats
from .advance import Advance, advance
from .read import WholeBatch, wholes
from .redriving import ends_again, redriving
from .state import KEPT_MS, BatchState, stored_drafts, swap_of
from .stop import stop

Complain = Callable[[str, str], None]  # takes the id of a batch, and why its callbacks cannot be put


class BatchApp(Protocol):
    """What puts messages: an app."""

    @property
    def store(self) -> Store: ...

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]: ...


class Due(Struct, frozen=True):
    """A batch as read, and what it calls for: callbacks, messages of steps, and members from a stored list, whose cell
    goes with them."""

    whole: WholeBatch
    made: Advance
    members: tuple[Draft, ...] = ()
    swaps: tuple[Swap, ...] = ()


def follow(app: BatchApp, ids: Sequence[str], complain: Complain) -> None:
    """Put the callbacks that are due for these batches, and what the parts of a batch call for; stop those that are to
    be stopped, and take back the widths of those that ended. Then mark the batches, so that `changed_batches` leaves
    them out. Any number of processes may do so at once. Raises StoreError; what was not put is due at the next call. A
    batch that cannot be stopped or finished keeps no other from being marked."""
    left = dict.fromkeys(whole for id in ids for whole in wholes_of(id))
    settled = dict[str, WholeBatch]()  # nothing is to be put for these now
    failed: StoreError | None = None
    for depth in sorted({id.count("/") for id in left}, reverse=True):  # a part before what it is a part of
        again = [id for id in left if id.count("/") == depth]
        while again:
            again = _advance(app, again, complain, settled)
    for id, whole in [*settled.items()]:
        try:
            if whole.state is not None:
                _finish(app.store, whole.state)
        except StoreError as error:
            del settled[id]  # it stays unmarked
            if isinstance(error, Unsupported):  # at each call
                complain(id, str(error))
            else:
                failed = failed or error
    marks = [mark for id in settled if (mark := _mark(id, settled)) is not None]
    if marks:
        app.store.mark_batches(marks)
    if failed is not None:
        raise failed


def _advance(app: BatchApp, ids: Sequence[str], complain: Complain, settled: dict[str, WholeBatch]) -> list[str]:
    """Put what is due for these batches, and note which are settled; return those with members still to put."""
    again = list[str]()
    most = app.store.traits.batch_max // 4  # a batch may have three callbacks
    for some in _parts(ids, most):
        dues = list[Due]()
        for whole in wholes(app.store, some, results=True):
            try:
                due = _due(app.store, whole)
            except Unreadable as error:  # it stays unmarked, as a key may be here later
                complain(whole.id, str(error))
                continue
            if due is not None:
                dues.append(due)
            else:
                settled[whole.id] = whole
        for due in _put(app, dues, complain):
            settled[due.whole.id] = replace(due.whole, state=due.made.state)
            if due.made.state.feeding is not None:
                again.append(due.whole.id)
    return again


def _due(store: Store, whole: WholeBatch) -> Due | None:
    """Return what a batch calls for; None for nothing. Raises Unreadable if that cannot be known."""
    if whole.why:
        raise Unreadable(whole.why)
    if whole.state is None:
        return None
    more = ends_again(whole) and redriving(store, whole)
    made = advance(whole.state, whole.own, store.now_ms(), whole.parts, more=more)
    feeding = made.state.feeding
    if feeding is None:
        if made.state == whole.state and whole.lost is not None:
            raise Unreadable(
                f"the result of step {whole.lost!r} is gone, as its message was removed or was done without one, so no "
                "step that takes it begins; cancel the workflow and enqueue the rest by hand"
            )
        return None if made.state == whole.state else Due(whole, made)
    try:
        members, swap = stored_drafts(store, whole.id, feeding)
    except Unreadable:
        if made.state == whole.state:
            raise
        return Due(whole, made)
    parts = tuple(replace(part, put=part.put + 1) if part is feeding else part for part in made.state.parts)
    return Due(whole, replace(made, state=replace(made.state, parts=parts)), members, (swap,))


def _put(app: BatchApp, dues: Sequence[Due], complain: Complain) -> list[Due]:
    """Put what is due for these batches in one commit; if one is refused or they are too many, each in its own. Returns
    those written."""
    if not dues:
        return []
    drafts = [draft for due in dues for draft in repeats.drafts(app.store, due.whole.state, due.made, due.members)]
    if len(dues) > 1 and len(drafts) > app.store.traits.batch_max:
        return [done for due in dues for done in _put(app, [due], complain)]
    swaps = [swap_of(app.store, due.made.state, due.whole.cell) for due in dues]
    try:
        app.put(drafts, swaps=[*swaps, *(swap for due in dues for swap in due.swaps)])
    except Conflict:
        return [] if len(dues) == 1 else [done for due in dues for done in _put(app, [due], complain)]
    except EnqueueError as error:
        if len(dues) > 1:
            return [done for due in dues for done in _put(app, [due], complain)]
        complain(dues[0].whole.id, f"what follows is refused: {error}")
        return []
    return [*dues]


def _finish(store: Store, state: BatchState) -> None:
    """Now that this is committed, stop the batch if it is to be stopped, or if it has ended, take back its widths and
    let the stored drafts of steps that did not begin expire with its state."""
    if state.is_stopping:
        with contextlib.suppress(Conflict):
            stop(store, state)
    elif state.ended_ms is not None:
        for queue in state.queues:
            store.configure_group(queue, state.group, width=0)
        for key in state.lists:
            (cell,) = store.cells.read([key])
            if cell is not None:
                store.cells.swap([Swap(key, cell.version, cell.value, KEPT_MS)])


def _mark(id: str, settled: Mapping[str, WholeBatch]) -> BatchMark | None:
    """Return the mark of a batch or step; None for one that must be looked at again: it is being filled or stopped, it
    waits for a nested batch to be filled, which a cancel ends, it lost the result of a step, or what it is a part of is
    not settled or must be looked at again."""
    whole, *rest = (settled.get(one) for one in wholes_of(id))
    if whole is None or whole.own == BatchCounts() or (whole.state is not None and whole.state.is_stopping):
        return None
    if any(one is None or (one.state is not None and one.state.is_filled) or ends_again(one) for one in (whole, *rest)):
        return None
    if any(one is not None and (one.lost is not None or one.waits) for one in (whole, *rest)):
        return None
    above, name = rest[0] if rest else None, id.rpartition("/")[2]
    ended = whole.state is None or whole.state.ended_ms is not None
    if above is not None and above.state is not None:  # it knows how its part ended
        ended = ended and whole.counts in (part.last for part in above.state.parts if part.name == name)
    n = whole.own
    left = n.open or n.dead or n.quarantine  # a dead member may have been imported after the end
    return BatchMark(id, n, KEPT_MS if ended and not left else None)


def _parts(ids: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    for at in range(0, len(ids), max(1, most)):
        yield ids[at : at + max(1, most)]
