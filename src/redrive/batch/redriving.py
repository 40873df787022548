"""While a redrive run moves messages, a batch whose open members are all done has more of them to come."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..message import RUNS_CELL, Cell, decoded
from ..store import Store
from .read import WholeBatch


class OpenRuns(Struct, frozen=True):
    """The ids of the runs that are not closed, of what `triage.redrive.records` writes."""

    open: tuple[str, ...] = ()


class MovingRun(Struct, frozen=True):
    """How far a run is, of what `triage.redrive.records` writes: `at` of `total` messages."""

    status: str = "running"
    at: int = 0
    total: int = 0


_runs, _run = msgspec.json.Decoder(OpenRuns).decode, msgspec.json.Decoder(MovingRun).decode


def ends_again(whole: WholeBatch) -> bool:
    """True if nothing is open in a batch whose members were redriven, and some are dead: an episode ends, unless a run
    has more to move."""
    state, counts = whole.state, whole.counts
    if state is None or not state.sealed or not state.completions or not counts.dead + counts.quarantine:
        return False
    return counts.opened > state.opened and not state.is_open(whole.own, whole.parts)


def redriving(store: Store) -> bool:
    """True if a run that is not paused has messages to move. Raises StoreError."""
    ids = decoded(store.cells.read([RUNS_CELL])[0], _runs, OpenRuns()).open
    return any(map(_moves, store.cells.read([f"run/{id}" for id in ids]) if ids else []))


def _moves(cell: Cell | None) -> bool:
    run = decoded(cell, _run, MovingRun())
    return run.status == "running" and run.at < run.total
