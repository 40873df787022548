"""Carrying a redrive run: a tick at a time, by whoever holds its lease, each tick in one commit.

A tick reads the run's state, writes down which messages of the last batch were moved, takes up the verdicts that are
in, lets the rules speak, and moves the next batch: the moves and all that is written of them are one commit, which
fails as a whole where somebody else has changed the run meanwhile.

A kill after a batch leaves it in the state that these positions were tried. Whoever carries on finds out which of them
were moved: a message that the run moved names it, or has a verdict in its cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...errors import Conflict, PlanRefused
from ...events import Notify
from ...message import (
    Cell,
    Handle,
    Lane,
    Message,
    Redrive,
    Return,
    Swap,
    version_of,
)
from ...policy import draw
from ...registry import Registry
from . import pacing
from .gates import Keys, shut
from .plan import CHUNK, Plan, batched, keep, prolong, read_plan
from .progress import Tally, as_planned
from .run_state import (
    FINAL,
    INDEX,
    KEPT_MS,
    OVER_KEPT_MS,
    UNNAMED_KEPT_MS,
    RunState,
    Status,
    encode,
    failures_cell,
    marks_cell,
    read_index,
    read_state,
    state_cell,
    story_cell,
)
from .settings import Settings
from .unit_of_work import Sheet

if TYPE_CHECKING:
    from ...store import Store

BATCH = 250  # messages that are moved in one commit
SETTLING_S, STILL_S = 0.25, 1.0  # between two ticks
QUIET_MAX = 20  # ticks in a row without a verdict, after which the next may take its time
UNASKED_MS = 5000  # how long a run may wait for somebody who can ask its gates before it says so
AWAITING = "awaiting approval"  # a phase
VERDICTS_WAITED_MS = 7 * 86_400_000  # once a run is over


class Carrier:
    """Carries one run under `owner`'s name, for as long as that holds the lease. Used by one thread. Its gates ask the
    app; without one it moves nothing."""

    def __init__(self, store: Store, id: str, owner: str, notice: Notify, app: Registry | None = None) -> None:
        self._store, self.id, self._owner, self._notice, self._app = store, id, owner, notice, app
        self._plan: Plan | None = None
        self._keys: Keys | None = None  # what holds messages of its plan one by one
        self._tally = Tally(store, id)
        self._wrote: tuple[object, ...] | None = None  # of the state, when it was last seen to
        self._refused: set[str] = set()  # what was claimed before it could be returned
        self._quiet = 0  # how many ticks in a row brought no news
        self.moves = False  # whether it has something left that it may move, now or once others are judged
        self._judges: Collection[str] = ()  # the queues of those that it has moved where these must be judged first

    def tick(self) -> float | None:
        """Carry it on; in how many seconds to call again. None: it is over, or somebody else carries it. Raises
        StoreError."""
        (cell,) = self._store.cells.read([state_cell(self.id)])
        state, now_ms = read_state(cell), self._store.now_ms()
        if cell is None or state is None or state.closed:
            self._leave()
            return None
        if state.owner != self._owner and state.held(now_ms):
            self._leave()
            return None
        if state.carried != self._wrote:  # somebody else carried it, who may have the same name
            self._tally.forget()
        if self._plan is None:
            self._plan = read_plan(self._store.cells, self.id)
            self._keys = Keys(self._app, self._plan) if self._app is not None and self._plan is not None else None
        if self._plan is None:
            self._leave()
            return None
        if _moving(state) and (health := self._unknown(self._plan)) is not None:
            self._say_who_can(health, state, cell, now_ms)
            return None
        sheet = Sheet(self.id, state, cell, now_ms, self._owner)
        try:
            wait_s = self._carry(sheet, self._plan)
        except Conflict:  # somebody changed the run: nothing of this tick was written
            self._tally.forget()
            return 0.0
        except BaseException:  # nobody knows whether it was
            self._tally.forget()
            raise
        self._wrote = sheet.state.carried
        self.moves = _moving(sheet.state) and not sheet.state.still_ms
        self._judges = _judged_in(sheet.state, self._plan)
        for name, text in sheet.notices:
            self._notice(name, text, self.id)
        return wait_s

    def keeps(self, queues: Collection[str]) -> bool:
        """Whether a burst that works these queues shall wait for it. It does not wait for verdicts that come from
        elsewhere."""
        return self.moves and not (self._judges and {*queues}.isdisjoint(self._judges))

    def release(self) -> None:
        """Let another carry it from now on. Raises StoreError."""
        (cell,) = self._store.cells.read([state_cell(self.id)])
        state = read_state(cell)
        if cell is not None and state is not None and state.owner == self._owner:
            freed = replace(state, owner="", until_ms=0)
            self._store.cells.swap([Swap(state_cell(self.id), cell.version, encode(freed), KEPT_MS)])
        self._tally.forget()

    def _unknown(self, plan: Plan) -> str | None:
        """The health check that its gates ask for, where that is a name which this app does not know."""
        health = None if plan.settings.gates is None else plan.settings.gates.health
        return None if health is None or self._app is None or health in self._app.healths else health

    def _say_who_can(self, health: str, state: RunState, cell: Cell, now_ms: int) -> None:
        """Leave it to a worker that knows the check; where none comes, say whom it waits for."""
        self._leave()
        if not state.why and state.until_ms + UNASKED_MS < now_ms and state.started_ms + UNASKED_MS < now_ms:
            said = replace(state, phase="waiting", why=f"no worker knows the health check {health!r} of its gates")
            self._store.cells.swap([Swap(state_cell(self.id), cell.version, encode(said), KEPT_MS)])

    def _leave(self) -> None:
        self._tally.forget()
        self.moves = False

    # -- a tick

    def _carry(self, sheet: Sheet, plan: Plan) -> float:
        self._tally.record(sheet)
        self._tally.fold(sheet)
        if sheet.state.undo >= 0:
            return self._undo(sheet)
        self._speak(sheet, plan)
        if sheet.state.status in FINAL:
            return self._wind_up(sheet, plan)
        batch = self._batch(sheet, plan)
        if not batch:
            self._commit(sheet)
            return self._pause_s(sheet)
        start, verdict = sheet.state.at, _verdict(self.id, plan.settings, batch)
        sheet.state = replace(sheet.state, at=start + len(batch))
        moved = self._store.triage(batch, verdict, swaps=sheet.swaps(self._store))
        self._tally.tried(start + len(batch), moved)
        return self._pause_s(sheet)

    def _commit(self, sheet: Sheet) -> None:
        swaps = sheet.swaps(self._store)
        if swaps:
            self._store.put([], swaps=swaps)

    # -- rules

    def _speak(self, sheet: Sheet, plan: Plan) -> None:
        """What canary, stop rule, gates and speed say now."""
        settings, now_ms = plan.settings, sheet.now_ms
        if sheet.state.status in FINAL:
            return
        why = self._why_stop(sheet, plan)
        if why is not None:
            self._end(sheet, Status.STOPPED, why)
            return
        state = sheet.state
        if state.at == state.known == state.total and not state.waiting:
            told = f"{state.done:,} done, {state.failed:,} failed"
            self._end(sheet, Status.DONE, told + (f", {state.changed:,} had changed" if state.changed else ""))
            return
        if state.speed is None:
            slowly = settings.slow_start and not settings.canary
            sheet.state = replace(state, speed=pacing.begin(settings.rate, slowly, now_ms))
            sheet.tell("run_started", f"{plan.total:,} messages, planned by {plan.selector or 'everything'!r}")
        self._stand_still(sheet, plan)
        self._judge_speed(sheet, plan)

    def _why_stop(self, sheet: Sheet, plan: Plan) -> str | None:
        """Why it is to stop, if it is. Ends the canary where that went well."""
        settings, state = plan.settings, sheet.state
        stop = pacing.Stop.parse(settings.stop_if) if settings.stop_if else None
        if settings.canary and not state.canary_over:
            tried = state.moved + state.ended
            if state.waiting or (state.at < state.total and tried < settings.canary):
                return None  # not all of them have been judged
            sheet.state = replace(state, canary_over=True)
            word = pacing.canary(state.moved, stop, state.done, state.failed) if state.moved else pacing.GO_ON
            if word != pacing.GO_ON:
                return word
            sheet.state = replace(sheet.state, speed=pacing.begin(settings.rate, settings.slow_start, sheet.now_ms))
            sheet.say(f"canary: {state.done:,} of {state.moved:,} done, {state.failed:,} failed: it goes on")
        state = sheet.state
        planned = state.total - state.changed - state.ended
        return None if stop is None else stop.says(state.done, state.failed, planned)

    def _stand_still(self, sheet: Sheet, plan: Plan) -> None:
        """Its clock stands while a person paused it, or a gate is shut."""
        state, now_ms = sheet.state, sheet.now_ms
        why, phase = state.why, "paused"
        if state.status is Status.RUNNING:
            why = self._why_shut(plan, state, now_ms)
            phase = _phase(plan, state, why)
            if why and why != state.why:
                sheet.say(f"waits: {why}")
                sheet.tell("run_waiting", why)
            elif state.why and not why:
                sheet.say("goes on")
        still = bool(why) or state.status is Status.PAUSED
        speed = state.speed
        if state.still_ms and speed is not None and not still:
            speed = pacing.rested(speed, now_ms - state.still_ms, now_ms)
        still_ms = (state.still_ms or now_ms) if still else 0
        sheet.state = replace(state, why=why, phase=phase, still_ms=still_ms, speed=speed)

    def _why_shut(self, plan: Plan, state: RunState, now_ms: int) -> str:
        if state.at >= state.total or self._app is None:
            return ""
        why = shut(plan, self._app, state, now_ms)
        if why is None and self._keys:
            n, k = divmod(state.at, CHUNK)
            held = self._keys.first_held(self._tally.chunk(n)[k : k + 1], now_ms)
            why = held and held[1]
        return why or ""

    def _judge_speed(self, sheet: Sheet, plan: Plan) -> None:
        state = sheet.state
        if state.speed is None or state.still_ms:
            return
        halve, rate = plan.settings.halve_on_failures, plan.settings.rate
        speed = pacing.judged(state.speed, rate, sheet.done, len(sheet.failures), sheet.now_ms, halve)
        if speed.per_s < state.speed.per_s:
            sheet.say(f"slower: {speed.per_s:.3g}/s, as more than a tenth failed within a second")
        sheet.state = replace(state, speed=speed)

    def _end(self, sheet: Sheet, status: Status, why: str) -> None:
        sheet.state = replace(sheet.state, status=status, why=why, phase="over", over_ms=sheet.now_ms, still_ms=0)
        left = sheet.state.total - sheet.state.at
        sheet.say(f"{status}: {why}" + (f"; {left:,} were left where they are" if left else ""))
        sheet.tell(f"run_{status}", why)

    # -- moving

    def _batch(self, sheet: Sheet, plan: Plan) -> list[Handle]:
        """What may be moved now."""
        state, settings = sheet.state, plan.settings
        if state.status is not Status.RUNNING or state.still_ms or state.speed is None or self._app is None:
            return []
        wanted = min(state.total - state.at, BATCH)
        if settings.canary and not state.canary_over:
            wanted = min(wanted, max(0, settings.canary - state.moved - state.ended))
        n, k = divmod(state.at, CHUNK)
        if wanted <= 0:
            return []
        handles = self._tally.chunk(n)[k : k + wanted]
        speed, count = pacing.grant(state.speed, settings.rate, sheet.now_ms, len(handles))
        held = self._keys.first_held(handles[:count], sheet.now_ms) if self._keys else None
        if held is not None:  # at most as many as stand before it
            speed, count = pacing.grant(state.speed, settings.rate, sheet.now_ms, held[0])
        # A look in vain is worth no commit; what a clock that was set back changed is, or it would wait anew.
        if count or replace(speed, looked_ms=state.speed.looked_ms) != state.speed:
            sheet.state = replace(state, speed=speed)
        return handles[:count]

    def _pause_s(self, sheet: Sheet) -> float:
        """Until the next tick."""
        state = sheet.state
        self._quiet = 0 if sheet.news else self._quiet + 1
        if state.still_ms:
            return STILL_S
        awaited = state.waiting or state.known < state.at
        look_s = SETTLING_S if awaited and self._quiet < QUIET_MAX else STILL_S
        if state.status is not Status.RUNNING or state.at >= state.total or state.speed is None:
            return look_s
        rate = None if self._plan is None else self._plan.settings.rate
        return min(max(pacing.next_ms(state.speed, rate, sheet.now_ms) - sheet.now_ms, 10) / 1000, look_s)

    # -- the end

    def _undo(self, sheet: Sheet) -> float:
        """Return what has not run yet, a chunk a tick. What an earlier try returned lies there as it was planned."""
        n = sheet.state.undo
        if n * CHUNK >= sheet.state.known:
            sheet.say(f"{sheet.state.returned:,} returned unrun; {sheet.state.waiting:,} under way")
            sheet.state = replace(sheet.state, undo=-1)
            self._commit(sheet)
            return 0.0
        places = self._tally.waiting_in(sheet, n)
        planned = [self._tally.chunk(n)[k] for k in places]
        found = self._tally.find([handle.id for handle in planned])
        back = [k for k, h, m in zip(places, planned, found, strict=True) if as_planned(m, h)]
        unrun = [m for m in found if m is not None and _unrun(m, self.id) and m.id not in self._refused]
        self._tally.returned(sheet, n, back)
        sheet.state = replace(sheet.state, undo=n if unrun else n + 1)
        handles = [m.handle for m in unrun[:BATCH]]
        if not handles:
            self._commit(sheet)
            return 0.0
        # which of them were returned is seen in the next tick, where they lie
        moved = self._store.triage(handles, Return(self.id), swaps=sheet.swaps(self._store))
        self._refused.update(handle.id for handle, done in zip(handles, moved, strict=True) if not done)
        return 0.0

    def _wind_up(self, sheet: Sheet, plan: Plan) -> float:
        """It is over; once all verdicts are in, or it is no use to wait for them, nobody has to carry it any more."""
        state = sheet.state
        if sheet.news:
            self._commit(sheet)
            return 0.0
        if state.waiting and sheet.now_ms < state.over_ms + VERDICTS_WAITED_MS:
            self._commit(sheet)
            return STILL_S
        with contextlib.suppress(PlanRefused):  # it is gone already
            keep(self._store.cells, plan, OVER_KEPT_MS)
        for numbers in batched(plan):
            prolong(self._store.cells, [marks_cell(self.id, n) for n in numbers], OVER_KEPT_MS)
        prolong(self._store.cells, [failures_cell(self.id), story_cell(self.id)], OVER_KEPT_MS)
        (cell,) = self._store.cells.read([INDEX])
        before = read_index(cell)
        index = before.with_closed(self.id, auto=bool(state.cause))
        for id in {*before.auto} - {*index.auto}:
            self._shorten(id)
        sheet.more.append(Swap(INDEX, version_of(cell), encode(index)))
        sheet.state = replace(state, phase="over", closed=True, owner="", until_ms=0)
        sheet.ttl_ms = OVER_KEPT_MS
        self._commit(sheet)
        return STILL_S

    def _shorten(self, id: str) -> None:
        """Keep a run that no person began, and no list names any more, for as long as who began it may look at it."""
        cells, plan = self._store.cells, read_plan(self._store.cells, id)
        if plan is not None:
            prolong(cells, [state_cell(id), story_cell(id), failures_cell(id)], UNNAMED_KEPT_MS)
            for numbers in batched(plan):
                prolong(cells, [marks_cell(id, n) for n in numbers], UNNAMED_KEPT_MS)
            with contextlib.suppress(PlanRefused):  # as above
                keep(cells, plan, UNNAMED_KEPT_MS)


def _verdict(run: str, s: Settings, batch: Sequence[Handle]) -> Redrive:
    delays = tuple(int(draw(run + h.id, h.redrives, 0) * s.spread_ms) for h in batch) if s.spread_ms else ()
    return Redrive(s.to_queue, s.delay_ms, s.attempts, run, s.keep_deadline, delays)


def _moving(state: RunState) -> bool:
    return state.status is Status.RUNNING and state.at < state.total


def _judged_in(state: RunState, plan: Plan) -> Collection[str]:
    """The queues of a canary that has been moved and is not over; none where it does not wait for one."""
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


def _unrun(message: Message, run: str) -> bool:
    """Whether it waits for its first run since the run moved it."""
    return message.run == run and message.lane is Lane.READY and not message.attempt and not message.crashes
