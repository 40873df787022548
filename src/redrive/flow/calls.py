"""Record the results of calls to a dependency in the state that all workers share. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ..duration import show
from ..fault import Fault, Kind
from ..message import Message
from . import breaker as breakers
from . import budget as budgets
from . import evidence, limits, weights
from . import ramp as ramps
from . import window as windows
from .breaker import Breaker
from .dependency import SEEN_MS, Dependency, DependencyState, PendingEvidence, with_breaker
from .permits import CLOSED

FAILURES = frozenset({Kind.TRANSIENT, Kind.TIMEOUT, Kind.CRASHED, Kind.DEFAULT})
OVERLOADS = frozenset({Kind.THROTTLED, Kind.QUOTA})
ASKED_MAX_S = 6 * 3600.0  # longest cool-down of one request, even if the dependency asked for a longer one


def apply(
    state: DependencyState, d: Dependency, seen: PendingEvidence, now_ms: int, worker: str = ""
) -> DependencyState:
    """Return the state with the evidence that `worker` gathered since it last wrote the state."""
    if d.budget is not None and (seen.firsts or seen.success or seen.failure):
        budget = budgets.deposit(state.budget, d.budget, seen.firsts, now_ms)
        state = replace(state, budget=budgets.earn(budget, d.budget, seen.success, seen.failure, now_ms))
    if d.breaker is not None:
        state = with_breaker(state, _recorded(state.breaker, d.breaker, seen, now_ms))
    if seen.unused and d.rate is not None:
        state = replace(state, tat_ms=state.tat_ms - seen.unused * 1000 / d.rate.per_s)
    if seen.spent and d.rate is not None:
        state = replace(state, tat_ms=weights.charge(state.tat_ms, d.rate, seen.spent, now_ms))
    if seen.asked_s:
        state = replace(state, cool=limits.cool(state.cool, seen.asked_s, now_ms))
    if d.concurrency is not None:
        done = seen.success + seen.slow + seen.retry_success
        overloads = seen.overloads + seen.failure + seen.slow_failure + seen.retry_failure
        state = replace(
            state,
            aimd=limits.steer(state.aimd, d.concurrency, done, overloads, now_ms),
            workers=_present(state.workers, worker, now_ms),
        )
    return state


def _recorded(state: breakers.State, breaker: Breaker, seen: PendingEvidence, now_ms: int) -> breakers.State:
    ended = {owner: word for owner, word in seen.probes.items() if word}
    for owner in seen.probes.keys() - ended.keys():
        state = breakers.give_back(state, owner)
    calls = breakers.CallCounts(
        success=seen.success,
        failure=seen.failure,
        slow=seen.slow,
        slow_failure=seen.slow_failure,
        throttled=seen.overloads,
        probes=ended,
        retry_success=seen.retry_success,
        retry_failure=seen.retry_failure,
        repeated=seen.repeated,
    )
    if state.ramp is not None and (seen.unused or seen.waited):
        ramp = ramps.put_back(state.ramp, seen.unused, now_ms)
        state = replace(state, ramp=ramps.wanted(ramp, now_ms) if seen.waited else ramp)
    return breakers.record_many(state, breaker, calls, now_ms)


def why_turned(before: DependencyState, d: Dependency, seen: PendingEvidence, now_ms: int) -> str:
    """Return why the breaker opened, given the state `before` the evidence `seen` was applied to it."""
    if d.breaker is None:
        return ""
    if before.breaker.status == "half_open":
        return f"of {d.breaker.probes} probes too many failed, or did not end in time"
    firsts = windows.moved(before.breaker.window, d.breaker.window_ms, now_ms)
    retries = windows.moved(before.breaker.retries, d.breaker.window_ms, now_ms)
    calls, failed, slow = windows.sums(firsts)
    again, again_failed, _ = windows.sums(retries)
    bad, slow = seen.failure + seen.slow_failure, slow + seen.slow + seen.slow_failure
    calls += again + seen.success + seen.slow + bad + seen.retry_success + seen.retry_failure
    said = f"{failed + again_failed + bad + seen.retry_failure} of {calls} calls in {show(d.breaker.window)} failed"
    return f"{said}, {slow} were slow" if slow else said


def note(
    seen: PendingEvidence, state: DependencyState, d: Dependency, message: Message, word: str, now_ms: int
) -> None:
    """Count in `seen` the result of a call for the message that was not a probe, as the word from `seen_of`. Throttled
    and ignored calls do not count for the breaker."""
    failed = word in ("failure", "slow_failure")
    if message.attempt > 1 and failed and _repeats(seen, state, d, message, now_ms):
        seen.repeated += 1
    elif message.attempt > 1 and word in ("success", "failure"):
        setattr(seen, f"retry_{word}", getattr(seen, f"retry_{word}") + 1)
    elif word in ("success", "failure", "slow", "slow_failure"):  # slow calls count for first attempts only
        setattr(seen, word, getattr(seen, word) + 1)
    if word in ("success", "slow"):
        seen.well_ms = now_ms


def _repeats(seen: PendingEvidence, state: DependencyState, d: Dependency, message: Message, now_ms: int) -> bool:
    if d.breaker is None or state.breaker.status not in CLOSED:
        return False
    failed_ms = next((f.at_ms for f in message.faults if f.at_ms >= message.life_ms and f.crash is None), None)
    if failed_ms is None:
        return False
    well_ms = max(seen.well_ms, state.breaker.well_ms)
    return evidence.repeats(failed_ms, well_ms, state.breaker.since_ms, d.breaker, now_ms)


def seen_of(fault: Fault | None, run_s: float, d: Dependency) -> tuple[str, float]:
    """Return the result of a run as the breaker's word, and the wait in seconds that the dependency requested.

    A fault that is not the dependency's is `ignored`; the word for a call that was cut off is "".
    """
    slow_s = None if d.breaker is None else d.breaker.slow_call
    slow = slow_s is not None and run_s > slow_s
    if fault is None:
        return "slow" if slow else "success", 0.0
    if fault.kind is Kind.INTERRUPTED:
        return "", 0.0
    if fault.steer not in ("", "retry_after"):
        return "ignored", 0.0
    asked_s = min(fault.retry_after_s or 0.0, ASKED_MAX_S)
    if fault.kind in OVERLOADS or fault.steer:
        return "throttled", asked_s
    if fault.kind in FAILURES:
        return "slow_failure" if slow else "failure", asked_s
    return "ignored", 0.0


def _present(workers: Mapping[str, int], worker: str, now_ms: int) -> Mapping[str, int]:
    heard = {name: at_ms for name, at_ms in workers.items() if abs(now_ms - at_ms) < SEEN_MS}
    return {**heard, worker: now_ms} if worker else heard
