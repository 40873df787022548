"""Batches: messages that are waited for together, with callbacks for their end.

- `state`: what is stored about a batch beside its counts
- `advance`: which callbacks are due now, and which steps begin. Pure
- `parts`: nested batches, and the steps of a workflow, which begin one after another. Pure
- `read`: a batch with its counts and its parts
- `follow`: put the callbacks that are due, in one commit with the new state
- `stop_if`, `stop`: when too many members are dead, and what is done then
- `ref`: follow a batch by its ref
- `fill`: fill a batch with members
- `steps`: enqueue the steps of a workflow as parts
- `lost`: find batches whose state is gone
- `waiting`: count the batches that wait for a failure group

The store counts the members, in the commits that move them (`Store.batch_counts`). Only the calls for callbacks are
here. Most queues call this a batch; it is not a message with several records (`App.enqueue_many` puts these at once).
"""

from __future__ import annotations

from .fill import Batch, batch, new_state, tolerance
from .follow import BatchApp, Complain, follow
from .lost import lost_batches
from .read import batch_cells, with_parts
from .ref import BatchInfo, BatchRef, PartInfo, every, ids_above, infos, listed, roots
from .state import BatchPhase, BatchState
from .steps import PlannedStep, enqueue_steps
from .waiting import group_batches

__all__ = [
    "Batch",
    "BatchApp",
    "BatchInfo",
    "BatchPhase",
    "BatchRef",
    "BatchState",
    "Complain",
    "PartInfo",
    "PlannedStep",
    "batch",
    "batch_cells",
    "enqueue_steps",
    "every",
    "follow",
    "group_batches",
    "ids_above",
    "infos",
    "listed",
    "lost_batches",
    "new_state",
    "roots",
    "tolerance",
    "with_parts",
]
