"""Carry out redrive runs in a Kit: with the runners of a worker, whose ticks follow the kit's clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ...events import Notify
from ...triage.redrive.records import RunState, RunStatus, index, read_plan, state_of
from ...triage.redrive.runner import AWAITING, Runner
from ..clock import ManualClock
from .store import KitStore

if TYPE_CHECKING:
    from ...app import App

LOOK_MS = 1_000  # ms until the next check of a run that another process carries out
QUIET_MS = 600_000  # ms by which the clock jumps at most for a run without progress, as while a breaker is open
PATIENCE = 10  # a run without progress is checked again after this fraction of the time that it has waited: a tenth


class OpenRun(Struct):
    carrier: Runner
    next_ms: int = 0  # the time of the run's next tick
    news: tuple[object, ...] = ()  # the run's state without leases, compared to notice a change
    since_ms: int = 0  # the time at which `news` last changed
    awaits: bool = False  # True if a person has to decide how the run continues


class KitRuns:
    """The open redrive runs of one kit. `notice(app)` returns the function that notifies the observers of that app."""

    def __init__(
        self, store: KitStore, clock: ManualClock, apps: Sequence[App], notice: Callable[[App], Notify], owner: str
    ) -> None:
        self._store, self._clock, self._apps, self._notice, self._owner = store, clock, apps, notice, owner
        self._open: dict[str, OpenRun] = {}

    def tick(self) -> None:
        """Continue each open redrive run whose tick is due. Raises errors of its runner, so that the test fails."""
        open_runs = index(self._store).open
        if not (open_runs or self._open):
            return
        self._open = {id: self._open.get(id) or OpenRun(self._carrier(id)) for id in open_runs}
        for id, run in self._open.items():
            now_ms = self._clock.now_ms()
            if now_ms >= run.next_ms:
                wait_s = run.carrier.tick()
                self._saw(run, state_of(self._store, id), now_ms)
                wait_ms = LOOK_MS if wait_s is None else math.ceil(wait_s * 1000)
                run.next_ms = now_ms + max(wait_ms, (now_ms - run.since_ms) // PATIENCE)

    def stir(self, id: str | None) -> None:
        """Let the redrive run with this id tick now, after a message that it moved was settled."""
        run = None if id is None else self._open.get(id)
        if run is not None:
            run.since_ms = run.next_ms = self._clock.now_ms()

    def next_ms(self, end_ms: float) -> float:
        """Return the time of the next tick of a run that needs no decision of a person; infinite if there is none. If
        the clock may jump without an end (`end_ms` infinite), runs without progress for QUIET_MS do not count."""
        now_ms = self._clock.now_ms()
        quiet_ms = QUIET_MS if end_ms == math.inf else math.inf
        going = [run for run in self._open.values() if not run.awaits and now_ms - run.since_ms < quiet_ms]
        return min((run.next_ms for run in going), default=math.inf)

    def release(self) -> None:
        """Release the leases of all runs, so that `undo` of a run's handle or the next call can carry them out."""
        for run in self._open.values():
            run.carrier.release()
        self._open = {}

    def _carrier(self, id: str) -> Runner:
        app = self._app_of(id)
        return Runner(self._store, id, self._owner, self._notice(app), app)

    def _app_of(self, id: str) -> App:
        """Return the app that declares the tasks of the redrive run's messages."""
        plan = read_plan(self._store.cells, id)
        tasks = set() if plan is None else {*plan.by_task}
        return next((app for app in self._apps if not tasks.isdisjoint(app.tasks)), self._apps[0])

    def _saw(self, run: OpenRun, state: RunState | None, now_ms: int) -> None:
        if state is None:
            return
        run.awaits = state.status is RunStatus.PAUSED or state.phase == AWAITING
        news = (state.status, state.why, state.last_tick[2:], state.canary_over, state.undo, state.closed)
        if news != run.news:
            run.news, run.since_ms = news, now_ms
