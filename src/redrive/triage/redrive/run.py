"""A redrive run, to look at and to steer: `plan.start(…)` and `app.dlq.run(id)` give one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...audit.actor import signed, user
from ...duration import Duration, seconds
from ...errors import ConfigError, Refused
from ...message import Cell
from ...registry import Registry
from ...run_context import refuse_loop
from . import runs
from .plan import Plan, plan_cell, read_plan
from .run_state import (
    FINAL,
    Failure,
    Line,
    RunState,
    Status,
    failures_cell,
    read_failures,
    read_state,
    read_story,
    state_cell,
    story_cell,
)
from .runner import Carrier

if TYPE_CHECKING:
    from ...store import Store

Act = Callable[[RunState, int, str], RunState | None]  # the state, the time, and the line for its story
Drive = Callable[[Callable[[], bool], float | None], None]  # of a test kit's store: until it is so, for so many seconds

LOOK_S = 0.1  # how often `wait` looks


class RunView(Struct, frozen=True, kw_only=True):
    """A run as it stands. `state` is running, paused, stopped, cancelled or done, `phase` what it is at, `why` what it
    waits for or ended of. `counts`: planned, moved, done, failed, skipped, changed, waiting. `per_s` is how many are
    moved a second now. Times are ms of the store's clock."""

    id: str
    state: str
    phase: str
    why: str
    selector: str
    counts: dict[str, int]
    actor: str
    reason: str
    cause: str
    started_ms: int
    over_ms: int
    per_s: float | None
    returned: int
    carried_by: str
    closed: bool


class _Chosen(Struct):
    """What a list of runs reads of each plan."""

    selector: str


class Run:
    """One run. Every property looks it up anew and raises StoreError; the words that steer it take effect with the next
    tick of whoever carries it, within a second or so."""

    def __init__(self, store: Store, id: str, app: Registry | None = None) -> None:
        self.id, self._store, self._app = id, store, app

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    # -- looking

    @property
    def state(self) -> str:
        """running, paused, stopped (by its own rule), cancelled or done."""
        return str(self._state().status)

    @property
    def why(self) -> str:
        """What it waits for, or why it ended."""
        return self._state().why

    @property
    def counts(self) -> dict[str, int]:
        """planned, moved, done, failed, skipped, changed, waiting: see RunState.counts."""
        return self._state().counts

    @property
    def plan(self) -> Plan:
        """What it carries out. Raises ConfigError where that is not kept any more."""
        plan = read_plan(self._store.cells, self.id)
        if plan is None:
            raise self._unknown()
        return plan

    def view(self) -> RunView:
        """All of it at one moment."""
        (plan,) = self._store.cells.read([plan_cell(self.id)])
        return _view(self.id, self._state(), plan, self._store.now_ms())

    def story(self) -> Sequence[Line]:
        """What happened, oldest first: at most 500 lines."""
        return read_story(self._store.cells.read([story_cell(self.id)])[0])

    def failures(self, limit: int | None = None) -> Sequence[Failure]:
        """Messages that it moved and that failed again, with what they failed of: the first thousand at most."""
        return read_failures(self._store.cells.read([failures_cell(self.id)])[0])[:limit]

    # -- steering

    def pause(self, *, actor: str | None = None, reason: str = "") -> None:
        """Move nothing more until it is resumed; verdicts are taken up meanwhile. Raises Refused once it is over."""

        def act(state: RunState, now_ms: int, told: str) -> RunState | None:
            if state.status is Status.PAUSED:
                return None
            return replace(state, status=Status.PAUSED, why=told, phase="paused", still_ms=state.still_ms or now_ms)

        self._change("pause", "paused", act, actor, reason)

    def resume(self, *, actor: str | None = None, reason: str = "") -> None:
        """Go on after a pause. Raises Refused once it is over."""

        def act(state: RunState, now_ms: int, told: str) -> RunState | None:
            if state.status is not Status.PAUSED:
                return None
            return replace(state, status=Status.RUNNING, why="", phase="moving")

        self._change("resume", "resumed", act, actor, reason)

    def cancel(self, *, actor: str | None = None, reason: str = "") -> None:
        """End it: what it has not moved stays where it is. What it moved runs on. Raises Refused once it is over."""
        self._change("cancel", "cancelled", _cancelled, actor, reason)

    def undo(self, *, actor: str | None = None, reason: str = "") -> int:
        """End it, and return what it moved and what has not run yet to where it lay, as if it had never been moved.
        Waits until that is done; how many were returned so far. Raises RuntimeError as `wait`."""
        refuse_loop("run.undo()", "await asyncio.to_thread(run.undo)")

        def act(state: RunState, now_ms: int, told: str) -> RunState | None:
            if state.undo >= 0:
                return None
            ended = state if state.status in FINAL else _cancelled(state, now_ms, told)
            return replace(ended, undo=0, closed=False)

        self._change("undo", "undone", act, actor, reason, final=True)
        self._carry_until(lambda state: state.undo < 0, None)
        return self._state().returned

    def approve(self, *, actor: str | None = None, reason: str = "") -> None:
        """Let it begin, where its gates ask for somebody's approval. Raises Refused where that is somebody else's."""
        gates, name = self.plan.settings.gates, (actor or "").strip() or user()
        if gates is None or gates.approval is None:
            raise Refused(f"run {self.id} asks for nobody's approval: it begins without")
        if not gates.may_approve(name):
            raise Refused(f"run {self.id} asks for the approval of {gates.approval}, not of {name}")

        def act(state: RunState, now_ms: int, told: str) -> RunState | None:
            return None if state.approved_by else replace(state, approved_by=name)

        self._change("approve", "approved", act, name, reason)

    # -- waiting

    def wait(self, timeout: Duration | None = None) -> str:
        """Wait until it is over: done, stopped or cancelled; its state. Carries it meanwhile, where no worker does.
        In a test kit, whose clock and messages stand still otherwise, it works both, as `rd.drain()` does.

        Raises TimeoutError after `timeout`, or where nothing in a kit is left that would end it; the run goes on.
        RuntimeError inside a running event loop, which may be the worker's that it waits for.
        """
        refuse_loop("run.wait()", "await asyncio.to_thread(run.wait)")
        end_s = None if timeout is None else seconds(timeout, "timeout")
        drive: Drive | None = getattr(self._store, "drive", None)
        if drive is None:
            return str(self._carry_until(lambda state: state.status in FINAL, end_s).status)
        drive(lambda: self._state().status in FINAL, end_s)
        state = self._state()
        if state.status not in FINAL:
            waits = f": {state.why}" if state.why else ""
            raise TimeoutError(f"run {self.id} is {state.status} ({state.phase}{waits}), and this kit has come to rest")
        return str(state.status)

    def _carry_until(self, over: Callable[[RunState], bool], timeout: float | None) -> RunState:
        end_s = None if timeout is None else time.monotonic() + timeout
        owner = f"{os.uname().nodename}/{os.getpid()}.{threading.get_ident()}"
        carrier = Carrier(self._store, self.id, owner, _quiet, self._app)
        try:
            while True:
                state = self._state()
                if over(state):
                    return state
                if end_s is not None and time.monotonic() >= end_s:
                    raise TimeoutError(f"run {self.id} is {state.status} ({state.phase}) after {timeout:g} s")
                may_carry = self._app is not None or state.status in FINAL
                wait_s = carrier.tick() if may_carry else None
                time.sleep(min(LOOK_S, LOOK_S if wait_s is None else wait_s))
        finally:
            carrier.release()

    def _state(self) -> RunState:
        state = runs.state_of(self._store, self.id)
        if state is None:
            raise self._unknown()
        return state

    def _change(self, word: str, done: str, act: Act, actor: str | None, reason: str, *, final: bool = False) -> None:
        """`done`: the word for its story; `final`: also once it is over."""
        name, why = signed(actor, reason, f"{word} of run {self.id}", needed=False)
        told = f"{done} by {name}" + (f": {why}" if why else "")

        def refusing(state: RunState, now_ms: int) -> RunState | None:
            if state.status in FINAL and not final:
                raise Refused(f"run {self.id} is {state.status}: it cannot {word} any more")
            return act(state, now_ms, told)

        if runs.change(self._store, self.id, refusing, f"run {word}", told, name, why) is None:
            raise self._unknown()

    def _unknown(self) -> ConfigError:
        return ConfigError(f"run {self.id} is not known, or not kept any more; see `redrive run list`")


def views(store: Store, limit: int) -> list[RunView]:
    """The last runs, those that are under way first, each the newest first. Raises StoreError."""
    known = runs.index(store)
    ids = [*reversed(known.open), *reversed(known.over)][: max(0, limit)]
    cells, plans = store.cells.read([*map(state_cell, ids)]), store.cells.read([*map(plan_cell, ids)])
    found, now_ms = zip(ids, map(read_state, cells), plans, strict=True), store.now_ms()
    return [_view(id, state, plan, now_ms) for id, state, plan in found if state is not None]


def _view(id: str, state: RunState, plan: Cell | None, now_ms: int) -> RunView:
    moving = state.speed is not None and state.status is Status.RUNNING and not state.still_ms
    return RunView(
        id=id,
        state=str(state.status),
        phase=state.phase,
        why=state.why,
        selector="" if plan is None else msgspec.json.decode(plan.value, type=_Chosen).selector,
        counts=state.counts,
        actor=state.actor,
        reason=state.reason,
        cause=state.cause,
        started_ms=state.started_ms,
        over_ms=state.over_ms,
        per_s=state.speed.per_s if moving and state.speed is not None else None,
        returned=state.returned,
        carried_by=state.owner if state.until_ms > now_ms else "",
        closed=state.closed,
    )


def _cancelled(state: RunState, now_ms: int, why: str) -> RunState:
    return replace(state, status=Status.CANCELLED, why=why, phase="over", over_ms=now_ms, still_ms=0)


def _quiet(name: str, text: str, run: str = "", /, count: int = 1) -> None:
    """Nobody observes it here; the story tells the same."""
