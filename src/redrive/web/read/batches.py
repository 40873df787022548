"""Batches: the list, and one batch."""

from __future__ import annotations

from collections.abc import Sequence

from ...batch import BatchInfo, BatchPhase, BatchRef, ids_above, infos
from ...errors import ConfigError
from ...present.batches import batch_record, drawn
from ..ask import PageRequest, Problem, Record

ROWS = 50  # number of batches on a page
READ_MAX = 1000  # the most batches that a page reads to find those in a state
STATES = tuple(phase.value for phase in BatchPhase)


def batches(ask: PageRequest) -> Record:
    """Return batches, of all states or of one, by their ids, and `next`, the id after which the next page begins."""
    state = ask.text("state")
    if state and state not in STATES:
        raise Problem(f"there is no state {state!r}", f"expected {', '.join(STATES)}", status=422)
    rows, next = _page(ask, state)
    words = ("--state", state) if state else ()
    return {
        "missing": missing(ask),
        "batches": [batch_record(info) for info in rows],
        "state": state,
        "states": list(STATES),
        "next": next,
        "command": ask.command("batch", "list", *words),
    }


def missing(ask: PageRequest) -> str | None:
    """Return why the store has no batches; None if it may have some."""
    traits = ask.store.traits
    return None if traits.batches and traits.cells else f"Batches are not kept: {traits.name} does not count members."


def _page(ask: PageRequest, state: str) -> tuple[Sequence[BatchInfo], str | None]:
    """Return up to ROWS batches in this state ("" is any), and the id after which there may be more."""
    after, rows = ask.text("after"), list[BatchInfo]()
    if missing(ask):
        return rows, None
    for _ in range(READ_MAX // ROWS):
        ids = ids_above(ask.store, after, ROWS)
        for info in infos(ask.store, ids):
            if not state or info.state.value == state:
                rows.append(info)
                if len(rows) == ROWS:
                    return rows, info.id
        if not ids:
            return rows, None
        after = ids[-1]
    return rows, after


def batch(ask: PageRequest) -> Record:
    """Return one batch: its state, and its members by what became of them."""
    info = batch_of(ask, ask.path["id"]).info()
    record = batch_record(info)
    return {
        **record,
        "parts": [{**part, "drawn": text} for text, part in drawn(record["parts"])],
        "can": {"cancel": info.may_be_cancelled},
        "command": ask.command("batch", "show", info.id),
    }


def batch_of(ask: PageRequest, id: str) -> BatchRef:
    """Return the ref of a batch. Raises Problem if there is none."""
    ref = BatchRef(id, ask.store)
    try:
        if not missing(ask):
            ref.info()
            return ref
    except ConfigError as error:
        why = str(error).partition(": ")[2]
    else:
        why = str(missing(ask))
    raise Problem(f"there is no batch {id}", why, "open the page of batches", 404)
