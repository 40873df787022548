"""Find unreadable cells, which other code treats as missing without a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .. import paused_task
from ..flow import dependency as flow
from ..message import UNREADABLE, Cell, decoded
from ..observe import muting
from ..schedule import presence as schedulers
from ..store import Store
from ..triage import annotations as notes
from ..triage import controls, group_states, pauses, purge
from ..triage.auto import machine, rules
from ..triage.redrive import records
from ..worker.flow import transitions
from ..worker.flow.shared_state import NAMES

READ_AT_ONCE = 100
GROUPS_MAX = 1000  # failure groups whose annotations are checked
Kinds = dict[str, Any]  # by key of a cell: the type of the cell's value


def problems(store: Store) -> list[str]:
    """Return a line for each problem that `Store.check` finds, and for each unreadable cell. Raises StoreError."""
    return [*store.check(), *damaged_cells(store)]


def damaged_cells(store: Store) -> list[str]:
    """Return a line for each unreadable cell of runs, rules, machines, annotations, pauses, mutes, schedulers and flow
    control. The audit log has a check of its own. Raises StoreError."""
    if not store.traits.cells:
        return []
    return [
        f"cell {key!r} cannot be read: {' '.join(why.split())[:200]}"
        for kinds in _kinds(store)
        for key, why in _unread(store, kinds)
    ]


def _kinds(store: Store) -> Iterator[Kinds]:
    yield {
        records.INDEX: records.Index,
        records.RECENT: list[str],
        rules.RULES: dict[str, rules.Rule],
        group_states.CELL: group_states.States,
        group_states.RELEASES: dict[str, int],
        machine.INDEX: list[str],
        muting.CELL: dict[str, muting.Mute],
        paused_task.CELL: dict[str, paused_task.PausedTask],
        schedulers.CELL: dict[str, int],
        NAMES: list[str],
    }
    known = decoded(store.cells.read([records.INDEX])[0], records.decode_index, records.Index())
    for id in (*known.open, *known.over):
        yield {
            records.state_cell(id): records.RunState,
            records.plan_cell(id): records.Plan,
            records.story_cell(id): list[records.Line],
            records.failures_cell(id): list[records.Failure],
        }
    scopes = machine.all_scopes(store)
    yield {machine.state_cell(scope): machine.Machine for scope in scopes}
    yield {machine.story_cell(scope): tuple[records.Line, ...] for scope in scopes}
    if store.traits.triages:
        groups = store.failure_groups()[:GROUPS_MAX]
        yield {notes.cell_of(group.fingerprint): notes.Annotation for group in groups}
    yield {pauses.cell_of(queue): pauses.Pause for queue in store.paused()}
    yield {purge.cell_of(queue): list[purge.PurgeNote] for queue in store.queues()}
    names = controls.names(store)
    yield {flow.cell_of(name, ""): flow.DependencyState for name in names}
    yield {transitions.cell_of(name): list[transitions.Transition] for name in names}


def _unread(store: Store, kinds: Kinds) -> Iterator[tuple[str, str]]:
    keys = [*kinds]
    for first in range(0, len(keys), READ_AT_ONCE):
        some = keys[first : first + READ_AT_ONCE]
        for key, cell in zip(some, store.cells.read(some), strict=True):
            if why := _why_unread(cell, kinds[key]):
                yield key, why


def _why_unread(cell: Cell | None, kind: Any) -> str:
    try:
        if cell is not None:
            msgspec.json.decode(cell.value, type=kind)
    except UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    return ""
