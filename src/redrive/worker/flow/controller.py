"""Flow control in the worker: asks for what was claimed, tells what became of it, and says what not to claim.

Everything here happens on the store thread. A guard is this process's copy of one dependency's state (of one key of
it), which the fleet shares in a cell: what is taken from it is written by compare-and-set before the messages run, what
is only counted is written a few times a second. While the cells cannot be reached the copies go on by themselves.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count as numbers
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ...decide import Refusal
from ...duration import show
from ...errors import StoreError, StoreUnavailable
from ...flow import dependency as flow
from ...flow.dependency import Seen, State
from ...message import Ask, Swap, version_of
from ...registry import Registry
from ..admission import may_run
from .local_state import Guard, Guards, of_queue
from .transitions import Transition, note

if TYPE_CHECKING:
    from ...store import Store
    from ..execution import Run

FRESH_MS = 250  # how old a copy may be, and how long counts wait to be written
NAMES = "flow"  # the cell that lists the dependencies
LOCAL_MS = 1000  # how long to go by the copies before the cells are tried again
LOOK_MS = 1000  # how often to look for tasks that nobody knows to be routed to a queue
TRIES = 20  # of a swap that others keep winning; then the copy decides
EXHAUSTED_EVERY_MS = 60_000  # how often a worker tells of one budget that is spent
_TOLD = {
    "open": "breaker_opened",
    "forced_open": "breaker_opened",
    "half_open": "breaker_half_open",
    "closed": "breaker_closed",
    "forced_closed": "breaker_closed",
}
_PACE = 0.1  # how much the last run weighs in the mean


_NONE: frozenset[str] = frozenset()
_number = numbers()


class Flow:
    """The controls of one worker. `tell(name, text, about)` tells observers of a transition."""

    def __init__(self, app: Registry, store: Store, worker: str, tell: Callable[[str, str, str], None]) -> None:
        self._app, self._store, self._tell = app, store, tell
        self._worker = f"{worker}/{next(_number)}"  # without identities all of one process have one name
        self._guards = Guards(app)
        self._dirty: set[Guard] = set()  # those that have seen something since
        self._sharing: set[Guard] = set()  # those with a concurrency and runs
        self._flush_ms = 0.0
        self._now_ms = 0
        self._local_until_ms = 0.0  # while the cells cannot be reached: when to try again
        self._listed = False
        self._empty: dict[str, set[str]] = {}  # of each queue: the tasks of which nothing was due, since any run ended
        self._looked_ms: dict[str, int] = {}  # of each queue whose known tasks were all held: when it was looked into
        self.looking: set[str] = set()  # those that the last split did so with

    def __bool__(self) -> bool:
        return bool(self._guards)

    def _now(self) -> int:
        """The store's time. Where that was set back, nobody knows how old anything is that is known here."""
        now_ms = self._store.now_ms()
        if now_ms < self._now_ms - FRESH_MS:
            self._flush_ms = 0.0
            self._local_until_ms = min(self._local_until_ms, now_ms)
            for guard in self._guards:
                guard.read_ms, guard.taken_ms, guard.exhausted_ms = -math.inf, 0.0, 0
        self._now_ms = now_ms
        return now_ms

    # -- before a run

    def admit(self, runs: Sequence[Run]) -> None:
        """Set `guards` of runs that flow control watches over, and `refusal` of those it has something against."""
        now_ms = self._now()
        asking = [run for run in runs if not self._goes(run, now_ms)]
        if not asking:
            return
        self._refresh({guard for run in asking for guard in run.guards}, now_ms)
        asking = [run for run in asking if may_run(run.delivery.message, self._app.tasks, now_ms)]
        shut = [run for run in asking if _shut(run, now_ms)]
        self._ask_each(1, shut, now_ms)  # nothing is taken elsewhere for what will not run
        rest = [run for run in asking if run not in set(shut)] if shut else asking
        for level in range(max((len(run.guards) for run in rest), default=0), 0, -1):
            self._ask_each(level, [run for run in rest if run.refusal is None and len(run.guards) >= level], now_ms)

    def _goes(self, run: Run, now_ms: int) -> bool:
        """Whether it needs to ask nobody, as most do not: no control, or one that is at rest."""
        message = run.delivery.message
        guards = self._guards.fixed.get((message.task, message.queue))
        if guards is None:
            guards = self._guards.of(message)
        if not guards:
            return True
        run.guards = guards
        guard = guards[0]
        if len(guards) > 1 or message.attempt > 1 or message.deferral is not None:
            return False
        d = guard.d
        if d.rate is not None or d.concurrency is not None or guard.read_ms < now_ms - FRESH_MS:
            return False
        if not flow.calm(guard.state, d, now_ms):
            return False
        guard.seen.firsts += 1
        self._dirty.add(guard)
        return True

    def _ask_each(self, level: int, runs: Sequence[Run], now_ms: int) -> None:
        """Ask the guards that are the `level`th from the end of the runs' own."""
        asked: dict[Guard, list[Run]] = {}
        for run in runs:
            asked.setdefault(run.guards[-level], []).append(run)
        for guard, of_guard in asked.items():
            self._ask(guard, of_guard, now_ms, level == 1)

    def _ask(self, guard: Guard, runs: Sequence[Run], now_ms: int, last: bool) -> None:
        messages = [run.delivery.message for run in runs]
        self._be_heard(guard, now_ms)
        for _ in range(TRIES):
            base = self._with_seen(guard, now_ms)
            free, pace_ms, tokens = guard.free(self._worker), guard.pace_ms, guard.pool
            state, answers = flow.ask(base, guard.d, messages, now_ms, free=free, pace_ms=pace_ms, tokens=tokens)
            if (state is base and not guard.seen.here) or self._write([(guard, state)], now_ms):
                break
        else:
            guard.state = state
        guard.pool -= answers.used
        if answers.used and not guard.pool:
            guard.seen.waited = True
            self._dirty.add(guard)
        self._exhausted(guard, answers.refusals, now_ms)
        for run, refusal in zip(runs, answers.refusals, strict=True):
            message = run.delivery.message
            if refusal is not None:
                run.refusal = _with_passes(refusal, run.granted)
            elif not last:
                run.granted = (*run.granted, *flow.used_of(guard.d, message))
            else:
                guard.running += 1
                run.counted = True
                if guard.d.concurrency is not None:
                    self._sharing.add(guard)
                guard.seen.firsts += message.attempt == 1
                self._dirty.add(guard)
                if answers.probes and (owner := flow.owner_of(message)) in answers.probes:
                    run.probe = owner

    def _with_seen(self, guard: Guard, now_ms: int) -> State:
        return flow.apply(guard.state, guard.d, guard.seen, now_ms, self._worker) if guard.seen else guard.state

    # -- after a run

    def ended(self, run: Run) -> None:
        """A run finished, or never was one."""
        guard = run.guards[-1]
        if of_queue(guard.d):
            return  # what one task meets says nothing of the others on its queue
        seen, owner, run.probe = guard.seen, run.probe, ""
        self._dirty.add(guard)
        if run.verdict is not None or not run.started_s:
            if owner:
                self._probe_ended(guard, owner, "")
            return
        run_s = run.finished_s - run.started_s
        guard.pace_ms += _PACE * (run_s * 1000 - guard.pace_ms)
        word, asked_s = flow.seen_of(run.fault, run_s, guard.d)
        message = run.delivery.message
        if word == "success" and not owner and message.attempt == 1:  # the way of most
            seen.success += 1
            seen.well_ms = self._now_ms
            return
        seen.asked_s = max(seen.asked_s, asked_s)
        if owner:
            self._probe_ended(guard, owner, word)
        else:
            flow.note(seen, guard.state, guard.d, message, word, self._now_ms)
        if word == "throttled":
            seen.overloads += 1
        if asked_s or self._opens(guard):
            self._flush_ms = 0.0

    def left(self, run: Run) -> None:
        """A run is this worker's no more."""
        if run.counted:
            guard, run.counted = run.guards[-1], False
            guard.running -= 1
            if not guard.running:
                self._sharing.discard(guard)
            if run.probe:  # it never began, or nobody will tell how it ended
                self._probe_ended(guard, run.probe, "")
                self._dirty.add(guard)

    def _probe_ended(self, guard: Guard, owner: str, word: str) -> None:
        guard.seen.probes = {**guard.seen.probes, owner: word}
        self._flush_ms = 0.0

    def _opens(self, guard: Guard) -> bool:
        """Whether what was seen here, if it were told, changed the breaker: then it is told at once."""
        seen = guard.seen
        bad = seen.failure + seen.slow + seen.slow_failure + seen.retry_failure
        bad += seen.overloads if guard.state.breaker.ramp else 0
        if guard.d.breaker is None or not bad:
            return False
        state = self._with_seen(guard, self._store.now_ms())
        return state.breaker.turn != guard.state.breaker.turn

    # -- between

    def tick(self) -> None:
        """Tell and ask what is owed; a few times a second, at once where a breaker's fate hangs on it."""
        now_ms = self._now()
        if now_ms < self._flush_ms:
            return
        self._flush_ms = now_ms + FRESH_MS
        if not self._listed and now_ms >= self._local_until_ms:
            self._list_names()
        for guard in self._guards.whole.values():
            if guard.pool and guard.taken_ms < now_ms - FRESH_MS:
                self._put_back(guard)
        for guard in self._sharing:
            self._be_heard(guard, now_ms)
        self._flush([*self._dirty], now_ms)

    def _be_heard(self, guard: Guard, now_ms: int) -> None:
        """Let the others know that a concurrency is to be shared with this worker, also while its runs are long."""
        if guard.d.concurrency is not None and flow.unheard(guard.state, self._worker, now_ms):
            guard.seen.here = True
            self._dirty.add(guard)

    def _flush(self, guards: Iterable[Guard], now_ms: int) -> None:
        for _ in range(TRIES):
            lost = [guard for guard in guards if guard.seen]
            self._dirty.difference_update(guard for guard in guards if not guard.seen)
            if not lost or self._write([(guard, self._with_seen(guard, now_ms)) for guard in lost], now_ms):
                return

    def _write(self, changes: Sequence[tuple[Guard, State]], now_ms: int) -> bool:
        """Write the states, which hold what was seen; True where all were. Those that others changed are read anew."""
        swaps = [Swap(g.cell, g.version, flow.encode(state), flow.ttl_ms(state)) for g, state in changes]
        try:
            if now_ms < self._local_until_ms:
                raise StoreUnavailable("not tried again yet")
            won = self._store.cells.swap(swaps, durable=False)
            lost = [guard for (guard, _), written in zip(changes, won, strict=True) if not written]
            cells = self._store.cells.read([g.cell for g, _ in changes])
        except StoreError as error:
            self._alone(error, now_ms)
            for guard, state in changes:
                self._changed(guard, state)
                guard.state, guard.seen = state, Seen()
            return True
        self._together()
        for (guard, state), written, cell in zip(changes, won, cells, strict=True):
            if written:
                self._changed(guard, state)
                guard.seen = Seen()
            guard.saw(cell, now_ms)
        return not lost

    def _refresh(self, guards: Iterable[Guard], now_ms: int) -> None:
        """Read those whose copy is old."""
        old = [guard for guard in guards if guard.read_ms <= now_ms - FRESH_MS]
        if not old or now_ms < self._local_until_ms:
            return
        try:
            cells = self._store.cells.read([guard.cell for guard in old])
        except StoreError as error:
            self._alone(error, now_ms)
            return
        self._together()
        for guard, cell in zip(old, cells, strict=True):
            guard.saw(cell, now_ms)

    def close(self) -> None:
        """Tell what is left to tell."""
        for guard in self._guards.whole.values():
            self._put_back(guard)
        self._flush([*self._dirty], self._store.now_ms())

    # -- what not to claim

    def split(self, rooms: Mapping[str, int]) -> list[tuple[str, int, frozenset[str]]]:
        """(queue, limit, tasks to skip) of what to ask for where there is so much room: of tasks that are bounded no
        more than may run, the tokens for which are taken here. Those go first: they are few, by their bound."""
        now_ms = self._now()
        for guard in self._guards.whole.values():
            guard.promised = 0
        self.looking.clear()
        asks = []
        for queue, room in rooms.items():
            asks += [(queue, limit, skip) for limit, skip in self._split(queue, room, now_ms)]
        return asks

    def _split(self, queue: str, room: int, now_ms: int) -> list[tuple[int, frozenset[str]]]:
        kinds = self._guards.kinds(queue)
        self._refresh({guard for guards, _ in kinds for guard in guards}, now_ms)
        most = [min((self._open(guard, now_ms).count for guard in guards), default=math.inf) for guards, _ in kinds]
        bounded: dict[Guard, tuple[int, set[str]]] = {}  # how many of which tasks, by what bounds them
        held, free, left = set[str](), set[Guard](), room
        for n in sorted(range(len(kinds)), key=most.__getitem__):  # so a kind is left no more than its own bound
            guards, tasks = kinds[n]
            count, by = left if most[n] > 0 else 0, None
            for guard in guards:
                allowed = self._allow(guard, count, now_ms)
                if allowed < count:
                    count, by = allowed, guard
            if by is None and most[n] > 0:
                free.update(guards)
                continue
            held |= tasks
            if by is None:
                continue
            if by not in bounded and not count and by.promised and left > 1:
                count = 1  # all was promised to tasks that may have nothing: one too many, rather than none for ever
            if by in bounded or count:
                more, others = bounded.get(by, (0, set()))
                bounded[by] = more + count, others | tasks  # those that share a bound share an ask: the first ones go
            for guard in guards:
                guard.promised += count
            left -= count
        if not held:
            return [(room, _NONE)]
        for guard in free:
            guard.promised += left
        everything = _NONE.union(*(tasks for _, tasks in kinds))
        asks = [(count, everything - tasks) for count, tasks in bounded.values()]
        return [*asks, (left, frozenset(held))] if held < everything or self._looks(queue, now_ms) else asks

    def _looks(self, queue: str, now_ms: int) -> bool:
        """Whether to look, where all known tasks of a queue are held, for others that were routed there."""
        if abs(now_ms - self._looked_ms.get(queue, -LOOK_MS)) < LOOK_MS:
            return False
        self._looked_ms[queue] = now_ms
        self.looking.add(queue)
        return True

    def _open(self, guard: Guard, now_ms: int) -> flow.Allowance:
        """How many may be claimed now."""
        if guard.turn != guard.state.breaker.turn:
            guard.pool, guard.turn = 0, guard.state.breaker.turn  # they were for another time
        return flow.allowance(guard.state, guard.d, now_ms, guard.free(self._worker), guard.pool)

    def _allow(self, guard: Guard, wanted: int, now_ms: int) -> int:
        """How many of that many may be claimed, beside those that were promised; takes the tokens."""
        wanted = int(min(wanted, self._open(guard, now_ms).count - guard.promised))
        if wanted <= 0 or not flow.bounded(guard.state, guard.d):
            return max(0, wanted)
        need = wanted - (guard.pool - guard.promised)
        for _ in range(TRIES if need > 0 else 0):
            state, count = flow.take(self._with_seen(guard, now_ms), guard.d, need, now_ms)
            if not count:
                break
            if self._write([(guard, state)], now_ms):
                guard.pool, guard.taken_ms = guard.pool + count, now_ms
                break
        return max(0, min(wanted, guard.pool - guard.promised))

    def _put_back(self, guard: Guard) -> None:
        if guard.pool:
            guard.seen.unused += guard.pool
            guard.pool = 0
            self._dirty.add(guard)

    def noted(self, asks: Sequence[Ask], short: set[str], settled: bool) -> None:
        """Of which tasks nothing is due, as these queues gave less than they were asked for. A run that ended may have
        enqueued some."""
        if settled:
            self._empty.clear()
        for ask in asks:
            if ask.queue in short:
                tasks = _NONE.union(*(tasks for _, tasks in self._guards.kinds(ask.queue)))
                self._empty.setdefault(ask.queue, set()).update(tasks - ask.skip)

    def rests(self, queue: str) -> bool:
        """Whether what is due of the queue, if anything, is of dependencies that are left alone altogether."""
        now_ms, rests, empty = self._store.now_ms(), False, self._empty.get(queue, set())
        for guards, tasks in self._guards.kinds(queue):
            if any(flow.stopped(guard.state, guard.d, now_ms) for guard in guards):
                rests = True
            elif not tasks <= empty:
                return False
        return rests

    def waits(self, queue: str) -> tuple[frozenset[str] | None, float]:
        """The tasks of the queue of which nothing may be claimed now, None where that is all of them; and in how many
        ms to look again."""
        kinds, now_ms = self._guards.kinds(queue), self._store.now_ms()
        held, pause_ms = set[str](), math.inf
        for guards, tasks in kinds:
            for guard in guards:
                found = self._open(guard, now_ms)
                if found.count <= 0:
                    held |= tasks
                    pause_ms = min(pause_ms, max(1.0, found.next_ms - now_ms))
        if not held:
            return _NONE, math.inf
        everything = _NONE.union(*(tasks for _, tasks in kinds))
        return None if held == everything else frozenset(held), pause_ms

    # -- telling

    def _list_names(self) -> None:
        """Name the dependencies where whoever looks without the app finds them."""
        mine = self._guards.names()
        try:
            for _ in range(TRIES):
                (cell,) = self._store.cells.read([NAMES])
                known = set() if cell is None else set(msgspec.json.decode(cell.value, type=list[str]))
                if mine <= known:
                    break
                value = msgspec.json.encode(sorted(known | mine))
                if self._store.cells.swap([Swap(NAMES, version_of(cell), value)])[0]:
                    break
        except StoreError:
            return  # with the next flush, then
        self._listed = True

    def _changed(self, guard: Guard, state: State) -> None:
        """The swap was ours, or the copy is, so it is ours to tell."""
        before, after = guard.state.breaker, state.breaker
        if guard.d.breaker is None or before.status == after.status:
            return
        about, now_ms = guard.about, self._store.now_ms()
        why = flow.why_turned(guard.state, guard.d, guard.seen, now_ms) if after.status == "open" else ""
        lasts = f", for {show(max(0, after.until_ms - now_ms) / 1000)}" if after.status == "open" else ""
        text = f"{before.status} to {after.status}{lasts}" + (f": {why}" if why else "")
        self._tell(_TOLD[after.status], text.replace("_", "-"), about)
        if self._local_until_ms:
            return
        with contextlib.suppress(StoreError):  # to be looked at later; nothing depends on it
            note(self._store.cells, about, Transition(now_ms, before.status, after.status, why))

    def _exhausted(self, guard: Guard, refusals: Sequence[Refusal | None], now_ms: int) -> None:
        """Tell that retries wait, or die, for want of a token: once a minute is enough."""
        denied = [r for r in refusals if r is not None and r.deferral.why == "budget"]
        if denied and now_ms >= guard.exhausted_ms:
            guard.exhausted_ms = now_ms + EXHAUSTED_EVERY_MS
            wait_s = (max(r.at_ms for r in denied) - now_ms) / 1000
            what = "are dead" if denied[0].dead else f"wait, the last for {show(wait_s)}"
            text = f"no token left for {len(denied)} retries at once: they {what}"
            self._tell("budget_exhausted", text, guard.about)

    def _alone(self, error: StoreError, now_ms: int) -> None:
        if now_ms < self._local_until_ms:
            return
        if not self._local_until_ms:
            self._tell("flow_local", f"breakers and limits go by this process's own copies: {error}", "")
        self._local_until_ms = now_ms + LOCAL_MS

    def _together(self) -> None:
        if self._local_until_ms:
            self._local_until_ms = 0.0
            self._tell("flow_shared", "breakers and limits are shared with the other workers again", "")


def _shut(run: Run, now_ms: int) -> bool:
    guard = run.guards[-1]
    return flow.shut(guard.state, guard.d, run.delivery.message, now_ms)


def _with_passes(refusal: Refusal, granted: tuple[str, ...]) -> Refusal:
    """The refusal, with what other controls have granted."""
    if not granted:
        return refusal
    passes = tuple(dict.fromkeys((*refusal.deferral.passes, *granted)))
    return replace(refusal, deferral=replace(refusal.deferral, passes=passes))
