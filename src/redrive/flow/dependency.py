"""What stands between the messages of one dependency and their runs, as one value that all workers share.

`ask` goes through the controls in this order: breaker open, cool-down, concurrency, budget, rate, and last the
breaker's probes and ramp, so that neither is given to a message that something else holds back. What a message was
granted for the time that it is put off to goes with it (`Deferral.passes`) and is not asked for again. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..decide import Refusal
from ..duration import show
from ..errors import ConfigError
from ..fault import Fault, Kind
from ..message import Cell, Deferral, Message
from ..policy import draw
from . import breaker as breakers
from . import budget as budgets
from . import evidence, limits
from . import ramp as ramps
from . import window as windows
from .breaker import Breaker
from .budget import Budget
from .idempotency import hashed
from .limits import Aimd, Rate

LATE_MS = 5000  # how late a message may use what it was granted; then it asks again, lest all come at once
SLOT_LATE_MS = 1000  # the same for a slot of a rate: a stalled worker makes no burst of them
LOOK_MS = 250  # when to look again for what nobody can say when it changes
_KEPT = ("budget", "ramp")  # a ramp sees to it by itself that those who come late make no burst
FAILURES = frozenset({Kind.TRANSIENT, Kind.TIMEOUT, Kind.CRASHED, Kind.DEFAULT})
OVERLOADS = frozenset({Kind.THROTTLED, Kind.QUOTA})
ASKED_MAX_S = 6 * 3600.0  # a cool-down is no longer than that at a time, whatever was asked
KEY_MAX = 100  # characters of a key that is written out in the name of its cell
_PER = re.compile(r"group|args(\.[^.\s]+)+")
_CLOSED, _OPEN = ("closed", "forced_closed"), ("open", "forced_open")
_KEEP_MS = 7 * 86_400_000
SEEN_MS = 10_000  # for how long a worker that said nothing has its share


class Dependency(Struct, frozen=True):
    """Something that tasks call, and how it is spared. `per` splits it: by message group, or by an argument."""

    name: str
    budget: Budget | None = None
    breaker: Breaker | None = None
    rate: Rate | None = None
    concurrency: Aimd | None = None
    per: str | None = None

    def __post_init__(self) -> None:
        for what, kind in (("budget", Budget), ("breaker", Breaker), ("rate", Rate), ("concurrency", Aimd)):
            value = getattr(self, what)
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"dependency {self.name!r}: {what}={value!r}; expected a {kind.__name__} or None")
        if self.per is not None and not _PER.fullmatch(str(self.per)):
            raise ConfigError(
                f"dependency {self.name!r}: per={self.per!r}; expected 'group', or an argument such as 'args.account'"
            )
        if "/" in self.name:
            raise ConfigError(f"dependency {self.name!r}: expected a name without '/', which stands before a key")


class State(Struct, frozen=True, array_like=True):
    """What the fleet knows of one dependency (of one key of it). `workers`: who shares its concurrency, and when each
    was last heard of, in ms."""

    breaker: breakers.State = breakers.State()
    budget: budgets.State = budgets.State()
    tat_ms: float = 0.0
    cool: limits.CoolDown = limits.CoolDown()
    aimd: limits.AimdState = limits.AimdState()
    workers: Mapping[str, int] = {}
    later_ms: float = 0.0  # up to when those came back that the rate held, and that no slot was reserved for


class Seen(Struct):
    """What happened since it was last written to the state. `firsts` are first attempts that were let go; how those
    ended comes next, then how retries did (see `Calls`). `asked_s`: the longest wait that was asked for."""

    firsts: int = 0
    success: int = 0
    failure: int = 0
    slow: int = 0
    slow_failure: int = 0
    retry_success: int = 0
    retry_failure: int = 0
    repeated: int = 0
    well_ms: int = 0  # when a call last succeeded
    overloads: int = 0
    asked_s: float = 0.0
    unused: int = 0  # of what `take` gave
    waited: bool = False  # all that `take` gave was used, so more may wait
    here: bool = False  # this worker takes part in its concurrency
    probes: dict[str, str] = {}

    def __bool__(self) -> bool:
        calls = self.firsts or self.success or self.failure or self.slow or self.slow_failure or self.overloads
        retries = self.retry_success or self.retry_failure or self.repeated
        return bool(calls or retries or self.asked_s or self.probes or self.unused or self.waited or self.here)


class Answers(Struct, frozen=True):
    """Per message of an `ask`, in order: what is against it, if anything. `probes` are the owners that go as probes,
    `used` is how many of the tokens taken before were."""

    refusals: list[Refusal | None]
    probes: frozenset[str] = frozenset()
    used: int = 0


class Allowance(Struct, frozen=True):
    """How many messages may be claimed, and when to look again where there are none."""

    count: float
    next_ms: float = math.inf


def cell_of(name: str, key: str) -> str:
    """The cell that holds the state of a dependency, of this key of it."""
    return f"flow/{about_of(name, key)}"


def about_of(name: str, key: str) -> str:
    """A dependency, and this key of it: by a hash where it is long or odd, as it is anybody's word and not every store
    takes every name."""
    if len(key) > KEY_MAX or not key.isprintable():
        key = f"#{hashed(key.encode(errors='surrogatepass')).hex()}"
    return f"{name}/{key}" if key else name


def key_of(d: Dependency, message: Message) -> str:
    """The key of `per`; empty where the message has none, or its body lies elsewhere."""
    if d.per is None:
        return ""
    if d.per == "group":
        return message.group or ""
    try:
        value = msgspec.json.decode(message.body)
        for name in d.per.split(".")[1:]:
            value = value[name]
        return str(value)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError):
        return ""


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(State).decode


def decode(cell: Cell | None) -> State:
    """The state as it was written; a fresh one where there is none, or another version of redrive wrote it."""
    try:
        return State() if cell is None else _decode(cell.value)
    except msgspec.DecodeError:
        return State()


def ttl_ms(state: State) -> int | None:
    """How long a written state is kept untouched: a week, and what a person forced until it is taken back."""
    return None if state.breaker.status.startswith("forced") else _KEEP_MS


def owner_of(message: Message) -> str:
    """Who holds a probe: one claim of a message."""
    return f"{message.id} {message.fence}"


def allowance(state: State, d: Dependency, now_ms: int, free: float = math.inf, pool: int = 0) -> Allowance:
    """How many messages of this dependency may run now, as far as that can be said before they are seen. `pool`: how
    many tokens were taken for them."""
    if state.cool.until_ms > now_ms:
        return Allowance(0, state.cool.until_ms)
    found = Allowance(free, now_ms + LOOK_MS)
    if d.breaker is not None:
        breaker = breakers.look(state.breaker, d.breaker, now_ms)
        if breaker.status not in _CLOSED:
            until_ms = breakers.closed_until_ms(breaker, d.breaker, now_ms)
            return Allowance(0, until_ms) if until_ms else _least(found, Allowance(d.breaker.probes))
        if breaker.ramp is not None:
            found = _least(found, Allowance(ramps.ready(breaker.ramp, now_ms) + pool, ramps.peek(breaker.ramp, now_ms)))
    if d.rate is not None:
        ready, next_ms = limits.ready(_tat_ms(state, d, d.rate, now_ms), d.rate, now_ms)
        found = _least(found, Allowance(ready + pool, next_ms))
    return found


def _least(one: Allowance, other: Allowance) -> Allowance:
    if one.count <= 0 and other.count <= 0:
        return one if one.next_ms >= other.next_ms else other
    return one if one.count <= other.count else other


def bounded(state: State, d: Dependency) -> bool:
    """Whether tokens are to be taken before its messages are claimed."""
    return d.rate is not None or (d.breaker is not None and state.breaker.ramp is not None)


def take(state: State, d: Dependency, count: int, now_ms: int) -> tuple[State, int]:
    """Take up to `count` tokens, of rate and ramp alike, for messages that are yet to be claimed."""
    if d.breaker is not None:
        state = _with_breaker(state, breakers.look(state.breaker, d.breaker, now_ms))
    count = int(min(count, allowance(state, d, now_ms).count))
    if count <= 0:
        return state, 0
    if d.rate is not None:
        state = replace(state, tat_ms=limits.ask(_tat_ms(state, d, d.rate, now_ms), d.rate, now_ms, count)[0])
    if d.breaker is not None and state.breaker.ramp is not None:
        ramp = ramps.take_ready(state.breaker.ramp, count, now_ms)
        state = _with_breaker(state, replace(state.breaker, ramp=ramp))
    return state, count


def ask(
    state: State,
    d: Dependency,
    messages: Sequence[Message],
    now_ms: int,
    *,
    free: float = math.inf,
    pace_ms: float = 0.0,
    tokens: int = 0,
) -> tuple[State, Answers]:
    """Whether each of these may run now, in order. `free`: how many places of its concurrency this worker has left,
    `pace_ms`: how long a run takes, `tokens`: how many were taken for them."""
    if d.breaker is not None:
        state = _with_breaker(state, breakers.look(state.breaker, d.breaker, now_ms))
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


def stopped(state: State, d: Dependency, now_ms: int) -> bool:
    """Whether it is left alone altogether: by an open breaker, or as it asked to be."""
    if state.cool.until_ms > now_ms:
        return True
    return d.breaker is not None and breakers.look(state.breaker, d.breaker, now_ms).status in _OPEN


def calm(state: State, d: Dependency, now_ms: int) -> bool:
    """Whether neither breaker nor cool-down has anything against anybody."""
    closed = d.breaker is None or (state.breaker.ramp is None and state.breaker.status in _CLOSED)
    return closed and state.cool.until_ms + state.cool.spread_ms <= now_ms


def shut(state: State, d: Dependency, message: Message, now_ms: int) -> bool:
    """Whether it is not to be called for this message, whatever else is free: it asked for that, or its breaker is open
    and not to be tried yet."""
    if state.cool.until_ms + state.cool.spread_ms > now_ms and _cool_ms(state, message) > now_ms:
        return True
    return d.breaker is not None and breakers.look(state.breaker, d.breaker, now_ms).status in _OPEN


def _ask_for_tokens(
    state: State,
    d: Dependency,
    messages: Sequence[Message],
    going: Sequence[int],
    refusals: list[Refusal | None],
    now_ms: int,
    tokens: int,
) -> tuple[State, int]:
    """Budget, then rate, for those going, all of a batch at once; refuses in place. Also how many tokens were used."""
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


def _tat_ms(state: State, d: Dependency, rate: Rate, now_ms: int) -> float:
    """Where no slots are reserved, it is no further ahead than a burst: else it was kept under another rate, or the
    clock was set back, and it begins anew."""
    most_ms = now_ms + rate.burst * 1000 / rate.per_s + SLOT_LATE_MS  # as clocks differ a little
    return state.tat_ms if d.per is not None or state.tat_ms <= most_ms else 0.0


def _refuse_rest(
    state: State,
    d: Dependency,
    rate: Rate,
    messages: Sequence[Message],
    asking: Sequence[int],
    going: int,
    refusals: list[Refusal | None],
    now_ms: int,
) -> State:
    """Slots for the first ones, none for the rest: where claims go by allowance, a slot that is reserved is closed to
    all, its owner too. They come back as the slots will open."""
    tat_ms, _ = limits.ask(_tat_ms(state, d, rate, now_ms), rate, now_ms, going)
    later_ms, slots = limits.ask(max(tat_ms, state.later_ms), rate, now_ms, len(asking) - going)
    for at, at_ms in zip(asking[going:], slots, strict=True):
        budget = _only(used_of(d, messages[at]), "budget")
        refusals[at] = _refusal("limit", d, max(at_ms, now_ms + 1), (*_passes(messages[at], now_ms), *budget))
    return replace(state, tat_ms=tat_ms, later_ms=later_ms if len(asking) > going else state.later_ms)


def _ask_one(
    state: State, d: Dependency, message: Message, now_ms: int, tokens: int
) -> tuple[State, Refusal | None, bool, int]:
    """As `ask`, for one, where the breaker or a cool-down has its say; whether it goes as a probe, and how many tokens
    it used."""
    if d.breaker is not None and state.breaker.status in _OPEN:
        return *_ask_breaker(state, d, d.breaker, message, _tokens(message, now_ms), now_ms), 0
    cool_ms = _cool_ms(state, message)
    if cool_ms > now_ms:
        return state, _refusal("cool-down", d, cool_ms, _tokens(message, now_ms)), False, 0
    refusals: list[Refusal | None] = [None]
    state, used = _ask_for_tokens(state, d, [message], [0], refusals, now_ms, tokens)
    if refusals[0] is not None or d.breaker is None:
        return state, refusals[0], False, used
    if tokens and state.breaker.status in _CLOSED:
        return state, None, False, 1  # it was taken of the ramp too
    passes = (*_passes(message, now_ms), *used_of(d, message))
    return *_ask_breaker(state, d, d.breaker, message, passes, now_ms), used


def _cool_ms(state: State, message: Message) -> int:
    return limits.until(state.cool, draw(message.id, message.redrives, 0))


def _ask_breaker(
    state: State, d: Dependency, breaker: Breaker, message: Message, passes: tuple[str, ...], now_ms: int
) -> tuple[State, Refusal | None, bool]:
    slots = [p for p in passes if p.startswith("ramp ") and p.endswith(f" {d.name}")]
    if any(breakers.valid(state.breaker, p.removesuffix(f" {d.name}")) for p in slots):
        after, answer = breakers.enter(state.breaker, now_ms)
    else:
        after, answer = breakers.ask(state.breaker, breaker, now_ms, owner_of(message), reserve=d.per is not None)
    state = _with_breaker(state, after)
    if answer.at_ms <= now_ms:
        return state, None, answer.probe
    kept = [p for p in passes if p not in slots]
    gained = (*kept, f"{answer.pass_} {d.name}") if answer.pass_ else kept
    return state, _refusal(answer.why, d, answer.at_ms, gained), False


def _withdraw(
    spent: budgets.State, d: Dependency, budget: Budget, message: Message, now_ms: int
) -> tuple[budgets.State, Refusal | None]:
    if _has(message, "budget", d, now_ms):
        return spent, None
    spent, at_ms = budgets.ask(spent, budget, now_ms)
    if at_ms <= now_ms:
        return spent, None
    refusal = _refusal("budget", d, at_ms, (*_passes(message, now_ms), f"budget {d.name}"))
    return spent, replace(refusal, dead=True) if budget.on_exhausted == "dead_letter" else refusal


def used_of(d: Dependency, message: Message) -> tuple[str, ...]:
    """The passes of what a message that may go has taken here, for when something else puts it off."""
    budget = (f"budget {d.name}",) if d.budget is not None and message.attempt > 1 else ()
    return budget if d.rate is None else (*budget, f"limit {d.name}")


def apply(state: State, d: Dependency, seen: Seen, now_ms: int, worker: str = "") -> State:
    """The state with what was seen since."""
    if d.budget is not None and (seen.firsts or seen.success or seen.failure):
        budget = budgets.deposit(state.budget, d.budget, seen.firsts, now_ms)
        state = replace(state, budget=budgets.earn(budget, d.budget, seen.success, seen.failure, now_ms))
    if d.breaker is not None:
        state = _with_breaker(state, _recorded(state.breaker, d.breaker, seen, now_ms))
    if seen.unused and d.rate is not None:
        state = replace(state, tat_ms=state.tat_ms - seen.unused * 1000 / d.rate.per_s)
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


def _recorded(state: breakers.State, breaker: Breaker, seen: Seen, now_ms: int) -> breakers.State:
    ended = {owner: word for owner, word in seen.probes.items() if word}
    for owner in seen.probes.keys() - ended.keys():
        state = breakers.give_back(state, owner)
    calls = breakers.Calls(
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


def why_turned(before: State, d: Dependency, seen: Seen, now_ms: int) -> str:
    """Why the breaker opened, given what was known before and what was seen since."""
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


def share(state: State, d: Dependency, worker: str) -> int:
    """How many runs this worker may have under way."""
    assert d.concurrency is not None
    return limits.share(limits.height(state.aimd, d.concurrency), [*state.workers], worker)


def unheard(state: State, worker: str, now_ms: int) -> bool:
    """Whether a worker that has runs of it should say so again, lest its share be given to others."""
    return abs(now_ms - state.workers.get(worker, 0)) > SEEN_MS / 4


def note(seen: Seen, state: State, d: Dependency, message: Message, word: str, now_ms: int) -> None:
    """Count in `seen` how a call ended that was no probe, by the word of `seen_of`: throttled and ignored ones are no
    calls to the breaker."""
    failed = word in ("failure", "slow_failure")
    if message.attempt > 1 and failed and _repeats(seen, state, d, message, now_ms):
        seen.repeated += 1
    elif message.attempt > 1 and word in ("success", "failure"):
        setattr(seen, f"retry_{word}", getattr(seen, f"retry_{word}") + 1)
    elif word in ("success", "failure", "slow", "slow_failure"):  # a slow call is evidence, whoever made it
        setattr(seen, word, getattr(seen, word) + 1)
    if word in ("success", "slow"):
        seen.well_ms = now_ms


def _repeats(seen: Seen, state: State, d: Dependency, message: Message, now_ms: int) -> bool:
    if d.breaker is None or state.breaker.status not in _CLOSED:
        return False
    failed_ms = next((f.at_ms for f in message.faults if f.at_ms >= message.life_ms and f.crash is None), None)
    if failed_ms is None:
        return False
    well_ms = max(seen.well_ms, state.breaker.well_ms)
    return evidence.repeats(failed_ms, well_ms, state.breaker.since_ms, d.breaker, now_ms)


def seen_of(fault: Fault | None, run_s: float, d: Dependency) -> tuple[str, float]:
    """What one run's end says of its dependency, as the breaker's word, and the wait in seconds that was asked for.

    A fault that is not the dependency's says `ignored`; one of a run that was cut off says nothing, the empty word.
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


def _with_breaker(state: State, breaker: breakers.State) -> State:
    return state if breaker is state.breaker else replace(state, breaker=breaker)


def _present(workers: Mapping[str, int], worker: str, now_ms: int) -> Mapping[str, int]:
    heard = {name: at_ms for name, at_ms in workers.items() if abs(now_ms - at_ms) < SEEN_MS}
    return {**heard, worker: now_ms} if worker else heard


def _passes(message: Message, now_ms: int) -> tuple[str, ...]:
    """What it has for now, from when it was put off."""
    deferral = message.deferral
    if deferral is None:
        return ()
    late_ms = now_ms - deferral.at_ms
    if late_ms <= SLOT_LATE_MS:
        return deferral.passes
    return _only(deferral.passes, *_KEPT) if late_ms <= LATE_MS else _only(deferral.passes, "ramp")


def _tokens(message: Message, now_ms: int) -> tuple[str, ...]:
    """Those of its passes that are good at other times too: a rate's slot that is not used is gone."""
    return _only(_passes(message, now_ms), *_KEPT)


def _only(passes: tuple[str, ...], *controls: str) -> tuple[str, ...]:
    return tuple(p for p in passes if p.partition(" ")[0] in controls)


def _has(message: Message, what: str, d: Dependency, now_ms: int) -> bool:
    return message.deferral is not None and f"{what} {d.name}" in _passes(message, now_ms)


def _refusal(why: str, d: Dependency, at_ms: int, passes: Iterable[str]) -> Refusal:
    return Refusal(at_ms, Deferral(why, d.name, tuple(dict.fromkeys(passes)), at_ms))
