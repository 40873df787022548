"""Declare a dependency and the limits that all workers share when calling it, and store its state in a cell.

permits.py decides which messages may call it, calls.py records how the calls ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigError
from ..message import Cell, Message, decoded
from . import breaker as breakers
from . import budget as budgets
from . import limits
from .breaker import Breaker
from .budget import Budget
from .idempotency import hashed
from .limits import Aimd, Rate

KEY_MAX = 100  # most characters of a key in the name of its cell; a longer key is hashed
SEEN_MS = 10_000  # ms for which a worker keeps its share of the concurrency after its last sign of life
OF_ALL = ":all"  # suffix of the name of the breaker over all keys of a dependency
_PER = re.compile(r"group|args(\.[^.\s]+)+")
_KEEP_MS = 7 * 86_400_000


class Dependency(Struct, frozen=True):
    """A dependency of tasks, and the limits on calling it. `per` splits the limits by message group, or by an argument.
    `parent` is a breaker over all of its keys."""

    name: str
    budget: Budget | None = None
    breaker: Breaker | None = None
    rate: Rate | None = None
    concurrency: Aimd | None = None
    per: str | None = None
    parent: Breaker | None = None

    def __post_init__(self) -> None:
        kinds = {"budget": Budget, "breaker": Breaker, "rate": Rate, "concurrency": Aimd, "parent": Breaker}
        for what, kind in kinds.items():
            value = getattr(self, what)
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"dependency {self.name!r}: {what}={value!r}; expected a {kind.__name__} or None")
        if self.per is not None and not _PER.fullmatch(str(self.per)):
            raise ConfigError(
                f"dependency {self.name!r}: per={self.per!r}; expected 'group', or an argument such as 'args.account'"
            )
        if self.parent is not None and self.per is None:
            raise ConfigError(
                f"dependency {self.name!r}: parent= is a breaker over all keys; expected per= too, or breaker= alone"
            )
        if "/" in self.name:
            raise ConfigError(f"dependency {self.name!r}: expected a name without '/', which stands before a key")


class DependencyState(Struct, frozen=True, array_like=True):
    """The state of a dependency, or of one key of it, that all workers share. `workers`: when each worker that shares
    the concurrency was last seen, in ms."""

    breaker: breakers.State = breakers.State()
    budget: budgets.BudgetState = budgets.BudgetState()
    tat_ms: float = 0.0
    cool: limits.CoolDown = limits.CoolDown()
    aimd: limits.AimdState = limits.AimdState()
    workers: Mapping[str, int] = {}
    later_ms: float = 0.0  # due time of the last message that the rate deferred without a reserved slot
    cost: float = 0.0  # the mean cost of a call, of a rate with weights; 0: not known


class PendingEvidence(Struct):
    """Evidence that a worker gathered since it last wrote the state. `firsts` counts admitted first attempts; the next
    fields count results, of first attempts, then of retries (see `CallCounts`). `asked_s`: the longest wait asked."""

    firsts: int = 0
    success: int = 0
    failure: int = 0
    slow: int = 0
    slow_failure: int = 0
    retry_success: int = 0
    retry_failure: int = 0
    repeated: int = 0
    well_ms: int = 0  # time of the last successful call
    overloads: int = 0
    asked_s: float = 0.0
    unused: int = 0  # tokens from `take` that were not used
    waited: bool = False  # all tokens from `take` were used, so more messages may be waiting
    here: bool = False  # True if this worker shares in the concurrency
    probes: dict[str, str] = {}
    spent: float = 0.0  # permits spent beyond those taken before the call; below 0: less

    def __bool__(self) -> bool:
        calls = self.firsts or self.success or self.failure or self.slow or self.slow_failure or self.overloads
        retries = self.retry_success or self.retry_failure or self.repeated
        permits = self.unused or self.spent
        return bool(calls or retries or permits or self.asked_s or self.probes or self.waited or self.here)


def cell_of(name: str, key: str) -> str:
    """Return the key of the cell with the state of a dependency, or of one key of it."""
    return f"flow/{about_of(name, key)}"


def about_of(name: str, key: str) -> str:
    """Return NAME, or NAME/KEY with a key. A long or unprintable key is hashed, since keys come from messages and some
    stores restrict names."""
    if len(key) > KEY_MAX or not key.isprintable():
        key = f"#{hashed(key.encode(errors='surrogatepass')).hex()}"
    return f"{name}/{key}" if key else name


def parent_of(d: Dependency) -> Dependency | None:
    """Return a dependency that has only d's breaker over all keys; None if d declares no such breaker."""
    return None if d.parent is None else Dependency(f"{d.name}{OF_ALL}", breaker=d.parent)


def key_of(d: Dependency, message: Message) -> str:
    """Return the message's key by `d.per`; empty without `per`, or if the stored body has no such value."""
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


encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DependencyState).decode


def decode(cell: Cell | None) -> DependencyState:
    """Return the state stored in the cell; a fresh state without a cell, or if the cell is unreadable."""
    return decoded(cell, _decode, DependencyState())


def ttl_ms(state: DependencyState) -> int | None:
    """Return after how many ms an unchanged state expires; None (never) for a breaker forced by a person."""
    return None if state.breaker.status.startswith("forced") else _KEEP_MS


def owner_of(message: Message) -> str:
    """Return the name under which this claim of the message can own the lease of a probe."""
    return f"{message.id} {message.fence}"


def share(state: DependencyState, d: Dependency, worker: str) -> int:
    """Return how many runs that call the dependency this worker may have in progress."""
    assert d.concurrency is not None
    return limits.share(limits.height(state.aimd, d.concurrency), [*state.workers], worker)


def unheard(state: DependencyState, worker: str, now_ms: int) -> bool:
    """True if the worker, with calls in progress, must be seen again to keep its share."""
    return abs(now_ms - state.workers.get(worker, 0)) > SEEN_MS / 4


def with_breaker(state: DependencyState, breaker: breakers.State) -> DependencyState:
    return state if breaker is state.breaker else replace(state, breaker=breaker)
