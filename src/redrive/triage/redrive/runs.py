"""Redrive runs of a store: begin one, find them, and change one by a person's word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...audit.log import Audit
from ...errors import PlanRefused
from ...message import Cell, Swap, version_of
from .plan import Plan, keep
from .run_state import (
    INDEX,
    KEPT_MS,
    Index,
    Line,
    RunState,
    encode,
    longer,
    read_index,
    read_state,
    read_story,
    state_cell,
    story_cell,
)

if TYPE_CHECKING:
    from ...store import Store

Act = Callable[[RunState, int], RunState | None]


def begin(store: Store, plan: Plan, *, actor: str, reason: str, cause: str = "", swaps: Sequence[Swap] = ()) -> None:
    """Write the run of this plan: from then on whoever carries runs carries it. One commit, with its audit entry and
    these swaps.

    Raises PlanRefused where the plan has been applied, or has expired, StoreError.
    """
    keep(store.cells, plan, KEPT_MS)  # a kill after this leaves a plan that is kept for longer
    now_ms = store.now_ms()
    state = RunState(actor=actor, reason=reason, cause=cause, started_ms=now_ms, total=plan.total)
    story = [Line(now_ms, f"started by {actor}: {reason}")]
    audit = Audit(store)
    entry = audit.entry("redrive", actor, reason, plan.selector, count=plan.total, about=plan.id)

    def write(audited: list[Swap]) -> None:
        cell, state_now = store.cells.read([INDEX, state_cell(plan.id)])
        if state_now is not None:
            raise PlanRefused(f"plan {plan.id} has been applied already", "draw up another", "applied")
        first = Swap(state_cell(plan.id), 0, encode(state), KEPT_MS)
        told = Swap(story_cell(plan.id), 0, encode(story), KEPT_MS)
        store.put([], swaps=[first, told, _opened(cell, plan.id), *swaps, *audited])

    audit.commit(entry, write)


def index(store: Store) -> Index:
    """Which runs there are. Raises StoreError."""
    return read_index(store.cells.read([INDEX])[0])


def state_of(store: Store, id: str) -> RunState | None:
    """The run's state now; None where there is no such run. Raises StoreError."""
    return read_state(store.cells.read([state_cell(id)])[0])


def change(store: Store, id: str, act: Act, action: str, told: str, actor: str, reason: str) -> RunState | None:
    """Change a run's state by a person's word: `act(state, now_ms)` says to what; None leaves it as it is. `told` is
    the line for its story. One commit, with the audit entry. The state after that; None where there is no such run.

    Raises Conflict where others were faster twenty times, StoreError.
    """
    audit = Audit(store)
    entry = audit.entry(action, actor, reason, told, count=1, about=id)

    def write(audited: list[Swap]) -> RunState | None:
        cell, story, opened = store.cells.read([state_cell(id), story_cell(id), INDEX])
        state, now_ms = read_state(cell), store.now_ms()
        changed = None if state is None else act(state, now_ms)
        if state is None or changed is None:
            return state
        longer_story = longer(read_story(story), [Line(now_ms, told)])
        swaps = [
            Swap(state_cell(id), version_of(cell), encode(changed), KEPT_MS),
            Swap(story_cell(id), version_of(story), encode(longer_story), KEPT_MS),
        ]
        if state.closed and not changed.closed:  # somebody has to carry it again
            swaps.append(_opened(opened, id))
        store.put([], swaps=[*swaps, *audited])
        return changed

    return audit.commit(entry, write)


def _opened(cell: Cell | None, id: str) -> Swap:
    return Swap(INDEX, version_of(cell), encode(read_index(cell).with_open(id)))
