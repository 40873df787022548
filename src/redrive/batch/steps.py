"""Enqueue the steps of a workflow as the parts of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..chain import STEP_HEADER
from ..errors import ConfigError, Conflict, Unsupported
from ..ids import new_id, part_id
from ..message import Draft, Swap
from ..registry import Registry
from ..run_context import Tracing
from . import repeats
from .advance import advance
from .fill import COMMIT_MAX, TX_MAX, raise_refused
from .follow import follow
from .parts import PARTS_MAX, RESULT_KEPT_MS, Part, Tolerance
from .read import need_counts, wholes
from .ref import BatchRef
from .state import BatchState, chunk_swap, swap_of

CHUNK_MAX = 250  # members of a step that are stored in one cell, and put in one commit
CHUNK_BYTES = 200_000


class PlannedStep(Struct, frozen=True):
    """A step to enqueue: one message, `draft`, or many, `drafts`. `after` names the steps before it, `awaits` those
    whose results are its arguments. `keeps`: a later step takes its result."""

    name: str
    draft: Draft | None
    drafts: Sequence[Draft]
    after: tuple[str, ...]
    awaits: dict[str, str]
    tolerance: Tolerance
    keeps: bool


def enqueue_steps(app: Registry, state: BatchState, steps: Sequence[PlannedStep], tx: Any) -> BatchRef:
    """Store the steps and put the messages of those that wait for no other, in one commit but for stored lists of
    drafts, which go before. With `tx`, all of it is in the transaction, and no list is stored of a step that begins
    now. See `Workflow.enqueue`."""
    store, id = app.store, state.id
    need_counts(store, state, {step.name: [step.draft] if step.draft else step.drafts for step in steps})
    if any(step.keeps for step in steps) and not store.traits.keeps_done:
        raise Unsupported(
            f"workflow {state.name!r}: a step takes the result of another, and store {store.traits.name} keeps no "
            "results; let the steps read what they need by a name, or use app.chain(…)"
        )
    (found,) = wholes(store, [id])
    if found.state is not None and found.state.sealed:
        return BatchRef(id, store, True)
    if app.tracing is not None:  # those of later steps, too, which a worker puts
        steps = [_stamped(step, app.tracing) for step in steps]
    chunks = {step.name: [*_chunks(step.drafts)] for step in steps}
    parts = tuple(_part(store.now_ms(), id, step, len(chunks[step.name])) for step in _sorted(state.name, steps))
    if found.state is not None:
        state = found.state  # as an earlier producer began it
    elif not store.traits.atomic_moves:  # so that a repeated put has the same ids
        state = replace(state, filled_ms=store.now_ms(), parts=parts)
        store.cells.swap([swap_of(store, state, None)])
        (found,) = wholes(store, [id])
    begun = state = replace(state, sealed=True, filled_ms=store.now_ms(), parts=state.parts or parts)
    made = advance(state, found.own, store.now_ms(), found.parts)
    state, members = made.state, list[Draft]()
    first = state.feeding
    if tx is not None:  # nothing can follow before it is committed, so all that begins is in it
        feeding = [part for part in state.parts if part.feeds]
        members = [replace(d, batch=part_id(id, p.name)) for p in feeding for some in chunks[p.name] for d in some]
        if len(members) > TX_MAX:
            raise ConfigError(
                f"workflow {state.name!r} begins with {len(members):,} messages of w.map and w.all; with tx= at most "
                f"{TX_MAX:,}"
            )
        state = replace(state, parts=tuple(replace(p, put=p.chunks) if p.feeds else p for p in state.parts))
    elif first is not None:  # what is put now makes sure that a look follows, which puts the rest
        members = [replace(draft, batch=part_id(id, first.name)) for draft in chunks[first.name][0]]
        state = replace(state, parts=tuple(replace(part, put=1) if part is first else part for part in state.parts))
    drafts = repeats.drafts(store, begun, made, members)
    try:
        for part in state.parts:
            for n in range(part.put, part.chunks):
                _store(app, chunk_swap(store, id, part.name, n, chunks[part.name][n]), tx)
        app.put(drafts[:COMMIT_MAX], swaps=[swap_of(store, state, found.cell)], tx=tx)
        for at in range(COMMIT_MAX, len(drafts), COMMIT_MAX):  # only with `tx`
            app.put(drafts[at : at + COMMIT_MAX], tx=tx)
    except Conflict:
        if tx is not None:
            raise
        return BatchRef(id, store, True)  # another producer with the same key was faster
    if first is not None and tx is None:
        follow(app, [id], raise_refused)
    return BatchRef(id, store)


def _stamped(step: PlannedStep, tracing: Tracing) -> PlannedStep:
    draft = None if step.draft is None else tracing.stamp((step.draft,))[0]
    return replace(step, draft=draft, drafts=tracing.stamp(step.drafts))


def _store(app: Registry, swap: Swap, tx: Any) -> None:
    (cell,) = app.store.cells.read([swap.key])  # there after a producer with the same key was killed
    app.put([], swaps=[replace(swap, version=0 if cell is None else cell.version)], tx=tx)


def _sorted(name: str, steps: Sequence[PlannedStep]) -> list[PlannedStep]:
    """Return the steps, each after those that it waits for."""
    if not 0 < len(steps) <= PARTS_MAX:
        raise ConfigError(f"workflow {name!r} has {len(steps)} steps: expected 1 to {PARTS_MAX}")
    named = {step.name: step for step in steps}
    try:
        order = [*TopologicalSorter({step.name: step.after for step in steps}).static_order()]
    except CycleError as error:
        raise ConfigError(
            f"workflow {name!r} has steps that wait for each other: {' → '.join(error.args[1])}"
        ) from None
    return [named[name] for name in order]


def _part(now_ms: int, id: str, step: PlannedStep, chunks: int) -> Part:
    draft = step.draft
    if draft is not None:
        draft = replace(draft, correlation_id=draft.correlation_id or id)
    if draft is not None and step.keeps:
        if draft.key is not None:
            raise ConfigError(f"step {step.name!r} has key=, and a duplicate returns nothing: leave it out")
        headers = {**(draft.headers or {}), STEP_HEADER: step.name}
        draft = replace(draft, keep_ms=max(draft.keep_ms, RESULT_KEPT_MS), id=new_id(now_ms), headers=headers)
    return Part(step.name, False, step.after, draft, step.awaits, chunks, step.tolerance, step.keeps)


def _chunks(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    chunk, size = list[Draft](), 0
    for draft in drafts:
        bytes = len(msgspec.json.encode(draft))
        if chunk and (len(chunk) == CHUNK_MAX or size + bytes > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(draft)
        size += bytes
    if chunk:
        yield chunk
