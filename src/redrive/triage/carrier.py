"""Carrying a redrive run: a tick at a time, by whoever holds its lease, each tick in one commit.

A tick reads the run's state, writes down which messages of the last batch were moved, takes up the verdicts that are
in, lets the rules speak, and moves the next batch: the moves and all that is written of them are one commit, which
fails as a whole where somebody else has changed the run meanwhile.

A kill after a batch leaves it in the state that these positions were tried. Whoever carries on finds out which of them
were moved: a message that the run moved names it, or has a verdict in its cell.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ..errors import Conflict, PlanRefused
from ..message import RESTING, Cell, Handle, Lane, Message, Redrive, Return, Swap
from ..policy import draw
from ..worker import first_runs
from . import pace
from .gates import shut
from .plan import CHUNK, Plan, batched, keep, read_chunk, read_plan
from .run_state import (
    FAILURES_MAX,
    FINAL,
    INDEX,
    KEPT_MS,
    OVER_KEPT_MS,
    Failure,
    Line,
    Mark,
    RunState,
    Status,
    failures_cell,
    longer,
    marks_cell,
    read_failures,
    read_index,
    read_state,
    read_story,
    state_cell,
    story_cell,
)
from .settings import Settings

if TYPE_CHECKING:
    from ..app import App
    from ..store import Store

LEASE_MS = 5000  # how long nobody carries a run whose carrier was killed
BATCH = 250  # messages that are moved in one commit
CHUNKS_KEPT = 4  # chunks held in memory
MOVING_S, SETTLING_S, STILL_S = 0.1, 0.25, 1.0  # between two ticks
LOST_EVERY_MS = 5000  # how often it looks for messages that ended without a verdict
LOST_LOOKED = 200  # messages that it looks at then
AWAITING = "awaiting approval"  # a phase
VERDICTS_WAITED_MS = 7 * 86_400_000  # once a run is over

Notify = Callable[[str, str, str], None]  # name, text, run


class Carrier:
    """Carries one run under `owner`'s name, for as long as that holds the lease. Used by one thread. Its gates ask the
    app; without one it moves nothing."""

    def __init__(self, store: Store, id: str, owner: str, notice: Notify, app: App | None = None) -> None:
        self._store, self.id, self._owner, self._notice, self._app = store, id, owner, notice, app
        self._plan: Plan | None = None
        self._chunks: OrderedDict[int, list[Handle]] = OrderedDict()
        self._open: dict[int, int] | None = None  # by chunk: how many wait for a verdict; None: not looked up yet
        self._turn = 0  # whose turn it is of the chunks that are not the latest
        self._tried: tuple[int, list[bool]] | None = None  # what the last batch, up to this position, came to
        self._looked_ms = 0
        self._refused: set[str] = set()  # what was claimed before it could be returned
        self.moves = False  # whether it has something to do that a burst shall wait for

    def tick(self) -> float | None:
        """Carry it on; in how many seconds to call again. None: it is over, or somebody else carries it. Raises
        StoreError."""
        (cell,) = self._store.cells.read([state_cell(self.id)])
        state, now_ms = read_state(cell), self._store.now_ms()
        if cell is None or state is None or state.closed:
            self._leave()
            return None
        if state.owner != self._owner:
            if state.until_ms > now_ms:
                self._leave()
                return None
            self._forget()
        if self._plan is None:
            self._plan = read_plan(self._store.cells, self.id)
            if self._plan is None:
                self._leave()
                return None
        sheet = Sheet(self.id, replace(state, owner=self._owner), cell, now_ms)
        try:
            wait_s = self._carry(sheet, self._plan)
        except Conflict:  # somebody changed the run: nothing of this tick was written
            self._tried = None
            return 0.0
        self.moves = _moves(sheet.state)
        for name, text in sheet.notices:
            self._notice(name, text, self.id)
        return wait_s

    def release(self) -> None:
        """Let another carry it from now on. Raises StoreError."""
        (cell,) = self._store.cells.read([state_cell(self.id)])
        state = read_state(cell)
        if cell is not None and state is not None and state.owner == self._owner:
            freed = replace(state, owner="", until_ms=0)
            self._store.cells.swap([Swap(state_cell(self.id), cell.version, _json(freed), KEPT_MS)])
        self._forget()

    def _leave(self) -> None:
        self._forget()
        self.moves = False

    def _forget(self) -> None:
        """What another may have changed since."""
        self._open, self._tried = None, None

    # -- a tick

    def _carry(self, sheet: Sheet, plan: Plan) -> float:
        self._record(sheet)
        self._fold(sheet)
        if sheet.state.undo >= 0:
            return self._undo(sheet, plan)
        self._speak(sheet, plan)
        if sheet.state.status in FINAL:
            return self._wind_up(sheet, plan)
        batch = self._batch(sheet, plan)
        if not batch:
            self._commit(sheet)
            return self._pause_s(sheet)
        start, verdict = sheet.state.at, _verdict(self.id, plan.settings, batch)
        sheet.state = replace(sheet.state, at=start + len(batch))
        moved = self._store.triage(batch, verdict, swaps=sheet.swaps(self._store, LEASE_MS))
        self._tried = start + len(batch), moved
        return self._pause_s(sheet)

    def _commit(self, sheet: Sheet) -> None:
        swaps = sheet.swaps(self._store, LEASE_MS)
        if swaps:
            self._store.put([], swaps=swaps)

    # -- what was moved

    def _record(self, sheet: Sheet) -> None:
        """Write down what the last batch came to; after another's, find it out."""
        state = sheet.state
        if state.known == state.at:
            return
        if self._tried is None or self._tried[0] != state.at or len(self._tried[1]) != state.at - state.known:
            moved = self._found_out(range(state.known, state.at))
        else:
            moved = self._tried[1]
        for position, done in zip(range(state.known, state.at), moved, strict=True):
            self._mark(sheet, position, Mark.WAITING if done else Mark.CHANGED)
        count = sum(moved)
        sheet.state = replace(
            state, known=state.at, moved=state.moved + count, changed=state.changed + len(moved) - count
        )
        self._tried = None

    def _found_out(self, positions: range) -> list[bool]:
        """Whether the run moved these: what it moved names it, or has left a verdict as it settled. The messages are
        looked at first, as a verdict is there once its message is gone."""
        ids = [self._handle(position).id for position in positions]
        found: list[Message | None] = []
        for at in range(0, len(ids), LOST_LOOKED):
            found += self._store.find(ids[at : at + LOST_LOOKED])
        told = self._store.cells.read([first_runs.cell_of(self.id, id) for id in ids])
        return [
            verdict is not None or (message is not None and message.run == self.id)
            for message, verdict in zip(found, told, strict=True)
        ]

    def _handle(self, position: int) -> Handle:
        n, k = divmod(position, CHUNK)
        return self._chunk(n)[k]

    def _chunk(self, n: int) -> list[Handle]:
        if n not in self._chunks:
            self._chunks[n] = read_chunk(self._store.cells, self.id, n)
            if len(self._chunks) > CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(n)
        return self._chunks[n]

    def _marks(self, sheet: Sheet, n: int) -> bytearray:
        return sheet.marks_of(self._store, n, len(self._chunk(n)))

    def _mark(self, sheet: Sheet, position: int, mark: Mark) -> None:
        n, k = divmod(position, CHUNK)
        self._marks(sheet, n)[k] = ord(mark)
        sheet.changed.add(n)
        if mark is Mark.WAITING:
            waits = self._waits(sheet)
            waits[n] = waits.get(n, 0) + 1

    # -- verdicts

    def _waits(self, sheet: Sheet) -> dict[int, int]:
        """By chunk, how many wait for a verdict."""
        if self._open is None:
            tried, self._open = -(-sheet.state.known // CHUNK), {}
            for at in range(0, tried, 100):
                numbers = range(at, min(at + 100, tried))
                cells = self._store.cells.read([marks_cell(self.id, n) for n in numbers])
                for n, cell in zip(numbers, cells, strict=True):
                    count = 0 if cell is None else cell.value.count(Mark.WAITING.encode())
                    if count:
                        self._open[n] = count
        return self._open

    def _fold(self, sheet: Sheet) -> None:
        """Take up the verdicts that are in: of the two latest chunks, and of another, each in its turn."""
        waits = self._waits(sheet)
        numbers = sorted(n for n, count in waits.items() if count)
        older = numbers[:-2]
        self._turn += 1
        for n in [*numbers[-2:], *([older[self._turn % len(older)]] if older else [])]:
            self._fold_chunk(sheet, n)
        if numbers and sheet.now_ms >= self._looked_ms + LOST_EVERY_MS:
            self._looked_ms = sheet.now_ms
            self._look_for_lost(sheet, numbers[self._turn % len(numbers)])

    def _fold_chunk(self, sheet: Sheet, n: int) -> None:
        places = self._waiting_in(sheet, n)
        keys = [first_runs.cell_of(self.id, self._chunk(n)[k].id) for k in places]
        for k, key, cell in zip(places, keys, self._store.cells.read(keys), strict=True):
            if cell is not None:
                sheet.more.append(Swap(key, cell.version, None))
                self._judged(sheet, n, k, first_runs.decode(cell.value))

    def _waiting_in(self, sheet: Sheet, n: int) -> list[int]:
        return [k for k, mark in enumerate(self._marks(sheet, n)) if mark == ord(Mark.WAITING)]

    def _judged(self, sheet: Sheet, n: int, k: int, first: first_runs.FirstRun) -> None:
        done = first.outcome == first_runs.DONE
        self._marks(sheet, n)[k] = ord(Mark.DONE if done else Mark.FAILED)
        self._settled(sheet, n)
        state = sheet.state
        sheet.state = replace(state, done=state.done + done, failed=state.failed + (not done))
        if done:
            sheet.done += 1
        else:
            failure = Failure(self._chunk(n)[k].id, first.kind, first.error, first.text, first.fingerprint, first.at_ms)
            sheet.failures.append(failure)

    def _settled(self, sheet: Sheet, n: int) -> None:
        sheet.changed.add(n)
        waits = self._waits(sheet)
        waits[n] -= 1
        if not waits[n]:
            del waits[n]

    def _look_for_lost(self, sheet: Sheet, n: int) -> None:
        """Those that ended without a verdict, by a person's hand: cancelled, removed, returned, driven on by another
        run. Looked at before their verdicts are, as above."""
        places = self._waiting_in(sheet, n)[:LOST_LOOKED]
        messages = self._store.find([self._chunk(n)[k].id for k in places])
        gone = [k for k, message in zip(places, messages, strict=True) if _left(message, self.id)]
        told = self._store.cells.read([first_runs.cell_of(self.id, self._chunk(n)[k].id) for k in gone])
        for k in [k for k, cell in zip(gone, told, strict=True) if cell is None]:
            self._marks(sheet, n)[k] = ord(Mark.ENDED)
            self._settled(sheet, n)
            sheet.state = replace(sheet.state, moved=sheet.state.moved - 1, ended=sheet.state.ended + 1)

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
            sheet.state = replace(state, speed=pace.begin(settings.rate, slowly, now_ms))
            sheet.tell("run_started", f"{plan.total:,} messages, planned by {plan.selector or 'everything'!r}")
        self._stand_still(sheet, plan)
        self._judge_speed(sheet, plan)

    def _why_stop(self, sheet: Sheet, plan: Plan) -> str | None:
        """Why it is to stop, if it is. Ends the canary where that went well."""
        settings, state = plan.settings, sheet.state
        stop = pace.Stop.parse(settings.stop_if) if settings.stop_if else None
        if settings.canary and not state.canary_over:
            tried = state.moved + state.ended
            if state.waiting or (state.at < state.total and tried < settings.canary):
                return None  # not all of them have been judged
            sheet.state = replace(state, canary_over=True)
            word = pace.canary(state.moved, stop, state.done, state.failed) if state.moved else pace.GO_ON
            if word != pace.GO_ON:
                return word
            sheet.state = replace(sheet.state, speed=pace.begin(settings.rate, settings.slow_start, sheet.now_ms))
            sheet.say(f"canary: {state.done:,} of {state.moved:,} done, {state.failed:,} failed: it goes on")
        state = sheet.state
        planned = state.total - state.changed - state.ended
        return None if stop is None else stop.says(state.done, state.failed, planned, state.canary_over)

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
            speed = pace.rested(speed, now_ms - state.still_ms, now_ms)
        still_ms = (state.still_ms or now_ms) if still else 0
        sheet.state = replace(state, why=why, phase=phase, still_ms=still_ms, speed=speed)

    def _why_shut(self, plan: Plan, state: RunState, now_ms: int) -> str:
        if state.at >= state.total or self._app is None:
            return ""
        return shut(plan, self._app, state, now_ms) or ""

    def _judge_speed(self, sheet: Sheet, plan: Plan) -> None:
        state = sheet.state
        if state.speed is None or state.still_ms:
            return
        halve, rate = plan.settings.halve_on_failures, plan.settings.rate
        speed = pace.judged(state.speed, rate, sheet.done, len(sheet.failures), sheet.now_ms, halve)
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
        speed, count = pace.grant(state.speed, settings.rate, sheet.now_ms, min(wanted, CHUNK - k))
        sheet.state = replace(state, speed=speed)
        return self._chunk(n)[k : k + count]

    def _pause_s(self, sheet: Sheet) -> float:
        """Until the next tick."""
        state = sheet.state
        if state.still_ms:
            return STILL_S
        if state.status is Status.RUNNING and state.at < state.total and state.speed is not None:
            plan = self._plan
            rate = None if plan is None else plan.settings.rate
            return min(max(pace.next_ms(state.speed, rate, sheet.now_ms) - sheet.now_ms, 10) / 1000, MOVING_S)
        return SETTLING_S

    # -- the end

    def _undo(self, sheet: Sheet, plan: Plan) -> float:
        """Return what has not run yet, a chunk a tick. What an earlier try returned lies there as it was planned."""
        n = sheet.state.undo
        if n * CHUNK >= sheet.state.known:
            sheet.say(f"{sheet.state.returned:,} returned unrun; {sheet.state.waiting:,} under way")
            sheet.state = replace(sheet.state, undo=-1)
            self._commit(sheet)
            return 0.0
        places = self._waiting_in(sheet, n)
        planned = [self._chunk(n)[k] for k in places]
        found: list[Message | None] = []
        for at in range(0, len(planned), LOST_LOOKED):
            found += self._store.find([handle.id for handle in planned[at : at + LOST_LOOKED]])
        back = [k for k, h, m in zip(places, planned, found, strict=True) if m is not None and _as_planned(m, h)]
        unrun = [m for m in found if m is not None and _unrun(m, self.id) and m.id not in self._refused]
        self._returned(sheet, n, back)
        sheet.state = replace(sheet.state, undo=n if unrun else n + 1)
        handles = [Handle(m.id, m.redrives, m.lane) for m in unrun[:BATCH]]
        if not handles:
            self._commit(sheet)
            return 0.0
        # which of them were returned is seen in the next tick, where they lie
        moved = self._store.triage(handles, Return(self.id), swaps=sheet.swaps(self._store, LEASE_MS))
        self._refused.update(handle.id for handle, done in zip(handles, moved, strict=True) if not done)
        return 0.0

    def _returned(self, sheet: Sheet, n: int, places: Iterable[int]) -> None:
        for k in places:
            self._marks(sheet, n)[k] = ord(Mark.RETURNED)
            self._settled(sheet, n)
            sheet.state = replace(sheet.state, moved=sheet.state.moved - 1, returned=sheet.state.returned + 1)

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
            self._keep([marks_cell(self.id, n) for n in numbers])
        self._keep([failures_cell(self.id)])
        (cell,) = self._store.cells.read([INDEX])
        index = read_index(cell).with_closed(self.id)
        sheet.more.append(Swap(INDEX, _version(cell), _json(index)))
        sheet.state = replace(state, phase="over", closed=True, owner="", until_ms=0)
        sheet.ttl_ms = OVER_KEPT_MS
        self._commit(sheet)
        return STILL_S

    def _keep(self, keys: Sequence[str]) -> None:
        """For as long as what is over."""
        cells = zip(keys, self._store.cells.read(keys), strict=True)
        self._store.cells.swap([Swap(k, c.version, c.value, OVER_KEPT_MS) for k, c in cells if c is not None])


class Sheet:
    """What one tick comes to, until it is committed."""

    def __init__(self, id: str, state: RunState, cell: Cell, now_ms: int) -> None:
        self.id, self.state, self.now_ms = id, state, now_ms
        self._cell, self._before = cell, read_state(cell)
        self._marks: dict[int, bytearray] = {}
        self._versions: dict[int, int] = {}
        self.changed: set[int] = set()  # chunks whose letters did
        self.more: list[Swap] = []
        self.failures: list[Failure] = []
        self.done = 0  # how many verdicts of this tick are good
        self.notices: list[tuple[str, str]] = []
        self._lines: list[Line] = []
        self.ttl_ms = KEPT_MS

    def say(self, text: str) -> None:
        """A line for its story."""
        self._lines.append(Line(self.now_ms, text))

    def tell(self, name: str, text: str) -> None:
        """A notice for who observes this worker, once it is committed."""
        self.notices.append((name, text))

    @property
    def news(self) -> bool:
        """Whether there is anything to write but the lease."""
        return bool(self.changed or self.more or self._lines)

    def marks_of(self, store: Store, n: int, size: int) -> bytearray:
        """The letters of this chunk, to be changed in place."""
        if n not in self._marks:
            (cell,) = store.cells.read([marks_cell(self.id, n)])
            self._marks[n] = bytearray(Mark.LEFT.encode() * size if cell is None else cell.value)
            self._versions[n] = 0 if cell is None else cell.version
        return self._marks[n]

    def swaps(self, store: Store, lease_ms: int) -> list[Swap]:
        """All that is to be written; nothing where nothing changed and the lease holds for a while."""
        before = self._before
        held = before is not None and before.until_ms > self.now_ms + lease_ms // 2
        if self.state == before and held and not self.news:
            return []
        state = self.state if self.state.closed else replace(self.state, until_ms=self.now_ms + lease_ms)
        swaps = [Swap(state_cell(self.id), self._cell.version, _json(state), self.ttl_ms), *self.more]
        for n in sorted(self.changed):
            swaps.append(Swap(marks_cell(self.id, n), self._versions[n], bytes(self._marks[n]), self.ttl_ms))
        if self._lines or self.failures:
            told, failed = store.cells.read([story_cell(self.id), failures_cell(self.id)])
            if self._lines:
                story = longer(read_story(told), self._lines)
                swaps.append(Swap(story_cell(self.id), _version(told), _json(story), self.ttl_ms))
            known = read_failures(failed) if self.failures else []
            if self.failures and len(known) < FAILURES_MAX:
                kept = [*known, *self.failures][:FAILURES_MAX]
                swaps.append(Swap(failures_cell(self.id), _version(failed), _json(kept), self.ttl_ms))
        return swaps


def _verdict(run: str, s: Settings, batch: Sequence[Handle]) -> Redrive:
    delays = tuple(int(draw(run + h.id, h.redrives, 0) * s.spread_ms) for h in batch) if s.spread_ms else ()
    return Redrive(s.to_queue, s.delay_ms, s.attempts, run, s.keep_deadline, delays)


def _moves(state: RunState) -> bool:
    return state.status is Status.RUNNING and not state.still_ms and state.at < state.total


def _phase(plan: Plan, state: RunState, why: str) -> str:
    if why:
        gates = plan.settings.gates
        return AWAITING if gates is not None and gates.approval and not state.approved_by else "waiting"
    if plan.settings.canary and not state.canary_over:
        return "canary"
    return "moving" if state.at < state.total else "settling"


def _left(message: Message | None, run: str) -> bool:
    """Whether it is no longer on the way that the run sent it."""
    return message is None or message.run != run or message.lane in (*RESTING, Lane.DONE)


def _unrun(message: Message, run: str) -> bool:
    """Whether it waits for its first run since the run moved it."""
    return message.run == run and message.lane is Lane.READY and not message.attempt and not message.crashes


def _as_planned(message: Message, handle: Handle) -> bool:
    return (message.id, message.redrives, message.lane) == handle


def _version(cell: Cell | None) -> int:
    return 0 if cell is None else cell.version


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
