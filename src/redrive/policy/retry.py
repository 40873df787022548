"""Retry: which faults are retried, how often, for how long and at what delays."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from ..duration import Duration, seconds
from ..fault import Fault
from ..message import Decision, Message
from .backoff import Backoff, set_fields

Exhaustion = Literal["dead_letter", "hold"]
FaultKey = str | type[BaseException]
Override = Callable[[Message, Fault, float], Decision | None]

FINAL_KINDS = frozenset({"permanent", "unreadable", "unroutable"})
KINDS = FINAL_KINDS | {"transient", "throttled", "quota", "timeout", "crashed", "interrupted", "default"}
_CATCH_ALL = frozenset({"Exception", "BaseException"})  # too broad to make a permanent fault retryable
_CACHE_MAX = 256
_MAX_RETRY_AFTER_S = 6 * 3_600.0
_KEYS = "a fault kind, an exception class or its qualified name such as 'httpx.ReadTimeout'"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The result of `Retry.choose` for a fault. `why` names the entry that applied, or why there is no retry."""

    backoff: Backoff
    max_attempts: int
    max_elapsed_s: float | None
    retryable: bool
    why: str
    on_exhausted: Exhaustion = "dead_letter"


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """Which faults are retried, how often, for how long and at what delays. Durations are kept as float seconds.

    - `max_attempts` bounds all counted attempts of one life, the first run included.
    - `max_elapsed` bounds the time of trying up to the start of the last retry: the failed runs of that life, and the
      delays between them. Other waits do not count: for the first claim, for a worker, behind other messages of its
      group, for a breaker, a budget or a limit, or a snooze. None: no bound.
    - `on` maps a fault kind, an exception class or its qualified name to a Backoff, or to a Retry, which replaces the
      bounds too. The most special class of the exception wins, then its kind, then `backoff`. An entry is used as
      given: a smaller cap of `backoff` does not clip it.
    - `never` and `only` take the same keys. `never` always wins; with `only`, a fault that matches none of its keys is
      not retried.
    - Faults of kind permanent, unreadable and unroutable are not retried, unless an entry of `on` names that kind or a
      class of the exception (Exception and BaseException do not count).
    - `override(message, fault, delay_s)` may return another Decision; None keeps the policy's.
    - `max_retry_after` bounds a delay requested by the failing side (`Retry-After`).
    - `on_exhausted="hold"`: once its retries are used up, by attempts or by time, a message does not die. It waits in
      the dead lane with the reason `held`, for a person. No objective and no `on_dead` task takes it for a death.

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
    on_exhausted: Exhaustion
    _cache: dict[tuple[str, tuple[str, ...]], Chosen] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        max_attempts: int = 25,
        max_elapsed: Duration | None = "24h",
        backoff: Backoff | None = None,
        on: Mapping[Any, Backoff | Retry] = MappingProxyType({}),  # by FaultKey; a Mapping's key type is invariant
        never: Iterable[FaultKey] = (),
        only: Iterable[FaultKey] = (),
        override: Override | None = None,
        max_retry_after: Duration = "6h",
        on_exhausted: Exhaustion = "dead_letter",
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
        if on_exhausted not in get_args(Exhaustion):
            raise ValueError(f"on_exhausted {on_exhausted!r} is refused: expected 'dead_letter' or 'hold'")
        set_fields(
            self,
            max_attempts=max_attempts,
            max_elapsed=None if max_elapsed is None else seconds(max_elapsed, "max_elapsed"),
            backoff=backoff,
            on=MappingProxyType(_entries(on)),
            never=_keys(never, "never"),
            only=_keys(only, "only"),
            override=override,
            max_retry_after=seconds(max_retry_after, "max_retry_after"),
            on_exhausted=on_exhausted,
            _cache={},
        )

    @property
    def max_retry_after_s(self) -> float:
        return self.max_retry_after

    def choose(self, fault: Fault) -> Chosen:
        """Return the backoff and bounds that apply to a fault, and whether the fault is retried at all."""
        return self._choose(fault.kind, fault.errors)

    def _choose(self, kind: str, errors: tuple[str, ...]) -> Chosen:
        key = (kind, errors)
        chosen = self._cache.get(key)
        if chosen is None:
            if len(self._cache) >= _CACHE_MAX:  # classes made at run time could fill the cache without end
                self._cache.clear()
            chosen = self._cache[key] = self._match(kind, errors, named=False)
        return chosen

    def _match(self, kind: str, errors: tuple[str, ...], *, named: bool) -> Chosen:
        """Choose by class names and kind. `named`: an entry around this policy names the fault as retryable."""
        names = (*errors, str(kind))
        match = next((name for name in names if name in self.on), None)
        entry = self.backoff if match is None else self.on[match]
        named = named or (match is not None and match not in _CATCH_ALL)
        refusal = self._refusal(names, named)
        if isinstance(entry, Retry):
            inner = entry._match(kind, errors, named=named)
            retryable = refusal is None and inner.retryable
            why = refusal or f"on {match}: {inner.why}"
            return Chosen(inner.backoff, inner.max_attempts, inner.max_elapsed_s, retryable, why, inner.on_exhausted)
        why = refusal or ("default backoff" if match is None else f"on {match}")
        return Chosen(entry, self.max_attempts, self.max_elapsed, refusal is None, why, self.on_exhausted)

    def _refusal(self, names: tuple[str, ...], named: bool) -> str | None:
        for name in names:
            if name in self.never:
                return f"never retries {name}"
        if self.only and self.only.isdisjoint(names):
            return f"only retries {', '.join(sorted(self.only))}"
        kind = names[-1]
        return f"{kind} faults are not retried" if kind in FINAL_KINDS and not named else None

    def __hash__(self) -> int:
        bounds = (self.max_attempts, self.max_elapsed, self.backoff, self.on_exhausted)
        return hash((*bounds, frozenset(self.on.items()), self.never, self.only))

    def __reduce__(self) -> tuple[type[Retry], tuple[Any, ...]]:
        # The read-only mapping in `on` cannot be pickled, so fields are passed one by one.
        bounds = (self.max_attempts, self.max_elapsed, self.backoff, dict(self.on))
        return Retry, (*bounds, self.never, self.only, self.override, self.max_retry_after, self.on_exhausted)


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
    """Return the name by which faults match a key: the kind, or the qualified class name (builtins: no module)."""
    if isinstance(key, type) and issubclass(key, BaseException):
        return _qualified(key)
    if not isinstance(key, str):
        raise TypeError(f"{what} key {key!r} is refused: expected {_KEYS}")
    text = str(key).removeprefix("builtins.")
    if text in KINDS or "." in text:
        return text
    known = getattr(builtins, text, None)
    if isinstance(known, type) and issubclass(known, BaseException):
        return known.__qualname__  # resolves aliases: IOError is OSError
    raise ValueError(_unknown(text, what))


def _qualified(cls: type[BaseException]) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def class_names(error: FaultKey) -> tuple[str, ...]:
    """Return the names in `Fault.errors` of this class, most special first; of a name only the name."""
    if isinstance(error, type):
        return tuple(_qualified(cls) for cls in error.__mro__ if issubclass(cls, BaseException))
    return (_name(error, "error"),)


def checked_kind(kind: str) -> str:
    """Return the kind as a text. Raises ValueError for an unknown kind."""
    if kind not in KINDS:
        raise ValueError(_unknown(kind, "kind"))
    return str(kind)


def _unknown(name: str, what: str) -> str:
    return f"{what} {name!r} is unknown; known kinds: {', '.join(sorted(KINDS))}; expected {_KEYS}"
