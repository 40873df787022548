"""How long to wait before the next attempt, and whether there is one: `Backoff`, `Retry`, `presets`, `preview`; and
when a message is `Poison`.

All of it is pure: values in, values out. The retry index n counts from 0, the first retry.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..duration import Duration, seconds

if TYPE_CHECKING:
    from ..fault import Fault
    from ..message import Decision, Message

Jitter = Literal["none", "additive", "symmetric", "full", "equal", "decorrelated"]
FaultKey = str | type[BaseException]
CustomDelay = Callable[[int, "Fault | None"], float]
Override = Callable[["Message", "Fault", float], "Decision | None"]

YEAR_S = 365 * 86_400.0  # the cap where none is given
CENTURY_S = 100 * YEAR_S  # the cap of every cap: keeps sums finite and times within a calendar
_JITTERS: tuple[str, ...] = get_args(Jitter)
_N_MAX = 10**18  # a larger n changes no delay, but would not fit into a float

FINAL_KINDS = frozenset({"permanent", "unreadable", "unroutable"})
KINDS = FINAL_KINDS | {"transient", "throttled", "quota", "timeout", "crashed", "interrupted", "default"}
_CATCH_ALL = frozenset({"Exception", "BaseException"})  # too wide to mean that a permanent fault shall be retried
_CACHE_MAX = 256


def draw(message_id: str, redrives: int, fence: int) -> float:
    """Return the uniform draw in [0, 1) for one claim of a message.

    A hash of its arguments: the same in every process and Python version, without a random source, and new with every
    fence, so that two messages that collide once do not collide for ever.

    >>> draw("a", 0, 1) == draw("a", 0, 1), draw("a", 0, 1) == draw("a", 0, 2)
    (True, False)
    """
    from hashlib import blake2b  # it loads OpenSSL, which importing redrive need not pay for

    text = f"{redrives}/{fence}/{message_id}"  # numbers first, so that no two triples share a text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """The delay before retry n: a term d, capped, then spread by jitter. Delays are float seconds.

    The term is exponential, `d = min(cap, base * factor**n)`; see also `fixed`, `linear` and `custom`. A cap above a
    century counts as a century. The kinds of jitter (U is uniform, drawn by the caller):

    - `none` d
    - `additive` d + U(0, share*d)
    - `symmetric` d ± share*d
    - `full` U(0, d)
    - `equal` d/2 + U(0, d/2)
    - `decorrelated` U(base, min(cap, 3*previous)), previous being the last delay, base before the first

    The cap is applied before jitter: delays at the cap stay spread, and may exceed it by `share`. `full`, `equal` and
    `decorrelated` are those of "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).

    >>> [Backoff(base="2s", jitter="none").seconds(n, 0.5) for n in (0, 1, 2, 10, 11, 10**6)]
    [2.0, 4.0, 8.0, 2048.0, 3600.0, 3600.0]
    >>> [Backoff(base="8s", jitter=j).seconds(0, 0.75) for j in ("full", "equal", "decorrelated")]
    [6.0, 7.0, 20.0]
    >>> [Backoff(base="8s", jitter=j, share=0.5).seconds(0, 0.75) for j in ("additive", "symmetric")]
    [11.0, 10.0]
    """

    base: float
    factor: float
    cap: float
    jitter: Jitter
    share: float
    step: float | None
    fn: CustomDelay | None

    def __init__(
        self,
        base: Duration = "2s",
        factor: float = 2,
        cap: Duration | None = "1h",
        jitter: Jitter = "full",
        share: float = 0.1,
        *,
        step: Duration | None = None,
        fn: CustomDelay | None = None,
    ) -> None:
        """`factor` is 1 or more, `share` 0 to 1, `cap=None` a year; `step` and `fn` belong to `linear` and `custom`.

        Raises ValueError or TypeError.
        """
        if jitter not in _JITTERS:
            raise ValueError(f"backoff jitter {jitter!r} is unknown; known: {', '.join(_JITTERS)}")
        if fn is not None and not callable(fn):
            raise TypeError(f"custom backoff {fn!r} is not callable; expected fn(n, fault) -> seconds")
        _put(
            self,
            base=seconds(base, "backoff base"),
            factor=_number(factor, "backoff factor", 1, 1e300),
            cap=YEAR_S if cap is None else min(CENTURY_S, seconds(cap, "backoff cap")),
            jitter=jitter,
            share=_number(share, "backoff share", 0, 1),
            step=None if step is None else seconds(step, "backoff step"),
            fn=fn,
        )

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: Jitter = "none", share: float = 0.1) -> Backoff:
        """The same delay every time: d = delay.

        >>> [Backoff.fixed("60s").seconds(n, 0.5) for n in (0, 1, 10**6)]
        [60.0, 60.0, 60.0]
        """
        delay_s = seconds(delay, "fixed backoff")
        return cls(delay_s, 1, max(delay_s, YEAR_S), jitter, share)

    @classmethod
    def linear(
        cls,
        base: Duration,
        step: Duration | None = None,
        *,
        cap: Duration | None = None,
        jitter: Jitter = "none",
        share: float = 0.1,
    ) -> Backoff:
        """Grow by `step` (default: `base`) each time: d = min(cap, base + step*n); `cap=None` is a year.

        >>> [Backoff.linear("5s", step="5s", cap="18s").seconds(n, 0.5) for n in range(5)]
        [5.0, 10.0, 15.0, 18.0, 18.0]
        """
        return cls(base, 1, cap, jitter, share, step=base if step is None else step)

    @classmethod
    def custom(
        cls, fn: CustomDelay, *, cap: Duration | None = None, jitter: Jitter = "none", share: float = 0.1
    ) -> Backoff:
        """Ask `fn(n, fault)` for d in seconds; `fault` is None in previews.

        Negative answers count as 0; NaN, infinity and what exceeds the cap (`None`: a year) as the cap. What `fn`
        raises passes through; an answer that is no number raises TypeError. `decorrelated` takes the answer as base.

        >>> [Backoff.custom(lambda n, fault: 10 * n - 5).seconds(n, 0.5) for n in range(3)]
        [0.0, 5.0, 15.0]
        """
        return cls(0, 1, cap, jitter, share, fn=fn)

    def seconds(self, n: int, u: float, previous: float | None = None, fault: Fault | None = None) -> float:
        """Return the delay before retry n for the uniform draw u in [0, 1): finite and never negative, for any n.

        `previous` is the last delay in seconds, for decorrelated jitter; None stands for the base. Raises ValueError
        for a negative n or a draw outside [0, 1].
        """
        if not 0 <= u <= 1:
            raise ValueError(f"draw {u!r} is outside [0, 1)")
        term_s = self._term(n, fault)
        low_s, high_s = self._bounds(term_s) if self.jitter != "decorrelated" else self._walk(term_s, previous)
        return min(high_s, low_s + u * (high_s - low_s))

    def range(self, n: int) -> tuple[float, float]:
        """Return the least and the greatest delay that jitter can give before retry n, in seconds.

        For `decorrelated` the greatest is that of the longest walk, min(cap, base * 3**(n+1)).

        >>> Backoff(jitter="equal").range(2), Backoff(jitter="decorrelated").range(2)
        ((4.0, 8.0), (2.0, 54.0))
        """
        term_s = self._term(n, None)
        if self.jitter != "decorrelated":
            return self._bounds(term_s)
        low_s, _ = self._walk(term_s, None)
        return low_s, max(low_s, _geometric(low_s, 3.0, n + 1, self.cap))

    def _term(self, n: int, fault: Fault | None) -> float:
        if n < 0:
            raise ValueError(f"retry index {n} is negative; the first retry is 0")
        if self.fn is not None:
            return self._asked(n, fault)
        if self.step is not None:
            return min(self.cap, self.base + self.step * min(n, _N_MAX))
        return _geometric(self.base, self.factor, n, self.cap)

    def _asked(self, n: int, fault: Fault | None) -> float:
        assert self.fn is not None
        answer: Any = self.fn(n, fault)
        try:
            asked_s = answer.total_seconds() if isinstance(answer, timedelta) else float(answer)
        except OverflowError:
            asked_s = math.inf
        except (TypeError, ValueError) as error:
            raise TypeError(f"custom backoff gave {answer!r} for retry {n}; expected seconds") from error
        return max(0.0, asked_s) if asked_s < self.cap else self.cap  # NaN is below nothing: the cap

    def _bounds(self, term_s: float) -> tuple[float, float]:
        share_s = self.share * term_s
        match self.jitter:
            case "additive":
                return term_s, term_s + share_s
            case "symmetric":
                return term_s - share_s, term_s + share_s
            case "full":
                return 0.0, term_s
            case "equal":
                return term_s / 2, term_s
            case _:
                return term_s, term_s

    def _walk(self, term_s: float, previous: float | None) -> tuple[float, float]:
        low_s = term_s if self.fn is not None else min(self.base, self.cap)
        return low_s, max(low_s, min(self.cap, 3 * (low_s if previous is None else previous)))


@dataclass(frozen=True, slots=True)
class Chosen:
    """What `Retry.choose` found for one fault. `why` names the entry that applied, or why there is no retry."""

    backoff: Backoff
    max_attempts: int
    max_elapsed_s: float | None
    retryable: bool
    why: str


_MAX_RETRY_AFTER_S = 6 * 3_600.0
_KEYS = "a fault kind, an exception class or its qualified name such as 'httpx.ReadTimeout'"


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """Which faults are retried, how often, for how long and at what delays. Durations are kept as float seconds.

    - `max_attempts` bounds all counted attempts of one life, the first run included.
    - `max_elapsed` bounds the time of trying up to the start of the last retry: the runs of that life that failed, and
      the delays between them. A message's other waits do not count: for its first claim, for a worker, behind others,
      or for a breaker, a budget, a limit, a place in its group, a snooze. None: no bound.
    - `on` maps a fault kind, an exception class or its qualified name to a Backoff, or to a Retry, which replaces the
      bounds too. The most special class of the exception wins, then its kind, then `backoff`. An entry stands alone:
      a smaller cap of `backoff` never clips it.
    - `never` and `only` take the same keys. `never` always wins; with `only`, what matches no key of it is not retried.
    - Faults of kind permanent, unreadable and unroutable are not retried, unless an entry of `on` names that kind or a
      class of the exception other than Exception and BaseException.
    - `override(message, fault, delay_s)` may return another Decision; None keeps the policy's.
    - `max_retry_after` bounds a delay asked for by the failing side.

    The default makes 25 attempts at full jitter from 2 s to 1 h, in a mean of 7 h. Raises ValueError or TypeError.
    """

    max_attempts: int
    max_elapsed: float | None
    backoff: Backoff
    on: Mapping[str, Backoff | Retry]
    never: frozenset[str]
    only: frozenset[str]
    override: Override | None
    max_retry_after: float
    _cache: dict[tuple[str, tuple[str, ...]], Chosen] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        max_attempts: int = 25,
        max_elapsed: Duration | None = "24h",
        backoff: Backoff | None = None,  # None: Backoff()
        on: Mapping[Any, Backoff | Retry] = MappingProxyType({}),  # FaultKey; a Mapping's key type is invariant
        never: Iterable[FaultKey] = (),
        only: Iterable[FaultKey] = (),
        override: Override | None = None,
        max_retry_after: Duration = "6h",
    ) -> None:
        if type(max_attempts) is not int or max_attempts < 1:
            raise ValueError(f"max_attempts {max_attempts!r} is refused: expected a whole number from 1 up")
        backoff = Backoff() if backoff is None else backoff
        if not isinstance(backoff, Backoff):
            raise TypeError(f"backoff {backoff!r} is refused: expected a Backoff, such as Backoff(base='2s', cap='1h')")
        if override is not None and not callable(override):
            raise TypeError(
                f"override {override!r} is not callable; expected fn(message, fault, delay_s) -> Decision | None"
            )
        _put(
            self,
            max_attempts=max_attempts,
            max_elapsed=None if max_elapsed is None else seconds(max_elapsed, "max_elapsed"),
            backoff=backoff,
            on=MappingProxyType(_entries(on)),
            never=_keys(never, "never"),
            only=_keys(only, "only"),
            override=override,
            max_retry_after=seconds(max_retry_after, "max_retry_after"),
            _cache={},
        )

    @property
    def max_retry_after_s(self) -> float:
        """`max_retry_after`, in seconds."""
        return self.max_retry_after

    def choose(self, fault: Fault) -> Chosen:
        """Return the backoff and bounds that hold for a fault, and whether it is retried at all."""
        return self._choose(fault.kind, fault.errors)

    def _choose(self, kind: str, errors: tuple[str, ...]) -> Chosen:
        key = (kind, errors)
        chosen = self._cache.get(key)
        if chosen is None:
            if len(self._cache) >= _CACHE_MAX:  # classes made at run time could fill it without end
                self._cache.clear()
            chosen = self._cache[key] = self._match(kind, errors, named=False)
        return chosen

    def _match(self, kind: str, errors: tuple[str, ...], *, named: bool) -> Chosen:
        """`named` says that an entry around this one has named the fault."""
        names = (*errors, str(kind))
        match = next((name for name in names if name in self.on), None)
        entry = self.backoff if match is None else self.on[match]
        named = named or (match is not None and match not in _CATCH_ALL)
        refusal = self._refusal(names, named)
        if isinstance(entry, Retry):
            inner = entry._match(kind, errors, named=named)
            retryable = refusal is None and inner.retryable
            why = refusal or f"on {match}: {inner.why}"
            return Chosen(inner.backoff, inner.max_attempts, inner.max_elapsed_s, retryable, why)
        why = refusal or ("default backoff" if match is None else f"on {match}")
        return Chosen(entry, self.max_attempts, self.max_elapsed, refusal is None, why)

    def _refusal(self, names: tuple[str, ...], named: bool) -> str | None:
        for name in names:
            if name in self.never:
                return f"never retries {name}"
        if self.only and self.only.isdisjoint(names):
            return f"only retries {', '.join(sorted(self.only))}"
        kind = names[-1]
        return f"{kind} faults are not retried" if kind in FINAL_KINDS and not named else None

    def __hash__(self) -> int:
        return hash(
            (self.max_attempts, self.max_elapsed, self.backoff, frozenset(self.on.items()), self.never, self.only)
        )

    def __reduce__(self) -> tuple[type[Retry], tuple[Any, ...]]:
        # Spelled out, since a read-only mapping cannot be pickled as it is.
        bounds = (self.max_attempts, self.max_elapsed, self.backoff, dict(self.on))
        return Retry, (*bounds, self.never, self.only, self.override, self.max_retry_after)


CRASHES_MAX = 10  # crashes of one life that convict in any case; evidence is kept of as many


@dataclass(frozen=True, slots=True, init=False)
class Poison:
    """When a message that kills its process is quarantined: after `crashes` that hit it while it ran alone, in one
    life.

    A crash in company marks all that had been started in the process as suspects, and convicts nobody: suspects run
    again together, and while processes die with them in ever smaller groups, in the end alone. `within` bounds the time
    in which the crashes alone must lie; without it they may lie any time apart. A worker refuses a `within` that could
    never be met: a host that dies is only known by the lease that runs out, so crashes are at least a lease and a
    restart apart. Ten crashes of one life, in company too, convict in any case.
    Raises ValueError or TypeError.

    >>> Poison(), Poison(2, within="1h")
    (Poison(crashes=3, within=None), Poison(crashes=2, within=3600.0))
    """

    crashes: int
    within: float | None  # seconds

    def __init__(self, crashes: int = 3, within: Duration | None = None) -> None:
        if type(crashes) is not int or not 1 <= crashes <= CRASHES_MAX:
            raise ValueError(f"crashes {crashes!r} is refused: expected a whole number from 1 to {CRASHES_MAX}")
        within_s = None if within is None else seconds(within, "within")
        if within_s == 0:
            raise ValueError(f"within {within!r} is refused: expected a duration above 0, or None for no window")
        _put(self, crashes=crashes, within=within_s)


@dataclass(frozen=True, slots=True)
class Step:
    """One retry: its delay, and its start after the first failure, if all delays are their least, mean or greatest."""

    n: int
    low_s: float
    mean_s: float
    high_s: float
    at_low_s: float
    at_mean_s: float
    at_high_s: float


@dataclass(frozen=True, slots=True)
class Preview:
    """What a policy does to a message that keeps failing at once in the same way.

    `retries` counts its retries at mean delays, `retries_least` with every delay at its greatest, `retries_most` (one
    step each) with every delay at its least. `total_s` is when the last of `retries` starts, `horizon_s` the latest
    time at which a retry can start. `ends` is what ends it at mean delays: attempts, elapsed, refused (not retried at
    all), or the preview's own limit.
    """

    chosen: Chosen
    steps: tuple[Step, ...]
    retries: int
    retries_least: int
    retries_most: int
    total_s: float
    horizon_s: float
    ends: Literal["attempts", "elapsed", "refused", "limit"]


def preview(retry: Retry, *, kind: str = "default", error: FaultKey | None = None, limit: int = 1000) -> Preview:
    """Return the delays of a policy for faults of one kind and, if given, one exception class or qualified name.

    Runs are taken to last no time, and nothing but its delays to keep a message waiting. The mean of `decorrelated`
    jitter is an estimate from above once the walk nears its cap. At most `limit` steps are given. Raises ValueError for
    an unknown kind or name.

    >>> shown = preview(presets["standard_api"])
    >>> shown.ends, shown.retries_least, shown.retries_most
    ('elapsed', 10, 11)
    """
    errors = () if error is None else _lineage(error)
    chosen = retry._choose(_kind(kind), errors)
    bound_s = math.inf if chosen.max_elapsed_s is None else chosen.max_elapsed_s
    steps = _steps(chosen, bound_s, limit)
    retries = sum(step.at_mean_s <= bound_s for step in steps)
    return Preview(
        chosen=chosen,
        steps=steps,
        retries=retries,
        retries_least=sum(step.at_high_s <= bound_s for step in steps),
        retries_most=len(steps),
        total_s=steps[retries - 1].at_mean_s if retries else 0.0,
        horizon_s=min(bound_s, steps[-1].at_high_s) if steps else 0.0,
        ends=_ends(chosen, retries, limit),
    )


def _steps(chosen: Chosen, bound_s: float, limit: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    at_low_s = at_mean_s = at_high_s = 0.0
    mean_s = None
    for n in range(min(chosen.max_attempts - 1, limit) if chosen.retryable else 0):
        low_s, high_s = chosen.backoff.range(n)
        mean_s = _mean(chosen.backoff, low_s, high_s, mean_s)
        at_low_s, at_mean_s, at_high_s = at_low_s + low_s, at_mean_s + mean_s, at_high_s + high_s
        if at_low_s > bound_s:
            break
        steps.append(Step(n, low_s, mean_s, high_s, at_low_s, at_mean_s, at_high_s))
    return tuple(steps)


def _mean(backoff: Backoff, low_s: float, high_s: float, previous_s: float | None) -> float:
    if backoff.jitter != "decorrelated":
        return (low_s + high_s) / 2
    # The mean of min(cap, 3 * previous) is at most min(cap, 3 * mean of previous).
    return (low_s + max(low_s, min(backoff.cap, 3 * (low_s if previous_s is None else previous_s)))) / 2


def _ends(chosen: Chosen, retries: int, limit: int) -> Literal["attempts", "elapsed", "refused", "limit"]:
    if not chosen.retryable:
        return "refused"
    if retries == chosen.max_attempts - 1:
        return "attempts"
    return "limit" if retries >= limit else "elapsed"


def _geometric(first: float, factor: float, n: int, cap: float) -> float:
    """min(cap, first * factor**n), for any n."""
    try:
        return min(cap, first * factor ** min(n, _N_MAX))
    except OverflowError:  # factor**n beyond 1.8e308, from n = 1024 on at factor 2
        if not first or not cap:
            return 0.0
        exponent = math.log2(first) + min(n, _N_MAX) * math.log2(factor)
        return cap if exponent >= math.log2(cap) else min(cap, 2.0**exponent)


def _entries(on: Mapping[Any, Backoff | Retry]) -> dict[str, Backoff | Retry]:
    if not isinstance(on, Mapping):
        raise TypeError(f"on {on!r} is refused: expected a mapping of {_KEYS} to a Backoff or a Retry")
    entries: dict[str, Backoff | Retry] = {}
    for key, entry in on.items():
        name = _name(key, "on")
        if name in entries:
            raise ValueError(f"on names {name!r} twice; expected one entry each")
        if not isinstance(entry, Backoff | Retry):
            raise TypeError(f"on[{name!r}] {entry!r} is refused: expected a Backoff or a Retry")
        if isinstance(entry, Retry) and (entry.override is not None or entry.max_retry_after != _MAX_RETRY_AFTER_S):
            raise ValueError(
                f"on[{name!r}] sets override or max_retry_after, which hold for the whole policy: set them there"
            )
        entries[name] = entry
    return entries


def _keys(keys: Iterable[FaultKey], what: str) -> frozenset[str]:
    if isinstance(keys, str | type) or not isinstance(keys, Iterable):
        raise TypeError(f"{what} {keys!r} is refused: expected a sequence, such as {what}=(ValueError, 'quota')")
    return frozenset(_name(key, what) for key in keys)


def _name(key: FaultKey, what: str) -> str:
    """The name that faults carry: the kind, or the class's qualified name, for builtins without their module."""
    if isinstance(key, type) and issubclass(key, BaseException):
        return _qualified(key)
    if not isinstance(key, str):
        raise TypeError(f"{what} key {key!r} is refused: expected {_KEYS}")
    text = str(key).removeprefix("builtins.")
    if text in KINDS or "." in text:
        return text
    known = getattr(builtins, text, None)
    if isinstance(known, type) and issubclass(known, BaseException):
        return known.__qualname__  # IOError is OSError
    raise ValueError(_unknown(text, what))


def _qualified(cls: type[BaseException]) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _lineage(error: FaultKey) -> tuple[str, ...]:
    if isinstance(error, type):
        return tuple(_qualified(cls) for cls in error.__mro__ if issubclass(cls, BaseException))
    return (_name(error, "error"),)


def _kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(_unknown(kind, "kind"))
    return str(kind)


def _unknown(name: str, what: str) -> str:
    return f"{what} {name!r} is unknown; known kinds: {', '.join(sorted(KINDS))}; expected {_KEYS}"


def _number(value: float, what: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} {value!r} is refused: expected a number")
    if not least <= value <= most:
        raise ValueError(f"{what} {value!r} is refused: expected a number from {least:g} to {most:g}")
    return float(value)


def _put(frozen: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def _preset(max_attempts: int, backoff: Backoff, max_elapsed: Duration = "24h", **on: Backoff) -> Retry:
    return Retry(max_attempts, max_elapsed, backoff, on)


def _standard_api() -> Retry:
    def grow(base: Duration, cap: Duration) -> Backoff:
        return Backoff(base, 3, cap, "additive", 0.1)

    usual = grow("2s", "60s")
    quota = grow("120s", "600s")
    return _preset(50, usual, "500s", throttled=grow("60s", "300s"), quota=quota, transient=usual, default=usual)


def _critical() -> Retry:
    quick = Backoff("1s", 2, "5s", "additive", 0.2)
    return _preset(5, Backoff("2s", 2, "10s", "additive", 0.2), transient=quick, default=quick)


#: Ready policies by name. What a line leaves out is the default: base 2 s, cap 1 h, full jitter, max elapsed 24 h.
#:
#: - `standard_api`: 50 attempts, factor 3, additive 10 %, 2 s to 60 s (throttled 60 s to 300 s, quota 120 s to 600 s),
#:   max elapsed 500 s, which end it after about 11 retries (2 if throttled or out of quota): its 50 attempts and the
#:   caps of 300 s and 600 s are never reached.
#: - `high_volume`: 10 attempts, factor 2, cap 30 s.
#: - `critical`: 5 attempts, factor 2, cap 10 s, additive 20 % (transient and default 1 s to 5 s).
#: - `webhooks`: 6 attempts, base 5 s, factor 2, symmetric 10 %.
#: - `emails`: 4 attempts, base 2 s, factor 2, symmetric 10 %.
#: - `payments`: 3 attempts, 60 s apart, no jitter.
#: - `orchestration`: 5 attempts, base 0.5 s, factor 2, symmetric 30 %.
presets: Mapping[str, Retry] = MappingProxyType(
    {
        "standard_api": _standard_api(),
        "high_volume": _preset(10, Backoff("2s", 2, "30s")),
        "critical": _critical(),
        "webhooks": _preset(6, Backoff("5s", 2, jitter="symmetric", share=0.1)),
        "emails": _preset(4, Backoff("2s", 2, jitter="symmetric", share=0.1)),
        "payments": _preset(3, Backoff.fixed("60s")),
        "orchestration": _preset(5, Backoff("500ms", 2, jitter="symmetric", share=0.3)),
    }
)
