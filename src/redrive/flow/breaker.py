"""The circuit breaker of a dependency: records recent calls, and decides if it may be called now, and by whom.

    closed ──enough failures or slow calls──▶ open ──its time is over──▶ half_open ──enough probes succeed──▶ closed
                                                ▲──too many probes fail, or their leases run out──┘

It judges the dependency, not the messages: evidence.py decides which calls count. Closing starts a ramp (ramp.py).
`record` and `record_many` record how calls ended, `ask` returns when a call may begin. Everything is pure: the caller
stores the State in a cell that all workers share, and replaces it with the returned one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ..policy import draw
from . import evidence
from . import ramp as ramps
from . import window as windows
from .breaker_rule import FAILED, SLOW, Breaker, Call
from .ramp import Ramp
from .window import CallWindow

RAMP_BAD = 0.1  # share of `failure_rate` from which on calls of one second make a ramp fall back
LOOK_AGAIN_MS = 1000  # ms until a caller asks again if the time of the next change is unknown

# The counts of probes when a breaker becomes half-open.
_UNTRIED: dict[str, Any] = {"probes": (), "passed": 0, "failed": 0, "slow": 0}
_NEW: dict[str, Any] = {"probes": (), "window": CallWindow(), "retries": CallWindow(), "places": 0}

BreakerStatus = Literal["closed", "open", "half_open", "forced_open", "forced_closed"]
BreakerOrder = Literal["open", "closed", "auto"]

__all__ = [
    "Breaker",
    "BreakerOrder",
    "BreakerStatus",
    "Call",
    "CallCounts",
    "CallPermit",
    "Lease",
    "State",
    "ask",
    "closed_until_ms",
    "enter",
    "force",
    "give_back",
    "look",
    "record",
    "record_many",
    "valid",
]


class Lease(Struct, frozen=True, array_like=True):
    """The lease of a probe in progress. From `until_ms` on the probe counts as failed."""

    owner: str
    until_ms: int


class State(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A breaker's state. Times are ms.

    `status`: closed, open, half_open, forced_open or forced_closed, since `since_ms`. `until_ms`: the end of the open
    state. `opened`: openings in a row. `turn` rises with every transition, and when a ramp falls back.
    """

    status: BreakerStatus = "closed"
    until_ms: int = 0
    opened: int = 0
    turn: int = 0
    since_ms: int = 0
    window: CallWindow = CallWindow()
    probes: tuple[Lease, ...] = ()
    passed: int = 0  # probes that succeeded since the breaker became half-open
    slow: int = 0  # slow probes among `passed`
    places: int = 0  # messages given a later time since the last change; the next gets a time after them
    ramp: Ramp | None = None
    failed: int = 0  # probes that failed since the breaker became half-open
    retries: CallWindow = CallWindow()  # retries: calls, failures, and failures that are no evidence (see evidence.py)
    well_ms: int = 0  # time of the last successful call
    held_until_ms: int = 0  # time at which a person's hold ends; 0: it lasts until a person ends it


class CallCounts(Struct, frozen=True):
    """Counts of the calls in a batch: first attempts by result, then retries. `repeated` counts retries that failed
    again and are not evidence (`evidence.repeats`). `probes`: the results of probes, by the owner of the lease."""

    success: int = 0
    failure: int = 0
    slow: int = 0
    slow_failure: int = 0
    ignored: int = 0
    throttled: int = 0
    probes: Mapping[str, str] = {}
    retry_success: int = 0
    retry_failure: int = 0
    repeated: int = 0


class CallPermit(NamedTuple):
    """When a call may begin: now if `at_ms` is not in the future. Otherwise `why` is breaker or ramp, for which the
    call waits. `pass_` is a slot of the ramp, with which the call need not ask again (see `valid`). `probe`: the owner
    holds the lease of a probe, which ends with `record` or `give_back`."""

    at_ms: int
    why: str = ""
    pass_: str = ""
    probe: bool = False


def record(state: State, breaker: Breaker, outcome: str, now_ms: int, probe: str | None = None) -> State:
    """Record the result of one call, a Call or its word. `probe`: the owner of the call's lease. While half-open, a
    call without a lease counts as a probe too, so a single caller needs none. Raises ValueError for another word."""
    call = Call(outcome)
    state = look(state, breaker, now_ms)
    if state.status == "half_open" and probe is None:
        return _probe_ended(state, breaker, call, now_ms)
    calls = CallCounts(probes={probe: call}) if probe is not None else replace(CallCounts(), **{call.value: 1})
    return record_many(state, breaker, calls, now_ms)


def record_many(state: State, breaker: Breaker, calls: CallCounts, now_ms: int) -> State:
    """Record the results of calls, all at `now_ms`. While open or half-open, only probes with a lease count."""
    state = look(state, breaker, now_ms)
    if state.status == "half_open":
        for owner, outcome in calls.probes.items():
            if any(lease.owner == owner for lease in state.probes):
                state = _probe_ended(give_back(state, owner), breaker, Call(outcome), now_ms)
        return _judged_so_far(state, breaker, now_ms)
    if state.status not in ("closed", "forced_closed"):
        return state
    words = [Call(outcome) for outcome in calls.probes.values()]
    failed = calls.failure + calls.slow_failure + sum(word in FAILED for word in words)
    slow = calls.slow + calls.slow_failure + sum(word in SLOW for word in words)
    throttled = calls.throttled + words.count(Call.THROTTLED)
    well = calls.success + calls.slow + sum(word in (Call.SUCCESS, Call.SLOW) for word in words)
    again = calls.retry_success + calls.retry_failure
    if state.ramp is not None:
        bad = failed + calls.retry_failure + throttled
        next_ramp = ramps.record(state.ramp, well + failed + again + throttled, bad, now_ms)
        state = look(replace(state, ramp=next_ramp), breaker, now_ms)
    if well or calls.retry_success:
        state = replace(state, well_ms=max(state.well_ms, now_ms))
    if state.status != "closed" or not (well or failed or again or calls.repeated):
        return state
    firsts = windows.add(state.window, breaker.window_ms, well + failed, failed, slow, now_ms)
    retries = windows.add(state.retries, breaker.window_ms, again, calls.retry_failure, calls.repeated, now_ms)
    state = replace(state, window=firsts, retries=retries)
    return _open(state, breaker, now_ms) if evidence.opens(firsts, retries, breaker) else state


def ask(state: State, breaker: Breaker, now_ms: int, owner: str, *, reserve: bool = True) -> tuple[State, CallPermit]:
    """Return when `owner` may call. While half-open, the first owners get the lease of a probe; asking again with a
    lease changes nothing. The others get a time to ask again, spread like the coming ramp. In a ramp an owner without
    an open slot gets one with `reserve`, and otherwise a time to ask again."""
    state = look(state, breaker, now_ms)
    match state.status:
        case "open":
            return _wait(state, breaker, state.until_ms)
        case "forced_open":
            return _wait(state, breaker, now_ms + round(breaker.open_for * 1000))
        case "half_open":
            return _ask_for_probe(state, breaker, now_ms, owner)
        case "closed" | "forced_closed":
            return _ask_ramp(state, now_ms, reserve)


def give_back(state: State, owner: str) -> State:
    """End the lease of a probe without a result: the call did not begin, or was cut off when the worker ended."""
    if all(lease.owner != owner for lease in state.probes):
        return state
    return replace(state, probes=tuple(lease for lease in state.probes if lease.owner != owner))


def valid(state: State, pass_: str) -> bool:
    """True if the pass is for the current ramp; passes for earlier ramps are void."""
    return pass_ == f"ramp {state.turn}"


def enter(state: State, now_ms: int) -> tuple[State, CallPermit]:
    """Let the owner of a valid pass call now, or return when to ask again with the pass: the ramp's rate also bounds
    owners that are late."""
    if state.ramp is None:
        return state, CallPermit(now_ms)
    ramp, at_ms = ramps.enter(state.ramp, now_ms)
    state = replace(state, ramp=ramp)
    return state, CallPermit(now_ms) if at_ms <= now_ms else CallPermit(at_ms, "ramp", f"ramp {state.turn}")


def look(state: State, breaker: Breaker, now_ms: int) -> State:
    """Return the state as it is at `now_ms`: open becomes half-open, a probe whose lease ran out counts as failed, a
    ramp falls back or ends, a timed hold ends. The same object is returned if nothing changes. An opening lasts no
    longer than the rule's longest, even if the clock was set back or the rule changed."""
    state = released(state, now_ms)
    if state.status == "open" and not 0 < state.until_ms - now_ms <= breaker.open_ms(100, 1.0) + LOOK_AGAIN_MS:
        return _turned(state, "half_open", min(now_ms, state.until_ms), **_UNTRIED)
    if state.status == "half_open" and state.probes:
        first = min(state.probes, key=lambda lease: lease.until_ms)
        if first.until_ms <= now_ms:  # as of that time: the breaker may have opened then, and be half-open again
            ended = _probe_ended(give_back(state, first.owner), breaker, Call.FAILURE, first.until_ms)
            return look(_judged_so_far(ended, breaker, first.until_ms), breaker, now_ms)
    if state.ramp is not None:
        ramp = ramps.look(state.ramp, RAMP_BAD * breaker.failure_rate, now_ms)
        if ramp is not state.ramp:
            return replace(state, ramp=ramp, turn=state.turn + (ramp is not None))
    return state


def closed_until_ms(state: State, breaker: Breaker, now_ms: int) -> int:
    """Return 0 if messages of the dependency may be claimed. If it is open, or all probes are taken, return when to
    check again. A ramp stops no claims: messages with slots would queue behind due messages without."""
    state = look(state, breaker, now_ms)
    match state.status:
        case "open":
            return state.until_ms
        case "forced_open":
            return now_ms + LOOK_AGAIN_MS
        case "half_open":
            return 0 if _probes_left(state, breaker) else now_ms + LOOK_AGAIN_MS
        case "closed" | "forced_closed":
            return 0


def released(state: State, now_ms: int) -> State:
    """End a hold whose time is over: a breaker forced open becomes half-open, one forced closed is closed."""
    if not 0 < state.held_until_ms <= now_ms or state.status not in ("forced_open", "forced_closed"):
        return state
    at_ms = state.held_until_ms
    if state.status == "forced_open":
        return _turned(state, "half_open", at_ms, **_UNTRIED, opened=0)
    return _turned(state, "closed", at_ms)


def force(state: State, breaker: Breaker, word: BreakerOrder, now_ms: int, until_ms: int = 0) -> State:
    """Force the breaker open or closed, until `until_ms` or (0) until the order "auto", which ends the hold: a breaker
    that was held open continues with probes. Forcing a breaker closed starts a ramp, unless it was closed."""
    state = look(state, breaker, now_ms)
    match word:
        case "open":
            if state.status == "forced_open":
                return state if state.held_until_ms == until_ms else replace(state, held_until_ms=until_ms)
            return _turned(state, "forced_open", now_ms, probes=(), ramp=None, held_until_ms=until_ms)
        case "closed":
            if state.status == "forced_closed":
                return state if state.held_until_ms == until_ms else replace(state, held_until_ms=until_ms)
            ramp = state.ramp if state.status == "closed" else ramps.start(breaker.probes, now_ms)
            return _turned(
                state, "forced_closed", now_ms, probes=(), window=CallWindow(), retries=CallWindow(), ramp=ramp,
                opened=0, held_until_ms=until_ms,
            )  # fmt: skip
        case "auto":
            if state.status == "forced_open":
                return _turned(state, "half_open", now_ms, **_UNTRIED, opened=0)
            return _turned(state, "closed", now_ms) if state.status == "forced_closed" else state
    raise ValueError(f"{word!r} is not what a breaker can be set to; expected open, closed or auto")


def _ask_ramp(state: State, now_ms: int, reserve: bool) -> tuple[State, CallPermit]:
    if state.ramp is None:
        return state, CallPermit(now_ms)
    if not reserve:
        if ramps.ready(state.ramp, now_ms):
            return replace(state, ramp=ramps.take_ready(state.ramp, 1, now_ms)), CallPermit(now_ms)
        at_ms = max(now_ms + 1, ramps.peek(state.ramp, now_ms)) + ramps.slot_ms(state.ramp.rate, state.places)
        return replace(state, places=state.places + 1, ramp=ramps.wanted(state.ramp, now_ms)), CallPermit(at_ms, "ramp")
    ramp, at_ms = ramps.take(state.ramp, now_ms)
    if at_ms <= now_ms:
        return enter(replace(state, ramp=ramp), now_ms)
    return replace(state, ramp=ramp), CallPermit(at_ms, "ramp", f"ramp {state.turn}")


def _ask_for_probe(state: State, breaker: Breaker, now_ms: int, owner: str) -> tuple[State, CallPermit]:
    if any(lease.owner == owner for lease in state.probes):
        return state, CallPermit(now_ms, probe=True)
    if not _probes_left(state, breaker):
        return _wait(state, breaker, now_ms + LOOK_AGAIN_MS)
    lease = Lease(owner, now_ms + round(breaker.probe_lease * 1000))
    return replace(state, probes=(*state.probes, lease)), CallPermit(now_ms, probe=True)


def _probes_left(state: State, breaker: Breaker) -> int:
    return max(0, breaker.probes - state.passed - state.failed - len(state.probes))


def _probe_ended(state: State, breaker: Breaker, call: Call, now_ms: int) -> State:
    """Count the result of a probe: open as soon as too many failed for certain, close once all have ended."""
    failed = call in FAILED
    slow = state.slow + (call in SLOW and not failed)
    state = replace(state, passed=state.passed + (not failed), failed=state.failed + failed, slow=slow)
    if state.failed / breaker.probes >= breaker.failure_rate:
        return _open(state, breaker, now_ms)
    if state.passed + state.failed < breaker.probes:
        return state
    if breaker.slow_rate is not None and state.slow / state.passed >= breaker.slow_rate:
        return _open(state, breaker, now_ms)
    return _turned(state, "closed", now_ms, **_NEW, well_ms=now_ms, ramp=ramps.start(breaker.probes, now_ms))


def _judged_so_far(state: State, breaker: Breaker, now_ms: int) -> State:
    """If no probe is in progress, judge those that have ended: open if too many failed, before others are sent."""
    ended = state.passed + state.failed
    if state.status != "half_open" or state.probes or not state.failed:
        return state
    return _open(state, breaker, now_ms) if state.failed / ended >= breaker.failure_rate else state


def _open(state: State, breaker: Breaker, now_ms: int) -> State:
    rested = state.status == "closed" and now_ms - state.since_ms >= breaker.window_ms
    opened = 0 if rested else state.opened
    until_ms = now_ms + breaker.open_ms(opened, draw(f"breaker {now_ms}", opened, state.turn))
    return _turned(state, "open", now_ms, **_NEW, until_ms=until_ms, opened=opened + 1, ramp=None)


def _wait(state: State, breaker: Breaker, from_ms: int) -> tuple[State, CallPermit]:
    """Let the caller wait until after `from_ms`, by a time that is spread like the ramp that would start there."""
    at_ms = from_ms + ramps.slot_ms(breaker.probes, state.places)
    return replace(state, places=state.places + 1), CallPermit(at_ms, "breaker")


def _turned(state: State, status: BreakerStatus, now_ms: int, **fields: object) -> State:
    return replace(state, status=status, since_ms=now_ms, turn=state.turn + 1, **{"held_until_ms": 0} | fields)
