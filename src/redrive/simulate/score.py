"""Keep the forecast of each plan in a cell, and compare it with what the plan's run came to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..message import Swap, decoded
from ..registry import Registry
from ..store import Store
from ..triage.redrive.plan import PlanHandle
from ..triage.redrive.records import KEPT_MS, RunStatus, decode_state, index, state_cell
from .forecast import PlanForecast, forecast_plan

SCORED_MAX = 200  # closed runs that are read; a store lists no more
MOST = 0.9  # the share of forecasts that the score speaks of: nine of ten
_decode = msgspec.json.Decoder(PlanForecast).decode


class ScoredForecast(Struct, frozen=True, kw_only=True):
    """A forecast and what came: how long the run lasted, how many of its messages failed, and its status. `off` is the
    relative error of the duration; None if the run did not last as long as its plan says, or if nothing was foretold.
    `right` is True if it was foretold whether the run would stop itself."""

    run: str
    made_ms: int
    total: int
    over_s: float | None
    came_s: float
    failed: int
    came_failed: int
    status: str
    off: float | None
    right: bool


class PendingForecast(Struct, frozen=True, kw_only=True):
    """A forecast whose run is not over: what was foretold, how many messages have failed so far, and its status."""

    run: str
    made_ms: int
    total: int
    over_s: float | None
    failed: int
    failed_yet: int
    status: str


class Score(Struct, frozen=True):
    """The score of the last forecasts: `count` had a duration to compare, `most` of them were within `within`, as a
    relative error (None without any). The runs of `pending` are not over and do not count."""

    scored: tuple[ScoredForecast, ...]
    count: int
    most: int
    within: float | None
    pending: tuple[PendingForecast, ...] = ()


def forecast_cell(id: str) -> str:
    """Return the key of the cell with the forecast of a plan."""
    return f"run/{id}/forecast"


def foretell(store: Store, app: Registry | None, handle: PlanHandle) -> PlanForecast | None:
    """Return the forecast of a new plan, and keep it with the plan, for the score. Raises StoreError."""
    made = forecast_plan(store, app, handle.plan)
    if made is not None and not store.traits.read_only:
        store.cells.swap([Swap(forecast_cell(handle.id), 0, msgspec.json.encode(made), KEPT_MS)])
    return made


def foretold(store: Store, id: str) -> PlanForecast | None:
    """Return the forecast that was kept with a plan; None if none was. Raises StoreError."""
    return decoded(store.cells.read([forecast_cell(id)])[0], _decode, None)


def read_score(store: Store, last: int = 10) -> Score:
    """Compare the last forecasts whose runs are over with what came, the newest first. Raises StoreError."""
    known = index(store)
    ids = [*reversed(known.open), *reversed(known.over)][:SCORED_MAX]
    scored: list[ScoredForecast] = []
    pending: list[PendingForecast] = []
    cells = store.cells.read([*map(forecast_cell, ids), *map(state_cell, ids)]) if ids else []
    for id, kept, cell in zip(ids, cells[: len(ids)], cells[len(ids) :], strict=True):
        made, state = decoded(kept, _decode, None), decoded(cell, decode_state, None)
        if made is None or state is None or len(scored) >= last or state.status is RunStatus.CANCELLED:
            continue
        if id in known.open:
            pending.append(
                PendingForecast(
                    run=id, made_ms=made.made_ms, total=made.total, over_s=made.over_s, failed=made.failed,
                    failed_yet=state.failed, status=str(state.status),
                )
            )  # fmt: skip
            continue
        came_s = (state.over_ms - state.started_ms) / 1000
        stopped = state.status is RunStatus.STOPPED
        right = stopped == bool(made.stopped)
        off = abs(made.over_s - came_s) / max(came_s, 1.0) if right and made.over_s is not None else None
        scored.append(
            ScoredForecast(
                run=id, made_ms=made.made_ms, total=made.total, over_s=made.over_s, came_s=came_s, failed=made.failed,
                came_failed=state.failed, status=str(state.status), off=off, right=right,
            )
        )  # fmt: skip
    return Score(tuple(scored), *_within(scored), tuple(pending))


def _within(scored: Sequence[ScoredForecast]) -> tuple[int, int, float | None]:
    """Return the number of forecasts, how many nine of ten are, and the error that these do not exceed. A forecast
    without a duration, or of another end, counts as one that was not near."""
    errors = sorted(math.inf if each.off is None else each.off for each in scored)
    most = math.floor(MOST * len(errors)) if len(errors) > 1 else len(errors)
    within = errors[most - 1] if most else math.inf
    while most and math.isinf(within):
        most -= 1
        within = errors[most - 1] if most else math.inf
    return len(errors), most, None if math.isinf(within) else within
