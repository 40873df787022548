"""Redrive runs as the interleaved walks read them."""

from __future__ import annotations

import msgspec
from tests.support.simulation.interleaved import Interleaved

from redrive.triage.redrive.plan import CHUNK, chunk_cell
from redrive.triage.redrive.records import marks_cell
from redrive.triage.redrive.run import Run


def planned(scene: Interleaved, run: Run) -> list[str]:
    cells = scene.store.cells.read([chunk_cell(run.id, n) for n in range(run.plan.chunks)])
    return [id for cell in cells if cell is not None for id, *_ in msgspec.json.decode(cell.value)]


def letters(scene: Interleaved, run: Run, ids: list[str]) -> dict[str, str]:
    """What the run says became of each message; "." where it has tried none of a chunk."""
    cells = scene.store.cells.read([marks_cell(run.id, n) for n in range(run.plan.chunks)])
    told = [CHUNK * "." if cell is None else cell.value.decode() for cell in cells]
    return dict(zip(ids, "".join(told), strict=False))
