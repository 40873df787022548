"""Decide which messages may call a dependency now.

`ask` goes through the controls in this order: breaker open, cool-down, concurrency, budget, rate, and last the
breaker's probes and ramp, so that no message takes a probe or a slot of the ramp and is then refused by another
control. Permits for a later time are stored with the message (`Deferral.passes`), which does not ask for them again.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..decide import Refusal
from ..message import Deferral, Message
from ..policy.backoff import draw
from . import breaker as breakers
from . import budget as budgets
from . import limits, weights
from . import ramp as ramps
from .breaker import Breaker
from .budget import Budget
from .dependency import Dependency, DependencyState, owner_of, with_breaker
from .limits import Rate

LATE_MS = 5000  # ms by which a message may use its permits late; later it asks again, and makes no burst
SLOT_LATE_MS = 1000  # the same for the slot of a rate, so that the messages of a worker that stalled make no burst
LOOK_MS = 250  # ms between checks if the time of a change is unknown
CLOSED, OPEN = ("closed", "forced_closed"), ("open", "forced_open")
_NO_COSTS: Mapping[str, float] = {}
_KEPT = ("budget", "ramp")  # permits valid even after SLOT_LATE_MS; the ramp itself prevents a burst


class Answers(Struct, frozen=True):
    """The answers to an `ask`: the refusal of each message, in order; None: the message may run. `probes` are the
    owners that run as probes, `used` the number of tokens used of those taken before."""

    refusals: list[Refusal | None]
    probes: frozenset[str] = frozenset()
    used: int = 0


class ClaimAllowance(Struct, frozen=True):
    """The number of messages that may be claimed now; if it is 0, `next_ms` is when to check again."""

    count: float
    next_ms: float = math.inf


def allowance(
    state: DependencyState, d: Dependency, now_ms: int, free: float = math.inf, pool: int = 0, each: float = 0.0
) -> ClaimAllowance:
    """Return how many messages of d may be claimed now. `free`: calls that may start; `pool`: tokens taken, with
    weights of `each` permits (0: the mean cost)."""
    if state.cool.until_ms > now_ms:
        return ClaimAllowance(0, state.cool.until_ms)
    least = ClaimAllowance(free, now_ms + LOOK_MS)
    if d.breaker is not None:
        breaker = breakers.look(state.breaker, d.breaker, now_ms)
        if breaker.status not in CLOSED:
            until_ms = breakers.closed_until_ms(breaker, d.breaker, now_ms)
            return ClaimAllowance(0, until_ms) if until_ms else _least(least, ClaimAllowance(d.breaker.probes))
        if breaker.ramp is not None:
            least = _least(
                least, ClaimAllowance(ramps.ready(breaker.ramp, now_ms) + pool, ramps.peek(breaker.ramp, now_ms))
            )
    if d.rate is not None:
        ready, next_ms = _ready(state, d, d.rate, now_ms, each)
        least = _least(least, ClaimAllowance(ready + pool, next_ms))
    return least


def each_of(state: DependencyState, rate: Rate) -> float:
    """Return the number of permits that a token stands for: 1, or with weights the mean cost of a call."""
    return 1.0 if rate.cost is None else state.cost or float(rate.burst)


def slot_ms(state: DependencyState, d: Dependency, rate: Rate, now_ms: int) -> int:
    """Return when the rate lets the next call start; now_ms if now."""
    return limits.ask(state.tat_ms, rate, now_ms)[1][0] if rate.cost is None else _ready(state, d, rate, now_ms, 0.0)[1]


def _ready(state: DependencyState, d: Dependency, rate: Rate, now_ms: int, each: float) -> tuple[int, int]:
    tat_ms = _tat_ms(state, d, rate, now_ms)
    if rate.cost is None:
        return limits.ready(tat_ms, rate, now_ms)
    return weights.ready(tat_ms, rate, now_ms, each or each_of(state, rate))


def _least(one: ClaimAllowance, other: ClaimAllowance) -> ClaimAllowance:
    if one.count <= 0 and other.count <= 0:
        return one if one.next_ms >= other.next_ms else other
    return one if one.count <= other.count else other


def bounded(state: DependencyState, d: Dependency) -> bool:
    """True if the dependency's messages need tokens before they are claimed."""
    return d.rate is not None or (d.breaker is not None and state.breaker.ramp is not None)


def take(
    state: DependencyState, d: Dependency, count: int, now_ms: int, each: float = 0.0
) -> tuple[DependencyState, int]:
    """Take up to `count` tokens, of the rate and of the ramp alike, for messages to be claimed; return their number.
    With weights a token stands for `each` permits (0: the mean cost), until `ask` counts the true costs."""
    if d.breaker is not None:
        state = with_breaker(state, breakers.look(state.breaker, d.breaker, now_ms))
    count = int(min(count, allowance(state, d, now_ms, each=each).count))
    if count <= 0:
        return state, 0
    if d.rate is not None and d.rate.cost is not None:
        permits = count * (each or each_of(state, d.rate))
        state = replace(state, tat_ms=weights.charge(_tat_ms(state, d, d.rate, now_ms), d.rate, permits, now_ms))
    elif d.rate is not None:
        state = replace(state, tat_ms=limits.ask(_tat_ms(state, d, d.rate, now_ms), d.rate, now_ms, count)[0])
    if d.breaker is not None and state.breaker.ramp is not None:
        ramp = ramps.take_ready(state.breaker.ramp, count, now_ms)
        state = with_breaker(state, replace(state.breaker, ramp=ramp))
    return state, count


def ask(
    state: DependencyState,
    d: Dependency,
    messages: Sequence[Message],
    now_ms: int,
    *,
    free: float = math.inf,
    pace_ms: float = 0.0,
    tokens: int = 0,
    each: float = 0.0,
    costs: Mapping[str, float] = _NO_COSTS,
) -> tuple[DependencyState, Answers]:
    """Decide if each message may run now, in order. `free`: further calls that this worker may start, `pace_ms`:
    duration of a call, `tokens`: number of tokens taken for the messages, with weights of `each` permits; `costs`: the
    messages' costs by their ids, for a rate with weights, which is a guard of its own."""
    if d.rate is not None and d.rate.cost is not None:
        return _ask_weighted(state, d, d.rate, messages, now_ms, tokens, each, costs)
    if d.breaker is not None:
        state = with_breaker(state, breakers.look(state.breaker, d.breaker, now_ms))
    refusals: list[Refusal | None] = [None] * len(messages)
    if d.concurrency is not None and free < len(messages):
        for n, at in enumerate(range(max(0, int(free)), len(messages))):
            at_ms = math.ceil(now_ms + pace_ms * (1 + n // max(1, free)))
            refusals[at] = _refusal("concurrency", d, max(at_ms, now_ms + 1), _passes(messages[at], now_ms))
    if calm(state, d, now_ms):
        going = [at for at, refusal in enumerate(refusals) if refusal is None]
        state, used = _ask_for_tokens(state, d, messages, going, refusals, now_ms, tokens)
        return state, Answers(refusals, used=used)
    probes, left = set[str](), tokens
    for at, message in enumerate(messages):
        if refusals[at] is None:
            state, refusals[at], probe, used = _ask_one(state, d, message, now_ms, left)
            left -= used
            if probe:
                probes.add(owner_of(message))
    return state, Answers(refusals, frozenset(probes), tokens - left)


def stopped(state: DependencyState, d: Dependency, now_ms: int) -> bool:
    """True if an open breaker or a cool-down now stops every message that calls the dependency."""
    if state.cool.until_ms > now_ms:
        return True
    return d.breaker is not None and breakers.look(state.breaker, d.breaker, now_ms).status in OPEN


def barred(state: DependencyState, d: Dependency, now_ms: int, pool: int = 0) -> bool:
    """True if the breaker, its ramp or a cool-down stops all claims now; rate and concurrency are not considered."""
    return allowance(state, replace(d, rate=None), now_ms, pool=pool).count <= 0


def calm(state: DependencyState, d: Dependency, now_ms: int) -> bool:
    """True if now neither the breaker nor a cool-down defers messages of the dependency."""
    closed = d.breaker is None or (state.breaker.ramp is None and state.breaker.status in CLOSED)
    return closed and state.cool.until_ms + state.cool.spread_ms <= now_ms


def shut(state: DependencyState, d: Dependency, message: Message, now_ms: int) -> bool:
    """True if a cool-down or an open breaker forbids the message's call; other controls are not considered."""
    if state.cool.until_ms + state.cool.spread_ms > now_ms and _cool_ms(state, message) > now_ms:
        return True
    return d.breaker is not None and breakers.look(state.breaker, d.breaker, now_ms).status in OPEN


def _ask_for_tokens(
    state: DependencyState,
    d: Dependency,
    messages: Sequence[Message],
    going: Sequence[int],
    refusals: list[Refusal | None],
    now_ms: int,
    tokens: int,
) -> tuple[DependencyState, int]:
    """Ask budget, then rate, for all of `going` at once; writes into `refusals`. Also returns the tokens used."""
    if d.budget is not None:
        spent = state.budget
        for at in going:
            message = messages[at]
            if message.attempt > 1:
                spent, refusals[at] = _withdraw(spent, d, d.budget, message, now_ms)
        state = replace(state, budget=spent) if spent is not state.budget else state
    if d.rate is None:
        return state, 0
    asking = [at for at in going if refusals[at] is None and not _has(messages[at], "limit", d, now_ms)]
    used = min(tokens, len(asking))
    if used == len(asking):
        return state, used
    asking = asking[used:]
    if d.per is None:
        going_now = min(len(asking), limits.ready(_tat_ms(state, d, d.rate, now_ms), d.rate, now_ms)[0])
        return _refuse_rest(state, d, d.rate, messages, asking, going_now, refusals, now_ms), used
    tat_ms, slots = limits.ask(state.tat_ms, d.rate, now_ms, len(asking))
    for at, at_ms in zip(asking, slots, strict=True):
        if at_ms > now_ms:
            message = messages[at]
            refusals[at] = _refusal("limit", d, at_ms, (*_passes(message, now_ms), *used_of(d, message)))
    return replace(state, tat_ms=tat_ms), used


def _ask_weighted(
    state: DependencyState,
    d: Dependency,
    rate: Rate,
    messages: Sequence[Message],
    now_ms: int,
    tokens: int,
    each: float,
    costs: Mapping[str, float],
) -> tuple[DependencyState, Answers]:
    """Ask a rate with weights: what the tokens took is given back, and each message pays its cost in order."""
    refusals: list[Refusal | None] = [None] * len(messages)
    asking = [at for at, message in enumerate(messages) if not _has(message, "limit", d, now_ms)]
    if not asking:
        return state, Answers(refusals)
    used = min(tokens, len(asking))
    tat_ms = weights.charge(_tat_ms(state, d, rate, now_ms), rate, -used * each, now_ms)
    wanted = [costs.get(messages[at].id, 1.0) for at in asking]
    keyed = d.per is not None
    tat_ms, later_ms, slots = weights.ask(tat_ms, rate, wanted, now_ms, state.later_ms, reserve=keyed)
    for at, at_ms in zip(asking, slots, strict=True):
        if at_ms > now_ms:
            passes = _passes(messages[at], now_ms)
            refusals[at] = _refusal("limit", d, at_ms, (*passes, *used_of(d, messages[at])) if keyed else passes)
    paid = [cost for cost, at_ms in zip(wanted, slots, strict=True) if cost and (keyed or at_ms <= now_ms)]
    state = replace(state, tat_ms=tat_ms, later_ms=later_ms, cost=weights.mean(state.cost, paid))
    return state, Answers(refusals, used=used)


def _tat_ms(state: DependencyState, d: Dependency, rate: Rate, now_ms: int) -> float:
    """Return the rate's theoretical arrival time; 0 if it is further ahead than a burst or a debt, and no slot can be
    reserved: the rate was changed or the clock set back."""
    ahead_ms = rate.burst * 1000 / rate.per_s if rate.cost is None else weights.ahead_ms(rate)
    most_ms = now_ms + ahead_ms + SLOT_LATE_MS  # a tolerance, since clocks differ a little
    reserves = d.per is not None and rate.cost is None  # any number of slots; a debt of weights has a bound
    return state.tat_ms if reserves or state.tat_ms <= most_ms else 0.0


def _refuse_rest(
    state: DependencyState,
    d: Dependency,
    rate: Rate,
    messages: Sequence[Message],
    asking: Sequence[int],
    going: int,
    refusals: list[Refusal | None],
    now_ms: int,
) -> DependencyState:
    """Grant slots to the first `going` messages and refuse the rest. Workers claim by allowance, and a reserved slot
    would be closed to all, even to its owner, so the rest are due when slots become free."""
    tat_ms, _ = limits.ask(_tat_ms(state, d, rate, now_ms), rate, now_ms, going)
    later_ms, slots = limits.ask(max(tat_ms, state.later_ms), rate, now_ms, len(asking) - going)
    for at, at_ms in zip(asking[going:], slots, strict=True):
        budget = _only(used_of(d, messages[at]), "budget")
        refusals[at] = _refusal("limit", d, max(at_ms, now_ms + 1), (*_passes(messages[at], now_ms), *budget))
    return replace(state, tat_ms=tat_ms, later_ms=later_ms if len(asking) > going else state.later_ms)


def _ask_one(
    state: DependencyState, d: Dependency, message: Message, now_ms: int, tokens: int
) -> tuple[DependencyState, Refusal | None, bool, int]:
    """Ask for one message while the breaker or a cool-down is active. Returns the state, the refusal or None, True for
    a probe, and the tokens used."""
    if d.breaker is not None and state.breaker.status in OPEN:
        return *_ask_breaker(state, d, d.breaker, message, _tokens(message, now_ms), now_ms), 0
    cool_ms = _cool_ms(state, message)
    if cool_ms > now_ms:
        return state, _refusal("cool-down", d, cool_ms, _tokens(message, now_ms)), False, 0
    refusals: list[Refusal | None] = [None]
    state, used = _ask_for_tokens(state, d, [message], [0], refusals, now_ms, tokens)
    if refusals[0] is not None or d.breaker is None:
        return state, refusals[0], False, used
    if tokens and state.breaker.status in CLOSED:
        return state, None, False, 1  # a token pays for the rate and for the ramp
    passes = (*_passes(message, now_ms), *used_of(d, message))
    return *_ask_breaker(state, d, d.breaker, message, passes, now_ms), used


def _cool_ms(state: DependencyState, message: Message) -> int:
    return limits.until(state.cool, draw(message.id, message.redrives, 0))


def _ask_breaker(
    state: DependencyState, d: Dependency, breaker: Breaker, message: Message, passes: tuple[str, ...], now_ms: int
) -> tuple[DependencyState, Refusal | None, bool]:
    slots = [p for p in passes if p.startswith("ramp ") and p.endswith(f" {d.name}")]
    if any(breakers.valid(state.breaker, p.removesuffix(f" {d.name}")) for p in slots):
        after, answer = breakers.enter(state.breaker, now_ms)
    else:
        after, answer = breakers.ask(state.breaker, breaker, now_ms, owner_of(message), reserve=d.per is not None)
    state = with_breaker(state, after)
    if answer.at_ms <= now_ms:
        return state, None, answer.probe
    kept = [p for p in passes if p not in slots]
    gained = (*kept, f"{answer.pass_} {d.name}") if answer.pass_ else kept
    return state, _refusal(answer.why, d, answer.at_ms, gained), False


def _withdraw(
    spent: budgets.BudgetState, d: Dependency, budget: Budget, message: Message, now_ms: int
) -> tuple[budgets.BudgetState, Refusal | None]:
    if _has(message, "budget", d, now_ms):
        return spent, None
    spent, at_ms = budgets.ask(spent, budget, now_ms)
    if at_ms <= now_ms:
        return spent, None
    refusal = _refusal("budget", d, at_ms, (*_passes(message, now_ms), f"budget {d.name}"))
    return spent, replace(refusal, dead=True) if budget.on_exhausted == "dead_letter" else refusal


def used_of(d: Dependency, message: Message) -> tuple[str, ...]:
    """Return passes for the tokens of an admitted message, for the case that another control defers the message."""
    budget = (f"budget {d.name}",) if d.budget is not None and message.attempt > 1 else ()
    return budget if d.rate is None else (*budget, f"limit {d.name}")


def _passes(message: Message, now_ms: int) -> tuple[str, ...]:
    """Return the passes granted when the message was deferred, without those that are too old. Before the time that
    they are for, as when a person made the message due, only a token of a retry budget counts: it was paid."""
    deferral = message.deferral
    if deferral is None:
        return ()
    late_ms = now_ms - deferral.at_ms
    if late_ms < -SLOT_LATE_MS:
        return _only(deferral.passes, "budget")
    if late_ms <= SLOT_LATE_MS:
        return deferral.passes
    return _only(deferral.passes, *_KEPT) if late_ms <= LATE_MS else _only(deferral.passes, "ramp")


def _tokens(message: Message, now_ms: int) -> tuple[str, ...]:
    """Return the passes that the message may keep for a later claim: all but an unused slot of a rate."""
    return _only(_passes(message, now_ms), *_KEPT)


def _only(passes: tuple[str, ...], *controls: str) -> tuple[str, ...]:
    return tuple(p for p in passes if p.partition(" ")[0] in controls)


def _has(message: Message, what: str, d: Dependency, now_ms: int) -> bool:
    return message.deferral is not None and f"{what} {d.name}" in _passes(message, now_ms)


def _refusal(why: str, d: Dependency, at_ms: int, passes: Iterable[str]) -> Refusal:
    return Refusal(at_ms, Deferral(why, d.name, tuple(dict.fromkeys(passes)), at_ms))
