"""Run a redrive, a tick at a time: each tick is one commit by the runner that has the lease.

A tick reads the state of the run, marks the messages of the last batch that were moved, counts the outcomes that have
arrived, applies canary, stop rule, gates and speed, and moves the next batch. The moves and everything written about
them are one commit, which fails as a whole if another process has changed the run meanwhile.

A crash after a batch leaves it recorded as tried. The next runner finds the messages that were moved: they name the
run, or left an outcome in its cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from ...errors import Conflict, PlanRefused
from ...events import Notify
from ...message import (
    UNWATCHED,
    Cell,
    Edit,
    Handle,
    Hasten,
    Lane,
    Message,
    Postpone,
    Redrive,
    Return,
    Swap,
    Verdict,
    WaitFields,
    version_of,
)
from ...policy import draw
from ...registry import Registry
from ...store import Store
from . import pacing
from .gates import SplitDependencies, closed
from .progress import Progress, UnitOfWork, as_planned
from .records import (
    CHUNK,
    FINAL,
    INDEX,
    KEPT_MS,
    OVER_KEPT_MS,
    UNNAMED_KEPT_MS,
    Plan,
    PlanMark,
    RedriveSettings,
    RunState,
    RunStatus,
    batched,
    encode,
    failures_cell,
    keep,
    marks_cell,
    prolong,
    read_index,
    read_plan,
    read_state,
    state_cell,
    story_cell,
)

BATCH = 250  # most messages moved in one commit
SETTLING_S, IDLE_S = 0.25, 1.0  # seconds between two ticks: while outcomes arrive, and idle
ROOM_S = 0.05  # fewest seconds between two ticks while the run waits for outcomes to move more
QUIET_MAX = 20  # ticks in a row without news after which the pause becomes IDLE_S
UNASKED_MS = 5000  # ms that a run waits for a worker with its health check before its state says so
AWAITING = "awaiting approval"  # phase of a run that a person must approve
OUTCOMES_WAITED_MS = 7 * 86_400_000  # ms that a finished run waits for outcomes


class Runner:
    """Runs one redrive as `owner`, while `owner` has its lease. Used by one thread.

    The gates of the run need the app; a runner without an app moves nothing.
    """

    moves: bool
    id: str
    carries: bool

    def __init__(self, store: Store, id: str, owner: str, notice: Notify, app: Registry | None = None) -> None:
        self._store, self.id, self._owner, self._notice, self._app = store, id, owner, notice, app
        self._plan: Plan | None = None
        self._split: SplitDependencies | None = None  # decides which messages are held by key
        self._progress = Progress(store, id)
        self._last_tick: tuple[object, ...] | None = None  # `RunState.last_tick` as this runner last wrote it
        self._refused: set[str] = set()  # ids of messages that a worker claimed before an undo could return them
        self._quiet = 0  # ticks in a row without anything to write
        self.carries = False  # True if this process had the run's lease at its last tick
        self.moves = False  # True if the run has messages left to move, now or after outcomes
        self._canary_queues: Collection[str] = ()  # queues of the run's canary, while the run waits for its outcomes

    def tick(self) -> float | None:
        """Do one tick; return the seconds until the next call. None: the run is over, or another runner has its lease.
        Raises StoreError."""
        (cell,) = self._store.cells.read([state_cell(self.id)])
        state, now_ms = read_state(cell), self._store.now_ms()
        if cell is None or state is None or state.closed:
            self._leave()
            return None
        if state.owner != self._owner and state.held(now_ms):
            self._leave()
            return None
        if state.last_tick != self._last_tick:  # another runner ticked, perhaps under the same name
            self._progress.forget()
        if self._plan is None:
            self._plan = read_plan(self._store.cells, self.id)
            if self._plan is None:
                self._leave()
                return None
            self._split = _split_dependencies(self._app, self._plan)
        if _moving(state) and (health := self._unknown_health(self._plan)) is not None:
            self._wait_for_health(health, state, cell, now_ms)
            return None
        work = UnitOfWork(self.id, state, cell, now_ms, self._owner)
        try:
            wait_s = self._advance(work, self._plan)
        except Conflict:  # another process changed the run: this tick wrote nothing
            self._progress.forget()
            return 0.0
        except BaseException:  # the commit may or may not have happened
            self._progress.forget()
            raise
        self._last_tick, self.carries = work.state.last_tick, not work.state.closed
        self.moves = _moving(work.state) and not work.state.still_ms
        self._canary_queues = _canary_queues(work.state, self._plan)
        for name, text in work.notices:
            self._notice(name, text, self.id)
        return wait_s

    def keeps(self, queues: Collection[str]) -> bool:
        """True if a burst worker on these queues must wait for the run, unless a canary in other queues delays it."""
        return self.moves and not (self._canary_queues and {*queues}.isdisjoint(self._canary_queues))

    def release(self) -> None:
        """Release the lease. Raises StoreError."""
        (cell,) = self._store.cells.read([state_cell(self.id)])
        state = read_state(cell)
        if cell is not None and state is not None and state.owner == self._owner:
            freed = replace(state, owner="", until_ms=0)
            self._store.cells.swap([Swap(state_cell(self.id), cell.version, encode(freed), KEPT_MS)])
        self._progress.forget()

    def _unknown_health(self, plan: Plan) -> str | None:
        """Return the name of the health check in the run's gates if this app does not have it, otherwise None."""
        health = None if plan.settings.gates is None else plan.settings.gates.health
        return None if health is None or self._app is None or health in self._app.healths else health

    def _wait_for_health(self, health: str, state: RunState, cell: Cell, now_ms: int) -> None:
        """Leave the run to workers with this health check. If none takes it, the run's state says why it waits."""
        self._leave()
        if not state.why and state.until_ms + UNASKED_MS < now_ms and state.started_ms + UNASKED_MS < now_ms:
            said = replace(state, phase="waiting", why=f"no worker knows the health check {health!r} of its gates")
            self._store.cells.swap([Swap(state_cell(self.id), cell.version, encode(said), KEPT_MS)])

    def _leave(self) -> None:
        self._progress.forget()
        self.moves = False
        self.carries: bool = False

    def _advance(self, work: UnitOfWork, plan: Plan) -> float:
        self._progress.record(work, unwatched=plan.settings.unwatched)
        self._progress.count_outcomes(work)
        if work.state.undo >= 0:
            return self._undo(work)
        self._apply_rules(work, plan)
        if work.state.status in FINAL:
            return self._wind_up(work, plan)
        batch = self._batch(work, plan)
        if not batch:
            self._commit(work)
            return self._pause_s(work)
        start, verdict = work.state.at, _verdict(self.id, plan.settings, batch, work.now_ms)
        work.state = replace(work.state, at=start + len(batch))
        moved = self._store.triage(batch, verdict, swaps=work.swaps(self._store))
        self._progress.tried(start + len(batch), moved)
        return self._pause_s(work)

    def _commit(self, work: UnitOfWork) -> None:
        swaps = work.swaps(self._store)
        if swaps:
            self._store.put([], swaps=swaps)

    def _apply_rules(self, work: UnitOfWork, plan: Plan) -> None:
        """Apply the canary, the stop rule, the gates and the speed to the run's state."""
        settings, now_ms = plan.settings, work.now_ms
        if work.state.status in FINAL:
            return
        why = self._why_stop(work, plan)
        if why is not None:
            self._end(work, RunStatus.STOPPED, why)
            return
        state = work.state
        if state.at == state.known == state.total and not state.waiting:
            text = f"{state.done:,} done, {state.failed:,} failed"
            self._end(work, RunStatus.DONE, text + (f", {state.changed:,} had changed" if state.changed else ""))
            return
        if state.speed is None:
            slowly = settings.slow_start and not settings.canary
            work.state = replace(state, speed=pacing.begin(settings.rate, slowly, now_ms))
            work.notify("run_started", f"{plan.total:,} messages, planned by {plan.selector or 'everything'!r}")
        self._pause_or_wait(work, plan)
        self._adapt_speed(work, plan)

    def _why_stop(self, work: UnitOfWork, plan: Plan) -> str | None:
        """Return why the run must stop, or None. Ends the canary once it has succeeded."""
        settings, state = plan.settings, work.state
        stop = pacing.StopRule.parse(settings.stop_if) if settings.stop_if else None
        if settings.canary and not state.canary_over:
            tried = state.moved + state.ended
            if state.waiting or (state.at < state.total and tried < settings.canary):
                return None  # some outcomes of the canary are not known yet
            work.state = replace(state, canary_over=True)
            word = pacing.canary(state.moved, stop, state.done, state.failed) if state.moved else pacing.GO_ON
            if word != pacing.GO_ON:
                return word
            work.state = replace(work.state, speed=pacing.begin(settings.rate, settings.slow_start, work.now_ms))
            work.say(f"canary: {state.done:,} of {state.moved:,} done, {state.failed:,} failed: it goes on")
        state = work.state
        planned = state.total - state.changed - state.ended
        return None if stop is None else stop.says(state.done, state.failed, planned)

    def _pause_or_wait(self, work: UnitOfWork, plan: Plan) -> None:
        """Record a pause by a person or a closed gate in the state; the run's clock stops meanwhile."""
        state, now_ms = work.state, work.now_ms
        why, phase = state.why, "paused"
        if state.status is RunStatus.RUNNING:
            why = self._why_closed(plan, state, now_ms)
            phase = _phase(plan, state, why)
            if why and why != state.why:
                work.say(f"waits: {why}")
                work.notify("run_waiting", why)
            elif state.why and not why:
                work.say("goes on")
        still = bool(why) or state.status is RunStatus.PAUSED
        speed = state.speed
        if state.still_ms and speed is not None and not still:
            speed = pacing.rested(speed, now_ms - state.still_ms, now_ms)
        still_ms = (state.still_ms or now_ms) if still else 0
        work.state = replace(state, why=why, phase=phase, still_ms=still_ms, speed=speed)

    def _why_closed(self, plan: Plan, state: RunState, now_ms: int) -> str:
        if state.at >= state.total or self._app is None:
            return ""
        gates, dependencies = plan.settings.gates, plan.dependencies.values()
        why = closed(gates, self._app, dependencies, now_ms, approved=bool(state.approved_by))
        if why is None and self._split:
            n, k = divmod(state.at, CHUNK)
            held = self._split.first_held(self._progress.chunk(n)[k : k + 1], now_ms)
            why = held and held[1]
        return why or ""

    def _adapt_speed(self, work: UnitOfWork, plan: Plan) -> None:
        state = work.state
        if state.speed is None or state.still_ms:
            return
        halve, rate = plan.settings.halve_on_failures, plan.settings.rate
        speed = pacing.with_outcomes(state.speed, rate, work.done, len(work.failures), work.now_ms, halve)
        if speed.per_s < state.speed.per_s:
            work.say(f"slower: {speed.per_s:.3g}/s, as more than a tenth failed within a second")
        work.state = replace(state, speed=speed)

    def _end(self, work: UnitOfWork, status: RunStatus, why: str) -> None:
        work.state = replace(work.state, status=status, why=why, phase="over", over_ms=work.now_ms, still_ms=0)
        left = work.state.total - work.state.at
        work.say(f"{status}: {why}" + (f"; {left:,} were left where they are" if left else ""))
        work.notify(f"run_{status}", why)

    def _batch(self, work: UnitOfWork, plan: Plan) -> list[Handle]:
        """Return the messages to move in this tick."""
        state, settings = work.state, plan.settings
        if state.status is not RunStatus.RUNNING or state.still_ms or state.speed is None or self._app is None:
            return []
        wanted = min(state.total - state.at, BATCH)
        if settings.canary and not state.canary_over:
            wanted = min(wanted, max(0, settings.canary - state.moved - state.ended))
        if settings.at_once is not None:
            wanted = min(wanted, settings.at_once - _under_way(state))
        n, k = divmod(state.at, CHUNK)
        if wanted <= 0:
            return []
        handles = self._progress.chunk(n)[k : k + wanted]
        speed, count = pacing.grant(state.speed, settings.rate, work.now_ms, len(handles))
        held = self._split.first_held(handles[:count], work.now_ms) if self._split else None
        if held is not None:  # move only the messages that precede the held one
            speed, count = pacing.grant(state.speed, settings.rate, work.now_ms, held[0])
        # A tick that moves nothing needs no commit, unless the clock was set back: the run would wait again each time.
        if count or replace(speed, looked_ms=state.speed.looked_ms) != state.speed:
            work.state = replace(state, speed=speed)
        return handles[:count]

    def _pause_s(self, work: UnitOfWork) -> float:
        """Return the seconds until the next tick."""
        state = work.state
        self._quiet = 0 if work.news else self._quiet + 1
        if state.still_ms:
            return IDLE_S
        awaited = state.waiting or state.known < state.at
        tick_s = SETTLING_S if awaited and self._quiet < QUIET_MAX else IDLE_S
        if state.status is not RunStatus.RUNNING or state.at >= state.total or state.speed is None:
            return tick_s
        rate, at_once = (None, None) if self._plan is None else (self._plan.settings.rate, self._plan.settings.at_once)
        if at_once is not None and _under_way(state) >= at_once:  # the run waits for outcomes to make room
            return min(max(at_once / (rate or pacing.MAX_PER_S) / 2, ROOM_S), tick_s)
        return min(max(pacing.next_ms(state.speed, rate, work.now_ms) - work.now_ms, 10) / 1000, tick_s)

    def _undo(self, work: UnitOfWork) -> float:
        """Move messages that the run moved and that have not run yet back to where they were, one chunk per tick."""
        n = work.state.undo
        if n * CHUNK >= work.state.known:
            work.say(f"{work.state.returned:,} returned unrun; {work.state.waiting:,} under way")
            work.state = replace(work.state, undo=-1)
            self._commit(work)
            return 0.0
        unwatched = self._plan is not None and self._plan.settings.unwatched
        places = self._progress.marked_in(work, n, PlanMark.DONE if unwatched else PlanMark.WAITING)
        planned = [self._progress.chunk(n)[k] for k in places]
        messages = self._progress.find([handle.id for handle in planned])
        back = [k for k, h, m in zip(places, planned, messages, strict=True) if as_planned(m, h, self.id)]
        unrun = [
            (m.handle._replace(fence=h.fence), h)
            for h, m in zip(planned, messages, strict=True)
            if m is not None and _unrun(m, self.id, h) and m.id not in self._refused
        ][:BATCH]
        self._progress.returned(work, n, back)
        work.state = replace(work.state, undo=n if unrun else n + 1)
        handles = [handle for handle, _ in unrun]
        if not handles:
            self._commit(work)
            return 0.0
        # the next tick reads which messages were returned
        verdict = _undoing(self.id, None if self._plan is None else self._plan.settings, unrun)
        moved = self._store.triage(handles, verdict, swaps=work.swaps(self._store))
        self._refused.update(handle.id for handle, done in zip(handles, moved, strict=True) if not done)
        return 0.0

    def _wind_up(self, work: UnitOfWork, plan: Plan) -> float:
        """Close a run that is over, once all outcomes are known or it has waited too long for them."""
        state = work.state
        if work.news:
            self._commit(work)
            return 0.0
        if state.waiting and work.now_ms < state.over_ms + OUTCOMES_WAITED_MS:
            self._commit(work)
            return IDLE_S
        with contextlib.suppress(PlanRefused):  # the plan has expired
            keep(self._store.cells, plan, OVER_KEPT_MS)
        for numbers in batched(plan):
            prolong(self._store.cells, [marks_cell(self.id, n) for n in numbers], OVER_KEPT_MS)
        prolong(self._store.cells, [failures_cell(self.id), story_cell(self.id)], OVER_KEPT_MS)
        (cell,) = self._store.cells.read([INDEX])
        before = read_index(cell)
        index = before.with_closed(self.id, auto=bool(state.cause))
        for id in {*before.auto} - {*index.auto}:
            self._shorten(id)
        work.more.append(Swap(INDEX, version_of(cell), encode(index)))
        work.state = replace(state, phase="over", closed=True, owner="", until_ms=0)
        work.ttl_ms = OVER_KEPT_MS
        self._commit(work)
        return IDLE_S

    def _shorten(self, id: str) -> None:
        """Shorten the expiry of an automatic run outside the index: only the machine that started it reads it."""
        cells, plan = self._store.cells, read_plan(self._store.cells, id)
        if plan is not None:
            prolong(cells, [state_cell(id), story_cell(id), failures_cell(id)], UNNAMED_KEPT_MS)
            for numbers in batched(plan):
                prolong(cells, [marks_cell(id, n) for n in numbers], UNNAMED_KEPT_MS)
            with contextlib.suppress(PlanRefused):  # the plan has expired
                keep(cells, plan, UNNAMED_KEPT_MS)


def _undoing(run: str, settings: RedriveSettings | None, unrun: Sequence[tuple[Handle, Handle]]) -> Verdict:
    """Return the verdict that returns messages to where they were. `unrun`: the handle of each, and as planned."""
    if unrun[0][1].fence is None:
        return Return(run)
    if settings is None or not settings.edit:
        return Postpone(run, tuple(planned.due_ms or 0 for _, planned in unrun), back=True)
    return Edit(run, tuple(_before(settings, planned) for _, planned in unrun), settings.cancel, back=True)


def _before(settings: RedriveSettings, planned: Handle) -> WaitFields:
    """Return what an undo of an edit gives back to the message: only what these settings changed."""
    wait = planned.wait or WaitFields()
    return WaitFields(
        None if settings.to_queue is None else wait.queue,
        None if settings.priority is None else wait.priority,
        None if settings.deadline_ms is None else wait.deadline_ms,
        planned.due_ms if settings.cancel or settings.moves_due else None,
    )


def _verdict(run: str, s: RedriveSettings, batch: Sequence[Handle], now_ms: int) -> Verdict:
    delays = tuple(int(draw(run + h.id, h.redrives, 0) * s.spread_ms) for h in batch) if s.spread_ms else ()
    if s.edit:
        name = run + UNWATCHED if s.unwatched else run
        if s.cancel:
            return Edit(name, cancel=True)
        deadline_ms = s.deadline_ms and now_ms + s.deadline_ms
        dues_ms = [now_ms + s.delay_ms + more if s.moves_due else None for more in delays or [0] * len(batch)]
        return Edit(name, tuple(WaitFields(s.to_queue, s.priority, deadline_ms, due_ms) for due_ms in dues_ms))
    if s.hurry:
        if not (s.delay_ms or s.spread_ms):
            return Hasten(run)
        return Postpone(run, tuple(now_ms + s.delay_ms + delay_ms for delay_ms in delays or [0] * len(batch)))
    return Redrive(s.to_queue, s.delay_ms, s.attempts, run, s.keep_deadline, delays)


def _under_way(state: RunState) -> int:
    """Return how many messages the run moved, or tried to move, whose outcome is not known."""
    return state.waiting + state.at - state.known


def _moving(state: RunState) -> bool:
    return state.status is RunStatus.RUNNING and state.at < state.total


def _split_dependencies(app: Registry | None, plan: Plan) -> SplitDependencies | None:
    return None if app is None else SplitDependencies(app, plan.settings.gates, plan.dependencies)


def _canary_queues(state: RunState, plan: Plan) -> Collection[str]:
    """Return the queues of a canary that was moved as a whole and awaits outcomes; otherwise none."""
    if state.canary_over or state.moved + state.ended + state.at - state.known < plan.settings.canary:
        return ()
    return plan.by_queue if plan.settings.to_queue is None else (plan.settings.to_queue,)


def _phase(plan: Plan, state: RunState, why: str) -> str:
    if why:
        gates = plan.settings.gates
        return AWAITING if gates is not None and gates.approval and not state.approved_by else "waiting"
    if plan.settings.canary and not state.canary_over:
        return "canary"
    return "moving" if state.at < state.total else "settling"


def _unrun(message: Message, run: str, handle: Handle) -> bool:
    """True if the run moved the message, which was planned as the handle says, and no worker has claimed it since. One
    that the run cancelled can be returned if neither a group nor a batch has gone on without it."""
    if message.run_id == run and message.lane is Lane.DONE and message.reason == "cancelled":
        alone = message.group is None and message.batch is None
        return alone and handle.wait is not None and message.fence == handle.fence
    if message.run_id != run or message.lane is not Lane.READY:
        return False
    return not message.attempt and not message.crashes if handle.fence is None else message.fence == handle.fence
