"""Flow control in the worker: admit claimed messages by their dependencies' breakers, budgets and limits, and record
how the calls ended.

Everything here runs on the store thread. claims.py limits what is claimed; shared_state.py reads and writes the state
that all workers share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count as numbers
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ...decide import Refusal
from ...fault import classify
from ...flow import calls, permits, weights
from ...flow import dependency as flow
from ..bodies import arguments
from ..execution import may_run
from .claims import ClaimLimits
from .local_state import LimitState, LimitStates, of_queue
from .shared_state import FRESH_MS, TRIES, SharedState

if TYPE_CHECKING:
    from ...flow.dependency import DependencyState
    from ...message import Message
    from ...registry import Registry
    from ...store import Store
    from ..execution import Execution

_PACE = 0.1  # the weight of the last call in the mean duration of calls
_number = numbers()


class Flow:
    """The flow control of one worker. `notice(name, text, about)` reports transitions to observers."""

    weighted: set[str]

    def __init__(self, app: Registry, store: Store, worker: str, notice: Callable[[str, str, str], None]) -> None:
        self._tasks, self._store = app.tasks, store
        self._worker = f"{worker}/{next(_number)}"  # unique in the fleet: without identities all workers have one name
        self._guards = LimitStates(app)
        self.weighted = self._guards.weighted  # not empty: an error of a rate's `cost` may end a message without a run
        self._shared = SharedState(self._guards, store, self._worker, notice)
        self._sharing: set[LimitState] = set()  # guards with adaptive concurrency that have running calls here
        self.claims: ClaimLimits = ClaimLimits(self._guards, self._shared, store, self._worker)

    def __bool__(self) -> bool:
        return bool(self._guards)

    def admit(self, executions: Sequence[Execution]) -> None:
        """Set `guards` of the executions that flow control limits, and `refusal` of those that it defers."""
        now_ms = self._shared.now_ms()
        asking = [execution for execution in executions if not self._goes(execution, now_ms)]
        if not asking:
            return
        self._shared.refresh({guard for execution in asking for guard in execution.guards}, now_ms)
        asking = [execution for execution in asking if may_run(execution.delivery.message, self._tasks, now_ms)]
        if self.weighted:
            asking = [execution for execution in asking if self._weigh(execution, now_ms)]
        shut = [execution for execution in asking if _shut(execution, now_ms)]
        self._ask_each(1, shut, now_ms)  # these will not run, so they take no tokens of the other guards
        rest = [execution for execution in asking if execution not in set(shut)] if shut else asking
        for level in range(max((len(execution.guards) for execution in rest), default=0), 0, -1):
            self._ask_each(
                level,
                [execution for execution in rest if execution.refusal is None and len(execution.guards) >= level],
                now_ms,
            )

    def needs_body(self, message: Message) -> bool:
        """Return True if a cost of the message's call is computed from its arguments."""
        rates = [guard.d.rate for guard in self._guards.of(message)] if self.weighted else []
        return any(rate is not None and callable(rate.cost) for rate in rates)

    def _weigh(self, execution: Execution, now_ms: int) -> bool:
        """Set the costs of the execution's call. False if it is over: a function of a cost failed, as its handler
        would."""
        rates = {guard.d.name: guard.d.rate for guard in execution.guards if guard.d.name in self._guards.weighted}
        if not rates:
            return True
        task = self._tasks[execution.delivery.message.task]
        args, kwargs = cast("tuple[tuple[Any, ...], dict[str, Any]]", ((), {}))
        if any(rate is not None and callable(rate.cost) for rate in rates.values()):
            decoded = arguments(execution, task, now_ms)
            if decoded is None:
                return not execution.over
            args, kwargs = decoded
        try:
            execution.costs = {
                name: weights.cost_of(rate, args, kwargs) for name, rate in rates.items() if rate is not None
            }
        except Exception as error:
            execution.task, execution.fault, execution.over = task, classify(error, task.rules), True
        return not execution.over

    def _settle_costs(self, execution: Execution) -> None:
        """Give back what the call cost less than was taken before it, or take what it cost more."""
        extras = None if execution.context is None else execution.context._extras
        spent = {} if extras is None else extras.spent
        for guard in execution.guards if spent else ():
            if guard.d.name in execution.costs and guard.d.rate is not None:
                unit = guard.d.rate.unit or ""
                if "" in spent or unit in spent:
                    total = spent.get("", 0.0) + (spent.get(unit, 0.0) if unit else 0.0)
                    guard.seen.spent += total - execution.costs[guard.d.name]
                    self._shared.dirty.add(guard)

    def _goes(self, execution: Execution, now_ms: int) -> bool:
        """Set the execution's guards; return True if it may run without a check: it has none, or an idle one."""
        message = execution.delivery.message
        guards = self._guards.fixed.get((message.task, message.queue))
        if guards is None:
            guards = self._guards.of(message)
        if not guards:
            return True
        execution.guards = guards
        if message.attempt > 1 or message.deferral is not None:
            return False
        for guard in guards:
            d = guard.d
            if d.rate is not None or d.concurrency is not None or guard.read_ms < now_ms - FRESH_MS:
                return False
            if not permits.calm(guard.state, d, now_ms):
                return False
        guard.seen.firsts += 1
        self._shared.dirty.add(guard)
        return True

    def _ask_each(self, level: int, executions: Sequence[Execution], now_ms: int) -> None:
        """Ask, for each execution, the guard that is `level`th from the end of its guards, and apply the answers."""
        asked: dict[LimitState, list[Execution]] = {}
        for execution in executions:
            asked.setdefault(execution.guards[-level], []).append(execution)
        for guard in asked:
            self._shared.be_heard(guard, now_ms)
        left = {guard: [execution.delivery.message for execution in of_guard] for guard, of_guard in asked.items()}
        costs = {guard: _costs(guard, of_guard) for guard, of_guard in asked.items()}
        for _ in range(TRIES):
            answers = {guard: self._answer(guard, messages, costs[guard], now_ms) for guard, messages in left.items()}
            written = [(g, state) for g, (base, state, _) in answers.items() if state is not base or g.seen.here]
            lost = self._shared.write(written, now_ms) if written else set[LimitState]()
            for guard in answers.keys() - lost:
                del left[guard]
                self._tell(guard, asked[guard], answers[guard][2], now_ms, level == 1)
            if not left:
                return
        for guard in left:
            guard.state = answers[guard][1]
            self._tell(guard, asked[guard], answers[guard][2], now_ms, level == 1)

    def _answer(
        self, guard: LimitState, messages: Sequence[Message], costs: Mapping[str, float], now_ms: int
    ) -> tuple[DependencyState, DependencyState, permits.Answers]:
        """Return the guard's state with local evidence, its state after these messages, and its answers to them."""
        base = self._shared.with_seen(guard, now_ms)
        free, pace_ms, tokens = guard.free(self._worker), guard.pace_ms, guard.pool
        return base, *permits.ask(
            base, guard.d, messages, now_ms, free=free, pace_ms=pace_ms, tokens=tokens, each=guard.each, costs=costs
        )

    def _tell(
        self, guard: LimitState, executions: Sequence[Execution], answers: permits.Answers, now_ms: int, last: bool
    ) -> None:
        """Apply the guard's answers: let each execution run, or defer it. `last`: no other guard has to answer."""
        guard.pool -= answers.used
        if answers.used and not guard.pool:
            guard.seen.waited = True
            self._shared.dirty.add(guard)
        self._shared.exhausted(guard, answers.refusals, now_ms)
        for execution, refusal in zip(executions, answers.refusals, strict=True):
            message = execution.delivery.message
            if refusal is not None:
                execution.refusal = _with_passes(refusal, execution.granted)
                if message.group is not None:
                    self.claims.grouped.add(message.task)
                continue
            if answers.probes and flow.owner_of(message) in answers.probes:
                execution.probes = (*execution.probes, guard)
            if not last:
                execution.granted = (*execution.granted, *permits.used_of(guard.d, message))
            else:
                guard.running += 1
                execution.counted = True
                if guard.d.concurrency is not None:
                    self._sharing.add(guard)
                guard.seen.firsts += message.attempt == 1
                self._shared.dirty.add(guard)

    def ended(self, execution: Execution) -> None:
        """Record how the call of an ended execution ended, or that the call never started."""
        last = execution.guards[-1]
        if execution.costs and execution.started_s:
            self._settle_costs(execution)
        if of_queue(last.d):
            return  # failures of one task must not count for other tasks of its queue
        if execution.decision is not None or not execution.started_s:
            self._give_back_probes(execution)  # also if another guard deferred the execution
            return
        if execution.silent and not execution.probes:
            return
        run_s = execution.finished_s - execution.started_s
        last.pace_ms += _PACE * (run_s * 1000 - last.pace_ms)
        for guard in execution.guards:
            if guard is last or guard.d.breaker is not None:  # `last` is the dependency's own guard
                self._ended(guard, execution, run_s, guard is last)
        execution.probes = ()

    def _ended(self, guard: LimitState, execution: Execution, run_s: float, last: bool) -> None:
        seen, message = guard.seen, execution.delivery.message
        self._shared.dirty.add(guard)
        word, asked_s = calls.seen_of(execution.fault, run_s, guard.d)
        probing = guard in execution.probes
        if word == "success" and not probing and message.attempt == 1:  # a fast path for most calls
            seen.success += 1
            seen.well_ms = self._shared.last_ms
            return
        if not last:
            asked_s = 0.0  # a wait that the provider requests for one key holds back only that key
        seen.asked_s = max(seen.asked_s, asked_s)
        if probing:
            self._probe_ended(guard, flow.owner_of(message), word)
        else:
            calls.note(seen, guard.state, guard.d, message, word, self._shared.last_ms)
        if word == "throttled":
            seen.overloads += 1
        if asked_s or self._opens(guard):
            self._shared.urgent.add(guard)

    def left(self, execution: Execution) -> None:
        """Stop counting the call of an execution that the worker no longer holds."""
        if execution.counted:
            guard, execution.counted = execution.guards[-1], False
            guard.running -= 1
            if not guard.running:
                self._sharing.discard(guard)
            self._give_back_probes(execution)  # the call never started, or its end is not reported

    def _give_back_probes(self, execution: Execution) -> None:
        for guard in execution.probes:
            self._probe_ended(guard, flow.owner_of(execution.delivery.message), "")
        execution.probes = ()

    def _probe_ended(self, guard: LimitState, owner: str, word: str) -> None:
        guard.seen.probes = {**guard.seen.probes, owner: word}
        self._shared.dirty.add(guard)
        self._shared.urgent.add(guard)

    def _opens(self, guard: LimitState) -> bool:
        """Return True if the local evidence would change the guard's breaker, so that it must be written at once."""
        seen = guard.seen
        bad = seen.failure + seen.slow + seen.slow_failure + seen.retry_failure
        bad += seen.overloads if guard.state.breaker.ramp else 0
        if guard.d.breaker is None or not bad:
            return False
        state = self._shared.with_seen(guard, self._store.now_ms())
        return state.breaker.turn != guard.state.breaker.turn

    def tick(self) -> None:
        """Write the evidence: a few times a second, or at once for a guard whose breaker it changes, so that this one's
        change does not write the counts of a thousand other keys."""
        now_ms = self._shared.now_ms()
        urgent, self._shared.urgent = self._shared.urgent, set()
        if now_ms < self._shared.flush_ms:
            self._shared.flush(urgent, now_ms)
            return
        self._shared.flush_ms = now_ms + FRESH_MS
        self._shared.list_names(now_ms)
        for guard in self._guards.whole.values():
            if guard.pool and guard.taken_ms < now_ms - FRESH_MS:
                self._shared.put_back(guard)
        for guard in self._sharing:
            self._shared.be_heard(guard, now_ms)
        self._shared.flush([*self._shared.dirty], now_ms)
        self._shared.note_turns()

    def close(self) -> None:
        """Return unused tokens, and write the evidence that is left."""
        for guard in self._guards.whole.values():
            self._shared.put_back(guard)
        self._shared.flush([*self._shared.dirty], self._store.now_ms())
        self._shared.note_turns()


def _shut(execution: Execution, now_ms: int) -> bool:
    guard = execution.guards[-1]
    return permits.shut(guard.state, guard.d, execution.delivery.message, now_ms)


def _costs(guard: LimitState, executions: Sequence[Execution]) -> Mapping[str, float]:
    """Return the costs of these executions' calls by the guard's rate, by message; empty for a rate without costs."""
    name = guard.d.name
    return {each.delivery.message.id: each.costs[name] for each in executions if name in each.costs}


def _with_passes(refusal: Refusal, granted: tuple[str, ...]) -> Refusal:
    """Return the refusal of one guard with the passes that other guards have granted added."""
    if not granted:
        return refusal
    passes = tuple(dict.fromkeys((*refusal.deferral.passes, *granted)))
    return replace(refusal, deferral=replace(refusal.deferral, passes=passes))
