"""Ids that a repeated put gives again, for stores where a put and its swaps are no single commit (SQS).

There a producer or a worker that is killed after its messages were sent, and before the state says so, leaves the put
to be repeated. Members and callbacks then have the ids that they had, so a member counts once, and an idempotent
callback has one effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..ids import derived_id, part_id
from ..message import Draft
from ..store import Store
from .advance import Advance
from .state import BatchState


def members(store: Store, state: BatchState, drafts: Sequence[Draft], first: int) -> list[Draft]:
    """Return the drafts that follow the `first` ones of a batch, each with an id."""
    if store.traits.atomic_moves:
        return [*drafts]
    return [
        draft if draft.id else replace(draft, id=_id(state, f"member/{n}")) for n, draft in enumerate(drafts, first)
    ]


def callbacks(store: Store, old: BatchState, made: Advance) -> list[Draft]:
    """Return the callbacks that are due as the state `old` becomes another one, each with an id."""
    new, drafts = made.state, [*made.callbacks]
    due = (
        (new.on_death, new.alarmed != old.alarmed, f"death/{new.alarmed}"),
        (new.on_complete, new.completions != old.completions, f"complete/{new.completions}"),
        (new.on_success, new.succeeded != old.succeeded, "success"),
    )
    names = [name for draft, is_due, name in due if draft is not None and is_due]
    if store.traits.atomic_moves or len(names) != len(drafts):
        return drafts
    return [replace(draft, id=_id(new, name)) for draft, name in zip(drafts, names, strict=True)]


def drafts(store: Store, old: BatchState | None, made: Advance, members: Sequence[Draft] = ()) -> list[Draft]:
    """Return all that is to be put as a batch goes on: its callbacks, the messages of steps, and stored members of one
    step, each with an id."""
    assert old is not None, "only a batch with a state goes on"
    put = [*callbacks(store, old, made), *made.steps, *members]
    if store.traits.atomic_moves:
        return put
    fed = {part_id(old.id, part.name): part.put for part in old.parts}  # lists of a step's members that were put before
    return [
        draft if draft.id else replace(draft, id=_id(old, f"{draft.batch}/{fed.get(draft.batch or '', 0)}/{n}"))
        for n, draft in enumerate(put)
    ]


def _id(state: BatchState, name: str) -> str:
    return derived_id(state.created_ms, f"{state.id}/{name}")
