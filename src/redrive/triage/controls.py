"""Show and set flow control by hand, as `app.flow`: breakers, cool-downs, budgets and ramps of dependencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ..audit import Audit, again, signed
from ..duration import Duration, milliseconds, show
from ..errors import ConfigError, near_miss
from ..flow import breaker as breakers
from ..flow import budget as budgets
from ..flow import dependency as flow
from ..flow import limits, permits, ramp, window
from ..flow.breaker import Breaker, BreakerOrder
from ..flow.dependency import Dependency, DependencyState
from ..message import Filter, Lane, Swap, decoded, version_of
from ..registry import Registry
from ..stores.validation import KEY_BYTES_MAX, NAME_MAX
from ..worker.flow.local_state import controls, is_rate
from ..worker.flow.shared_state import NAMES, names_of
from ..worker.flow.transitions import Transition, note, read

if TYPE_CHECKING:
    from ..store import Store

LOOKED = 1000  # most waiting messages that are read to count them by dependency
ControlChange = Callable[[DependencyState, int], tuple[DependencyState, str]]


class Control(Struct, frozen=True, kw_only=True):
    """The state of one dependency, or of one key of it. Times are ms of the store's clock; None if it has no such
    control, or its rule is unknown here.

    `breaker`: closed, open, half_open, forced_open or forced_closed, since `since_ms`; open or, if a person set a time,
    held until `until_ms`. `opened`: openings in a row. `calls` and `failed` count its window, `probes` are running.
    `ramp_per_s`: messages a second that may start after it closed. `budget_left`: retries that are allowed now.
    `next_ms`: the next free slot of its rate, None if one is free now. `concurrency`: the limit for all workers
    together, which `workers` share. Of the first thousand waiting messages, `waiting` belong to its tasks, and
    `deferred` counts those that it deferred, by reason. On SQS waiting messages cannot be listed: None, and empty.
    """

    name: str
    key: str = ""
    per: str | None = None  # what splits the limits: "group" or the name of an argument
    parent: str | None = None  # the name of the breaker over all of its keys
    breaker: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    opened: int = 0
    calls: int = 0
    failed: int = 0
    probes: int = 0
    ramp_per_s: float | None = None
    budget_left: float | None = None
    rate_per_s: float | None = None
    next_ms: int | None = None
    cool_until_ms: int | None = None
    cool_s: float = 0.0  # seconds left of the cool-down
    concurrency: int | None = None
    workers: int = 0
    waiting: int | None = None
    deferred: Mapping[str, int] = {}
    transitions: tuple[Transition, ...] = ()
    rates: tuple[str, ...] = ()  # its rates in words, each with its unit
    mean_cost: float | None = None  # of a rate with weights: the mean cost of a call

    @property
    def about(self) -> str:
        """The dependency as NAME or NAME/KEY."""
        return f"{self.name}/{self.key}" if self.key else self.name


class Controls:
    """The dependencies that an app declares, and those that workers on its store used.

    Without the app (`Controls(store)`) rules are unknown: then only breakers, cool-downs and deferred messages are
    shown.
    """

    def __init__(self, store: Store, app: Registry | None = None) -> None:
        self._store, self._app, self._audit = store, app, Audit(store)

    def names(self) -> Sequence[str]:
        """Return the names of all dependencies, declared or used, sorted. Raises StoreError."""
        return sorted({*self._rules(), *names(self._store)})

    def list(self, *, waiting: bool = True) -> list[Control]:
        """Return all dependencies by name, without their keys; `waiting=False` reads no messages. Raises StoreError."""
        rules, names = self._rules(), self.names()
        cells = self._store.cells.read([flow.cell_of(name, "") for name in names]) if names else []
        now_ms = self._store.now_ms()
        controls = [_control(n, "", flow.decode(c), rules.get(n), now_ms) for n, c in zip(names, cells, strict=True)]
        controls = [self._with_rates(control) for control in controls]
        return [*(self._with_waiting(controls) if waiting else controls)]

    def show(self, name: str, *, key: str = "", waiting: bool = True) -> Control:
        """Return one dependency, with its last transitions; `waiting=False` reads no messages. Raises ConfigError for
        an unknown name, StoreError."""
        rule = self._rule(name)
        (cell,) = self._store.cells.read([flow.cell_of(name, key)])
        control = self._with_rates(_control(name, key, flow.decode(cell), rule, self._store.now_ms()))
        if waiting:
            (control,) = self._with_waiting([control])
        return replace(control, transitions=tuple(read(self._store.cells, flow.about_of(name, key))))

    def open(
        self, name: str, *, reason: str, actor: str | None = None, key: str = "", for_: Duration | None = None
    ) -> Control:
        """Hold the breaker open `for_` so long, or (None) until it is closed or released by hand: no worker calls it,
        and waiting messages lose no attempt. After the time it continues with probes. Workers follow within a quarter
        of a second. `actor` defaults to user@host. The change is one commit with its entry in the audit log; on SQS,
        whose cells may be stored elsewhere, the entry follows. Raises as `close`."""
        return self._set(name, "open", reason, actor, key, for_)

    def close(
        self, name: str, *, reason: str, actor: str | None = None, key: str = "", for_: Duration | None = None
    ) -> Control:
        """Hold the breaker closed, regardless of failures, `for_` so long, or (None) until it is released. Waiting
        messages start in a ramp. Raises as `show`, and ConfigError for an invalid time."""
        return self._set(name, "closed", reason, actor, key, for_)

    def auto(self, name: str, *, reason: str, actor: str | None = None, key: str = "") -> Control:
        """Let the breaker follow its rule again; one held open continues with probes. Raises as `show`."""
        return self._set(name, "auto", reason, actor, key)

    def end_cooldown(self, name: str, *, reason: str, actor: str | None = None, key: str = "") -> Control:
        """End the cool-down that the dependency requested (Retry-After): messages in its queues are claimed again at
        once. Messages already deferred, and those that got the response, keep their own times. Raises as `show`, and
        ConfigError without a reason."""

        def act(state: DependencyState, now_ms: int) -> tuple[DependencyState, str]:
            left_s = max(0, state.cool.until_ms - now_ms) / 1000
            return replace(state, cool=limits.CoolDown()), f"cool-down ended, {left_s:g} s before its time"

        return self._changed(name, act, "cool-down", reason, actor, key)

    def reset_budget(self, name: str, *, reason: str, actor: str | None = None, key: str = "") -> Control:
        """Reset the retry budget to its initial state. Raises as `end_cooldown`."""

        def act(state: DependencyState, now_ms: int) -> tuple[DependencyState, str]:
            return replace(state, budget=budgets.BudgetState()), "budget reset"

        return self._changed(name, act, "budget", reason, actor, key)

    def end_ramp(self, name: str, *, reason: str, actor: str | None = None, key: str = "") -> Control:
        """End the ramp that follows a closed breaker: waiting messages may start at once. Raises as `end_cooldown`."""

        def act(state: DependencyState, now_ms: int) -> tuple[DependencyState, str]:
            ramped = state.breaker.ramp
            text = "no ramp" if ramped is None else f"ramp ended at {ramp.rate(ramped, now_ms):.3g}/s"
            return replace(state, breaker=replace(state.breaker, ramp=None, places=0)), text

        return self._changed(name, act, "ramp", reason, actor, key)

    def _set(
        self, name: str, word: BreakerOrder, reason: str, actor: str | None, key: str, for_: Duration | None = None
    ) -> Control:
        held_ms = 0 if for_ is None else milliseconds(for_, "for_")
        if for_ is not None and not held_ms:
            raise ConfigError(f"for_={for_!r} is no time; expected one such as '15m'")
        rule = self._rule(name)
        if rule is not None and rule.breaker is None:
            raise ConfigError(f"dependency {name!r} has no breaker here; expected one with a breaker to set")
        turned: list[Transition] = []

        def act(state: DependencyState, now_ms: int) -> tuple[DependencyState, str]:
            breaker = (None if rule is None else rule.breaker) or Breaker()
            until_ms = now_ms + held_ms if held_ms else 0
            forced = breakers.force(state.breaker, breaker, word, now_ms, until_ms)
            turned[:] = [Transition(now_ms, state.breaker.status, forced.status, "", *signed(actor, reason, name))]
            after = state if forced is state.breaker else replace(state, breaker=forced)
            text = f"breaker: {state.breaker.status} to {forced.status}"
            return after, text + (f" for {show(held_ms / 1000)}" if held_ms else "")

        self._change(name, act, "breaker", reason, actor, key)
        note(self._store.cells, [(flow.about_of(name, key), turned[0])])
        return self.show(name, key=key)

    def _changed(self, name: str, act: ControlChange, what: str, reason: str, actor: str | None, key: str) -> Control:
        self._rule(name)
        self._change(name, act, what, reason, actor, key)
        return self.show(name, key=key)

    def _change(self, name: str, act: ControlChange, what: str, reason: str, actor: str | None, key: str) -> None:
        """Change the dependency's state by `act(state, now_ms)`, which returns the new state and audit text, in one
        commit."""
        if not 0 < len(name) <= NAME_MAX or len(key) > KEY_BYTES_MAX:
            text = f"a dependency of {len(name):,} and a key of {len(key):,} characters"
            raise ConfigError(f"{text}; expected a name of 1 to {NAME_MAX} and a key of at most {KEY_BYTES_MAX}")
        who, why = signed(actor, reason, f"the {what} of {name!r}")
        cell, about = flow.cell_of(name, key), flow.about_of(name, key)

        def write() -> None:
            (old,) = self._store.cells.read([cell])
            state = flow.decode(old)
            after, text = act(state, self._store.now_ms())
            changed = [] if after is state else [Swap(cell, version_of(old), flow.encode(after), flow.ttl_ms(after))]
            entry = self._audit.entry("flow", who, why, text, about=f"flow/{about}")
            self._store.put([], swaps=[*changed, *self._audit.swaps(entry)])

        again(write)

    def _rule(self, name: str) -> Dependency | None:
        rules = self._rules()
        if name not in rules:
            known = self.names()
            if name not in known:
                near = near_miss(name, known)
                meant = f"did you mean {near!r}? " if near else ""
                raise ConfigError(f"there is no dependency {name!r}; {meant}known: {', '.join(known) or 'none'}")
        return rules.get(name)

    def _rules(self) -> dict[str, Dependency]:
        if self._app is None:
            return {}
        tasks = list(self._app.tasks.values())
        used = {d.name: d for task in tasks for d in controls(self._app, task.name, task.queue)}
        return {**self._app.dependencies, **used}

    def _with_rates(self, control: Control) -> Control:
        """Return the control with the words of all rates that its dependency declares."""
        declared = None if self._app is None else self._app.dependencies.get(control.name)
        if declared is None or declared.rate is None:
            return control
        return replace(control, rates=tuple(rate.words for rate in declared.rate.all))

    def _with_waiting(self, rows: Sequence[Control]) -> Sequence[Control]:
        """Add the counts of waiting messages, by the first LOOKED messages of the ready lane."""
        if not self._store.traits.finds:
            return rows
        held: dict[str, Counter[str]] = {}
        waiting: Counter[str] = Counter()
        for message in self._store.peek(Lane.READY, where=Filter(), limit=LOOKED).messages:
            if message.deferral is not None:
                held.setdefault(message.deferral.by, Counter())[message.deferral.why] += 1
            if self._app is not None:
                waiting.update(d.name for d in controls(self._app, message.task, message.queue))
        known = self._app is not None
        return [
            replace(c, waiting=waiting[c.name] if known else None, deferred=dict(held.get(c.name, {}))) for c in rows
        ]


def names(store: Store) -> list[str]:
    """Return the names of the dependencies that workers have used. Raises StoreError."""
    (cell,) = store.cells.read([NAMES])
    return decoded(cell, names_of, [])


def _control(name: str, key: str, state: DependencyState, rule: Dependency | None, now_ms: int) -> Control:
    cool_ms = state.cool.until_ms
    control = Control(
        name=name, key=key, cool_until_ms=cool_ms if cool_ms > now_ms else None, cool_s=max(0, cool_ms - now_ms) / 1000
    )
    if rule.breaker is not None if rule is not None else not is_rate(name):
        control = _with_breaker(control, state.breaker, None if rule is None else rule.breaker, now_ms)
    if rule is None:
        return control
    parent = flow.parent_of(rule)
    control = replace(control, per=rule.per, parent=None if parent is None else parent.name)
    if rule.budget is not None:
        control = replace(control, budget_left=budgets.left(state.budget, rule.budget, now_ms))
    if rule.rate is not None:
        slot_ms = permits.slot_ms(state, rule, rule.rate, now_ms)
        control = replace(control, rate_per_s=rule.rate.per_s, next_ms=slot_ms if slot_ms > now_ms else None)
        mean_cost = None if rule.rate.cost is None else state.cost
        control = replace(control, rates=(rule.rate.words,), mean_cost=mean_cost)
    if rule.concurrency is not None:
        height = int(limits.height(state.aimd, rule.concurrency))
        heard = sum(now_ms - at_ms < flow.SEEN_MS for at_ms in state.workers.values())
        control = replace(control, concurrency=height, workers=heard)
    return control


def _with_breaker(control: Control, state: breakers.State, rule: Breaker | None, now_ms: int) -> Control:
    if rule is not None:
        state = breakers.look(state, rule, now_ms)
    elif state.status == "open" and now_ms >= state.until_ms:
        state = replace(state, status="half_open")
    else:
        state = breakers.released(state, now_ms)
    calls, failure_rate, _ = window.rates(window.moved(state.window, rule.window_ms, now_ms) if rule else state.window)
    return replace(
        control,
        breaker=state.status,
        since_ms=state.since_ms or None,
        until_ms=state.until_ms if state.status == "open" else state.held_until_ms or None,
        opened=state.opened if state.status in ("open", "half_open") else 0,
        calls=calls,
        failed=round(calls * failure_rate),
        probes=len(state.probes),
        ramp_per_s=None if state.ramp is None else ramp.rate(state.ramp, now_ms),
    )
