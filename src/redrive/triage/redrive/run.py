"""Start, follow, control and wait for a redrive run: `plan.start(…)` and `app.dlq.run(id)` return a `Run`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...audit import Audit, signed, user
from ...duration import Duration, seconds
from ...errors import ConfigError, PlanRefused, Refused
from ...message import Cell, Swap, decoded, version_of
from ...presence import Keeper, WorkerInfo
from ...registry import Registry
from ...run_context import refuse_loop
from ...store import Store
from ...system import host
from .gates import OUTSIDE_WINDOW
from .records import (
    FINAL,
    INDEX,
    KEPT_MS,
    Failure,
    Index,
    Line,
    Plan,
    RunState,
    RunStatus,
    decode_index,
    decode_state,
    encode,
    failures_cell,
    keep,
    longer,
    plan_cell,
    read_failures,
    read_index,
    read_plan,
    read_state,
    read_story,
    state_cell,
    state_of,
    story_cell,
)
from .runner import Runner

RunChange = Callable[[RunState, int], RunState | None]
StoryAct = Callable[[RunState, int, str], RunState | None]  # arguments: state, time in ms, line for the story

POLL_S = 0.1  # seconds between checks in `wait`


class RunView(Struct, frozen=True, kw_only=True):
    """A run at one moment. `state` is running, paused, stopped, cancelled or done; `phase` is its activity; `why` is
    the reason of its wait or end. `counts`: planned, moved, done, failed, skipped, changed, waiting. `per_s` is its
    present speed in messages a second, None while it moves none. `carried_by` is the worker that runs it. `still_ms` is
    when its present pause or wait began, 0 while it moves messages. Times are ms of the store's clock."""

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
    still_ms: int = 0

    @property
    def is_outside_window(self) -> bool:
        """True if the run waits for its time of day, as its gates say."""
        return self.why.startswith(OUTSIDE_WINDOW)


class _Selector(Struct):
    """The only field of a plan that a list of runs needs."""

    selector: str = ""


_selector = msgspec.json.Decoder(_Selector).decode


class Run:
    """A redrive run. Every property reads the store again and may raise StoreError. Pause, resume, cancel, undo and
    approve take effect with the next tick of its runner, within about a second."""

    id: str

    def __init__(self, store: Store, id: str, app: Registry | None = None) -> None:
        self.id, self._store, self._app = id, store, app

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def state(self) -> str:
        """The status: running, paused, stopped (by its own rule), cancelled or done."""
        return str(self._state().status)

    @property
    def why(self) -> str:
        """Why the run waits or has ended."""
        return self._state().why

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of messages planned, moved, done, failed, skipped, changed and waiting; see RunState.counts."""
        return self._state().counts

    @property
    def plan(self) -> Plan:
        """The plan of the run. Raises ConfigError if it has expired."""
        plan = read_plan(self._store.cells, self.id)
        if plan is None:
            raise self._unknown()
        return plan

    def view(self) -> RunView:
        """Return the run as it is now."""
        (plan,) = self._store.cells.read([plan_cell(self.id)])
        return _view(self.id, self._state(), plan, self._store.now_ms())

    def story(self) -> Sequence[Line]:
        """Return the events of the run, oldest first: at most STORY_MAX lines."""
        return read_story(self._store.cells.read([story_cell(self.id)])[0])

    def failures(self, limit: int | None = None) -> Sequence[Failure]:
        """Return messages that the run moved and that failed again, with their errors: at most FAILURES_MAX."""
        return read_failures(self._store.cells.read([failures_cell(self.id)])[0])[:limit]

    def pause(self, *, actor: str | None = None, reason: str = "") -> None:
        """Move no messages until resumed; outcomes are still counted. Raises Refused once the run is over."""

        def act(state: RunState, now_ms: int, line: str) -> RunState | None:
            if state.status is RunStatus.PAUSED:
                return None
            return replace(state, status=RunStatus.PAUSED, why=line, phase="paused", still_ms=state.still_ms or now_ms)

        self._change("pause", "paused", act, actor, reason)

    def resume(self, *, actor: str | None = None, reason: str = "") -> None:
        """Continue after a pause. Raises Refused once the run is over."""

        def act(state: RunState, now_ms: int, line: str) -> RunState | None:
            if state.status is not RunStatus.PAUSED:
                return None
            return replace(state, status=RunStatus.RUNNING, why="", phase="moving")

        self._change("resume", "resumed", act, actor, reason)

    def cancel(self, *, actor: str | None = None, reason: str = "") -> None:
        """End the run: unmoved messages stay as they are, and moved ones run. Raises Refused once the run is over."""
        self._change("cancel", "cancelled", _cancelled, actor, reason)

    def undo(self, *, actor: str | None = None, reason: str = "") -> int:
        """End the run, and return the messages that it moved and that have not run yet to their dead lane, or to how
        they waited, as if they had never been moved. Waits until that is done; returns the number of messages returned.
        Raises RuntimeError as `wait`."""
        refuse_loop("run.undo()", "await asyncio.to_thread(run.undo)")

        def act(state: RunState, now_ms: int, line: str) -> RunState | None:
            if state.undo >= 0:
                return None
            ended = state if state.status in FINAL else _cancelled(state, now_ms, line)
            return replace(ended, undo=0, closed=False)

        self._change("undo", "undone", act, actor, reason, final=True)
        self._run_until(lambda state: state.undo < 0, None)
        return self._state().returned

    def approve(self, *, actor: str | None = None, reason: str = "") -> None:
        """Approve a run whose gates require an approval. Raises Refused if they require another person's."""
        gates, name = self.plan.settings.gates, actor or user()
        if gates is None or gates.approval is None:
            raise Refused(f"run {self.id} requires no approval: it starts without one")
        if not gates.may_approve(name, user()):
            raise Refused(f"run {self.id} requires the approval of {gates.approval}, not of {name}")

        def act(state: RunState, now_ms: int, line: str) -> RunState | None:
            return None if state.approved_by else replace(state, approved_by=name)

        self._change("approve", "approved", act, name, reason)

    def wait(self, timeout: Duration | None = None) -> str:
        """Wait until the run is done, stopped or cancelled, and return its state. Runs the redrive in this thread if no
        worker does. In a test kit, advances the clock and delivers messages, as `rd.drain()` does.

        Raises TimeoutError after `timeout`, or in a test kit if nothing is left that would end the run, which stays
        open; RuntimeError inside a running event loop, as the run may need the worker of that loop.
        """
        refuse_loop("run.wait()", "await asyncio.to_thread(run.wait)")
        end_s = None if timeout is None else seconds(timeout, "timeout")
        drive = self._store.drive
        if drive is None:
            return str(self._run_until(lambda state: state.status in FINAL, end_s).status)
        drive(lambda: self._state().status in FINAL, end_s)
        state = self._state()
        if state.status not in FINAL:
            waits = f": {state.why}" if state.why else ""
            raise TimeoutError(
                f"run {self.id} is {state.status} ({state.phase}{waits}), and this kit has nothing left to do"
            )
        return str(state.status)

    def _run_until(self, over: Callable[[RunState], bool], timeout: float | None) -> RunState:
        end_s = None if timeout is None else time.monotonic() + timeout
        owner = f"{host()}/{os.getpid()}.{threading.get_ident()}"
        runner = Runner(self._store, self.id, owner, _quiet, self._app)

        def info() -> WorkerInfo:
            spec, runs = None if self._app is None else self._app.spec, (self.id,) if runner.carries else ()
            return WorkerInfo(name=owner, kind="carrier", app=spec, runs=runs)

        keeper = Keeper(self._store, info, _quiet)
        try:
            while True:
                state = self._state()
                if over(state):
                    return state
                if end_s is not None and time.monotonic() >= end_s:
                    raise TimeoutError(f"run {self.id} is {state.status} ({state.phase}) after {timeout:g} s")
                may_run = self._app is not None or state.status in FINAL
                wait_s = runner.tick() if may_run else None
                if runner.carries and not keeper.is_started:
                    keeper.start()
                time.sleep(min(POLL_S, POLL_S if wait_s is None else wait_s))
        finally:
            keeper.close()
            runner.release()

    def _state(self) -> RunState:
        state = state_of(self._store, self.id)
        if state is None:
            raise self._unknown()
        return state

    def _change(
        self, word: str, done: str, act: StoryAct, actor: str | None, reason: str, *, final: bool = False
    ) -> None:
        """Change this run's state by `act`. `done`: the word in the story; `final`: allowed once the run is over."""
        name, why = signed(actor, reason, f"{word} of run {self.id}", needed=False)
        text = f"{done} by {name}" + (f": {why}" if why else "")

        def refusing(state: RunState, now_ms: int) -> RunState | None:
            if state.status in FINAL and not final:
                raise Refused(f"run {self.id} is {state.status}: it cannot {word} any more")
            return act(state, now_ms, text)

        if change(self._store, self.id, refusing, f"run {word}", text, name, why) is None:
            raise self._unknown()

    def _unknown(self) -> ConfigError:
        return ConfigError(f"run {self.id} is unknown or has expired; see `redrive run list`")


def begin(store: Store, plan: Plan, *, actor: str, reason: str, cause: str = "", swaps: Sequence[Swap] = ()) -> None:
    """Start the run of this plan, in one commit with its audit entry and these swaps. Workers run it from then on.

    Raises PlanRefused if the plan was applied before or has expired, StoreError.
    """
    keep(store.cells, plan, KEPT_MS)  # a crash after this only leaves the plan with a later expiry
    now_ms = store.now_ms()
    state = RunState(actor=actor, reason=reason, cause=cause, started_ms=now_ms, total=plan.total)
    story = [Line(now_ms, f"started by {actor}: {reason}")]
    audit = Audit(store)
    edits = "cancel" if plan.settings.cancel else "edit"
    action = "run-now" if plan.settings.hurry else edits if plan.settings.edit else "redrive"
    entry = audit.entry(action, actor, reason, plan.selector, count=plan.total, about=plan.id)

    def write(audited: list[Swap]) -> None:
        cell, state_now = store.cells.read([INDEX, state_cell(plan.id)])
        if state_now is not None:
            raise PlanRefused(f"plan {plan.id} has been applied already", "draw up another", "applied")
        first = Swap(state_cell(plan.id), 0, encode(state), KEPT_MS)
        story_swap = Swap(story_cell(plan.id), 0, encode(story), KEPT_MS)
        store.put([], swaps=[first, story_swap, _opened(cell, plan.id), *swaps, *audited])

    audit.commit(entry, write)


def change(store: Store, id: str, act: RunChange, action: str, text: str, actor: str, reason: str) -> RunState | None:
    """Change the state of a run for a person, in one commit with the audit entry and the line `text` in its story.

    `act(state, now_ms)` returns the new state, or None for no change. Returns the resulting state; None if there is no
    such run. Raises Conflict after losing to others twenty times, StoreError.
    """
    audit = Audit(store)
    entry = audit.entry(action, actor, reason, text, count=1, about=id)

    def write(audited: list[Swap]) -> RunState | None:
        cell, story, opened = store.cells.read([state_cell(id), story_cell(id), INDEX])
        state, now_ms = read_state(cell), store.now_ms()
        changed = None if state is None else act(state, now_ms)
        if state is None or changed is None:
            return state
        longer_story = longer(read_story(story), [Line(now_ms, text)])
        swaps = [
            Swap(state_cell(id), version_of(cell), encode(changed), KEPT_MS),
            Swap(story_cell(id), version_of(story), encode(longer_story), KEPT_MS),
        ]
        if state.closed and not changed.closed:  # an undo needs a runner again
            swaps.append(_opened(opened, id))
        store.put([], swaps=[*swaps, *audited])
        return changed

    return audit.commit(entry, write)


def _opened(cell: Cell | None, id: str) -> Swap:
    return Swap(INDEX, version_of(cell), encode(read_index(cell).with_open(id)))


def views(store: Store, limit: int) -> list[RunView]:
    """Return the last runs: the open ones, then the closed ones, the newest first in both. Raises StoreError."""
    known = decoded(store.cells.read([INDEX])[0], decode_index, Index())
    ids = [*reversed(known.open), *reversed(known.over)][: max(0, limit)]
    cells, plans = store.cells.read([*map(state_cell, ids)]), store.cells.read([*map(plan_cell, ids)])
    states, now_ms = [decoded(cell, decode_state, None) for cell in cells], store.now_ms()
    rows = zip(ids, states, plans, strict=True)
    return [_view(id, state, plan, now_ms) for id, state, plan in rows if state is not None]


def _view(id: str, state: RunState, plan: Cell | None, now_ms: int) -> RunView:
    moving = state.status is RunStatus.RUNNING and state.phase == "moving" and not state.still_ms
    return RunView(
        id=id,
        state=str(state.status),
        phase=state.phase,
        why=state.why,
        selector=decoded(plan, _selector, _Selector()).selector,
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
        still_ms=state.still_ms,
    )


def _cancelled(state: RunState, now_ms: int, why: str) -> RunState:
    return replace(state, status=RunStatus.CANCELLED, why=why, phase="over", over_ms=now_ms, still_ms=0)


def _quiet(name: str, text: str, run: str = "", /, count: int = 1) -> None:
    """Ignore the notices of a run: its story contains them too."""
