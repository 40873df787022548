"""While a redrive run moves messages, a batch whose open members are all done has more of them to come."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ..ids import part_id
from ..message import RUNS_CELL, Cell, Filter, Lane, decoded
from ..store import Store
from .read import WholeBatch, peeked, with_parts

TASKS_MAX = 100  # most tasks by which members are looked for


class OpenRuns(Struct, frozen=True):
    """The ids of the runs that are not closed, of what `triage.redrive.records` writes."""

    open: tuple[str, ...] = ()


class MovingRun(Struct, frozen=True):
    """How far a run is, of what `triage.redrive.records` writes: `at` of `total` messages. `why` says what it waits for
    while it moves none."""

    status: str = "running"
    why: str = ""
    at: int = 0
    total: int = 0


class MovedTasks(Struct, frozen=True):
    """The tasks of the messages that a run moves, of what `triage.redrive.records` writes as its plan."""

    by_task: Mapping[str, int] = {}


_runs, _run = msgspec.json.Decoder(OpenRuns).decode, msgspec.json.Decoder(MovingRun).decode
_tasks = msgspec.json.Decoder(MovedTasks).decode


def ends_again(whole: WholeBatch) -> bool:
    """True if nothing is open in a batch whose members were redriven, and some are dead: an episode ends, unless a run
    has more to move."""
    state, counts = whole.state, whole.counts
    if state is None or not state.sealed or not state.completions or not counts.dead + counts.quarantine:
        return False
    return counts.opened > state.opened and not state.is_open(whole.own, whole.parts)


def redriving(store: Store, whole: WholeBatch) -> bool:
    """True if a run that neither is paused nor waits has messages to move, and members of this batch may be among them:
    a dead one is of a task of these messages. Raises StoreError."""
    ids = decoded(store.cells.read([RUNS_CELL])[0], _runs, OpenRuns()).open
    runs = zip(ids, store.cells.read([f"run/{id}" for id in ids]) if ids else [], strict=True)
    moving = [f"run/{id}/plan" for id, cell in runs if _moves(cell)]
    if not moving:
        return False
    each = [decoded(cell, _tasks, MovedTasks()).by_task for cell in store.cells.read(moving)]
    tasks = tuple({task for by_task in each for task in by_task})
    if not all(each) or len(tasks) > TASKS_MAX or not store.traits.triages:
        return True
    batches = (whole.id, *(part_id(whole.id, name) for name in whole.parts))
    if whole.state is not None and any(part.nested for part in whole.state.parts):
        batches = with_parts(store, [whole.id])
    where = Filter(task=tasks, batch=batches)
    return any(True for lane in (Lane.DEAD, Lane.QUARANTINE) for _ in peeked(store, lane, where))


def _moves(cell: Cell | None) -> bool:
    run = decoded(cell, _run, MovingRun())
    return run.status == "running" and not run.why and run.at < run.total
