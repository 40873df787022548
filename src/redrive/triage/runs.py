"""Redrive runs of a store: begin one, find them, and change one by a person's word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import Conflict, PlanRefused
from ..message import Cell, Swap, version_of
from .audit import TRIES, Audit
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
    from ..store import Store


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


def change(store: Store, id: str, act: Callable[[RunState, int], tuple[RunState, str] | None], entry: str, actor: str,
           reason: str) -> RunState | None:  # fmt: skip
    """Change a run's state by a person's word: `act(state, now_ms)` says to what, and the line for its story; None
    leaves it as it is. One commit, with the audit entry. The state after that; None where there is no such run.

    Raises Conflict where others were faster twenty times, StoreError.
    """
    audit = Audit(store)
    for _ in range(TRIES):
        cell, told, index_cell = store.cells.read([state_cell(id), story_cell(id), INDEX])
        state = read_state(cell)
        if state is None or cell is None:
            return None
        now_ms = store.now_ms()
        wanted = act(state, now_ms)
        if wanted is None:
            return state
        changed, line = wanted
        story = longer(read_story(told), [Line(now_ms, line)])
        swaps = [
            Swap(state_cell(id), cell.version, encode(changed), KEPT_MS),
            Swap(story_cell(id), version_of(told), encode(story), KEPT_MS),
        ]
        if state.closed and not changed.closed:  # somebody has to carry it again
            swaps.append(_opened(index_cell, id))
        try:
            store.put([], swaps=[*swaps, *audit.swaps(audit.entry(entry, actor, reason, line, count=1, about=id))])
        except Conflict:
            continue
        return changed
    raise Conflict(f"run {id} was changed by others {TRIES} times in a row; try again")


def _opened(cell: Cell | None, id: str) -> Swap:
    return Swap(INDEX, version_of(cell), encode(read_index(cell).with_open(id)))
