"""Read batches from the store: their states, their counts, and their parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from ..chain import STEP_HEADER
from ..errors import Unreadable, Unsupported
from ..ids import part_id, wholes_of
from ..message import BatchCounts, Cell, Draft, Filter, Lane, Message
from ..store import Store, pages
from ..stores.validation import admit, admit_batch
from .parts import NOTHING, Part, Seen, summed
from .state import BatchPhase, BatchState, cell_of, state_in

PAGE = 500


class WholeBatch(Struct, frozen=True):
    """A batch as read: its cell, the counts of its own members, and its parts by name. `state` is None if the cell is
    gone or unreadable: `why` says how it is unreadable."""

    id: str
    cell: Cell | None
    state: BatchState | None
    own: BatchCounts
    parts: Mapping[str, Seen] = NOTHING
    why: str = ""

    @property
    def counts(self) -> BatchCounts:
        """The members of the batch and of its parts."""
        return summed(self.own, self.parts)

    @property
    def phase(self) -> BatchPhase:
        assert self.state is not None, "only a batch with a state has a phase"
        return self.state.phase(self.own, self.parts)

    @property
    def waits(self) -> bool:
        """True if no member is open, and a nested batch is not filled."""
        return self.state is not None and self.phase is BatchPhase.WAITING

    @property
    def lost(self) -> str | None:
        """The name of a step whose result is gone; None if there is none, or the batch is cancelled."""
        if self.state is None or self.state.cancelled:
            return None
        return next((name for name, seen in self.parts.items() if seen.lost), None)


def wholes(store: Store, ids: Sequence[str], *, results: bool = False) -> list[WholeBatch]:
    """Read these batches, in the order of `ids`. With `results`, also what the messages of steps that are done
    returned, where a later step takes it and it is not stored yet. Raises StoreError."""
    if not ids:
        return []
    cells = store.cells.read([cell_of(id) for id in ids])
    states = [_state(store, id, cell) for id, cell in zip(ids, cells, strict=True)]
    parts = [
        (part_id(id, part.name), part)
        for id, state in zip(ids, states, strict=True)
        if isinstance(state, BatchState)
        for part in state.parts
    ]
    counts = iter(store.batch_counts([*ids, *(id for id, _ in parts)]))  # after the cells: never older than the states
    owns = [next(counts) for _ in ids]
    seen = iter(_seen(store, parts, [*counts], results))
    return [
        WholeBatch(id, cell, None, own, why=state or "")
        if not isinstance(state, BatchState)
        else WholeBatch(id, cell, state, own, {part.name: next(seen) for part in state.parts})
        for id, cell, state, own in zip(ids, cells, states, owns, strict=True)
    ]


def _state(store: Store, id: str, cell: Cell | None) -> BatchState | str | None:
    try:
        return state_in(store, id, cell)
    except Unreadable as error:
        return str(error)


def _seen(
    store: Store, parts: Sequence[tuple[str, Part]], counts: Sequence[BatchCounts], results: bool
) -> Iterator[Seen]:
    nested = {whole.id: whole for whole in wholes(store, [id for id, part in parts if part.nested], results=results)}
    read = [
        _nested(part, nested[id]) if part.nested else _step(part, n)
        for (id, part), n in zip(parts, counts, strict=True)
    ]
    wanted = {
        part.draft.id: at
        for at, ((_, part), seen) in enumerate(zip(parts, read, strict=True))
        if results and part.keeps and not part.done and seen.counts.done and part.result is None
        if part.draft is not None and part.draft.id is not None
    }
    if wanted:
        for at, found in zip(wanted.values(), store.find([*wanted]), strict=True):
            message = found or (_edited(store, parts[at][0]) if counts[at].died else None)
            if message is not None and message.lane is Lane.DONE and message.result is not None:
                read[at] = replace(read[at], result=message.result)
            elif _is_waived(counts[at]):
                read[at] = replace(read[at], result=b"null")
            elif read[at].done:
                read[at] = replace(read[at], done=False, lost=True)
    return iter(read)


def _is_waived(counts: BatchCounts) -> bool:
    """True if a step of one message is done though that message never was: it died as often as it was opened."""
    return counts.total == 1 and counts.died >= counts.opened


def _edited(store: Store, id: str) -> Message | None:
    """Return the message that an edit put in the place of this step's; None if it is not done, or gone."""
    done = peeked(store, Lane.DONE, Filter(batch=(id,)))
    return next((message for message in done if STEP_HEADER in message.headers), None)


def peeked(store: Store, lane: Lane | str | None, where: Filter) -> Iterator[Message]:
    """Yield these messages, read page by page. Raises StoreError."""
    return chain.from_iterable(pages(store, lane, where))


def _step(part: Part, counts: BatchCounts) -> Seen:
    known = counts if counts.total else part.last
    return Seen(known, known.open > 0, part.is_over(known))


def _nested(part: Part, whole: WholeBatch) -> Seen:
    if whole.state is None:  # forgotten seven days after its end
        return Seen(part.last, whole.cell is not None or not part.begun, part.done)
    return Seen(whole.counts, not whole.phase.is_over, whole.phase is BatchPhase.DONE)


def with_nested(store: Store, ids: Sequence[str]) -> list[WholeBatch]:
    """Read these batches and all batches nested in them; those without a readable state are left out."""
    found, left = list[WholeBatch](), [*ids]
    while left:
        read = [whole for whole in wholes(store, left) if whole.state is not None]
        found += read
        left = [part_id(w.id, part.name) for w in read for part in (w.state.parts if w.state else ()) if part.nested]
    return found


def batch_cells(store: Store) -> Iterator[Cell]:
    """Yield the cells with the states of batches, and those with stored drafts of steps. Raises StoreError."""
    after, seen = "", set[str]()
    while ids := store.batch_ids(after=after, limit=PAGE):
        new = {whole for id in ids for whole in wholes_of(id)} - seen
        seen |= new
        for whole in wholes(store, [*new]):
            lists = [] if whole.state is None else whole.state.lists
            yield from (cell for cell in (whole.cell, *store.cells.read(lists)) if cell is not None)
        after = ids[-1]


def with_parts(store: Store, ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of these batches and of all their parts. Raises StoreError."""
    parts = (part_id(whole.id, name) for whole in with_nested(store, ids) for name in whole.parts)
    return tuple(dict.fromkeys((*ids, *parts)))


def need_counts(store: Store, state: BatchState, steps: Mapping[str, Sequence[Draft]] = {}) -> None:
    """Raise Unsupported if the store keeps no counts of batches or cannot stop this one, EnqueueError for a callback or
    a draft of a step that it cannot take, ConfigError for the name of one."""
    if not (store.traits.batches and store.traits.cells):
        raise Unsupported(
            f"batch {state.name!r}: store {store.traits.name} keeps no counts of batches; put batches into a store on "
            "SQLite, PostgreSQL or Redis, or on SQS with cells="
        )
    if state.stop_if is not None and not store.traits.finds:
        raise Unsupported(
            f"batch {state.name!r}: stop_if= cancels members that wait, and store {store.traits.name} lists none; leave"
            " it out"
        )
    callbacks = (state.on_success, state.on_complete, state.on_death)
    admit([draft for draft in callbacks if draft is not None], store.traits)
    for name, drafts in steps.items():
        admit_batch(name, None)
        admit((replace(draft, batch=part_id(state.id, name)) for draft in drafts), store.traits)
