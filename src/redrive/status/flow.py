"""Explain how the shared state of a dependency or a rate holds messages back now."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from ..flow import breaker as breakers
from ..flow import budget as budgets
from ..flow import dependency as flow
from ..flow import permits
from ..flow import ramp as ramps
from ..flow.dependency import Dependency, DependencyState
from ..message import Message
from ..worker.flow.local_state import QUEUE, RATE, TASK, is_rate
from ..worker.flow.transitions import Transition
from .hold import Hold, is_forgotten, words

_WINDOW = re.compile(rf"(:[0-9]+)?{RATE}$")  # what names one of several rates
TransitionReader = Callable[[str], Sequence[Transition]]  # NAME or NAME/KEY to its latest transitions


def flow_holds(
    state: DependencyState,
    rule: Dependency | None,
    name: str,
    key: str,
    now_ms: int,
    history: TransitionReader,
    *,
    retries: bool = False,
) -> Iterator[Hold]:
    """Yield the holds that this state of a dependency means now, in the order in which a worker checks them. `retries`:
    for messages that have failed before."""
    about = flow.about_of(name, key)
    next = words("flow", "show", name, *(("--key", key) if key else ()))
    if state.cool.until_ms > now_ms:
        text = f"{about} asked to be left alone (Retry-After)"
        yield Hold(kind="cool-down", by=about, text=text, until_ms=state.cool.until_ms, next=next)
    if rule.breaker is not None if rule is not None else not is_rate(name):
        yield from _breaker(state.breaker, rule, about, next, now_ms, history)
    if rule is None:
        return
    if retries and rule.budget is not None and budgets.left(state.budget, rule.budget, now_ms) < 1:
        yield Hold(kind="budget", by=about, text=f"the retry budget of {about} is spent", next=next)
    if rule.rate is not None:
        slot_ms = permits.slot_ms(state, rule, rule.rate, now_ms)
        if slot_ms > now_ms:
            weighted = "" if rule.rate.cost is None else f" ({rule.rate.words})"
            text = f"the rate of {_rate_name(about)} is used up{weighted}"
            yield Hold(kind="rate", by=_rate_name(about), text=text, until_ms=slot_ms, next=next)


def _breaker(
    state: breakers.State, rule: Dependency | None, about: str, next: str, now_ms: int, history: TransitionReader
) -> Iterator[Hold]:
    known = None if rule is None else rule.breaker
    state = breakers.released(state, now_ms) if known is None else breakers.look(state, known, now_ms)
    since_ms = state.since_ms or None
    word = state.status
    if word == "open" and now_ms >= state.until_ms:
        word = "half_open"
    if word == "forced_open":
        last = _newest([each for each in history(about) if each.actor])  # a worker may note what it did before later
        by = "" if last is None else f" by {last.actor}: {last.reason}"
        name, _, key = about.partition("/")
        release = words("flow", "set", name, *(("--key", key) if key else ()), "--breaker", "auto", "--reason", "…")
        text = f"the breaker of {about} is held open{by}"
        actor, reason = ("", "") if last is None else (last.actor, last.reason)
        until_ms = state.held_until_ms or None
        forgotten = is_forgotten(since_ms, until_ms, now_ms)
        yield Hold(
            kind="breaker", by=about, text=text, until_ms=until_ms, next=release, needs_person=forgotten,
            since_ms=since_ms, actor=actor, reason=reason,
        )  # fmt: skip
    elif word == "open":
        last = _newest(history(about))
        why = "" if last is None or not last.why else f": {last.why}"
        text = f"the breaker of {about} is open{why}"
        yield Hold(kind="breaker", by=about, text=text, until_ms=state.until_ms, next=next, since_ms=since_ms)
    elif word == "half_open":
        tried = "its probes run" if state.probes else "a probe decides"
        yield Hold(kind="breaker", by=about, text=f"the breaker of {about} is half-open: {tried}", next=next)
    elif state.ramp is not None and not ramps.ready(state.ramp, now_ms):
        text = f"{about} is back, and what waited is let go at {ramps.rate(state.ramp, now_ms):.3g}/s"
        yield Hold(kind="ramp", by=about, text=text, until_ms=ramps.peek(state.ramp, now_ms), next=next)


def deferral_hold(message: Message) -> Hold | None:
    """Return the hold that flow control recorded when it deferred the message; None if the message was not deferred."""
    held = message.deferral
    if held is None:
        return None
    kind = "rate" if held.why == "limit" else held.why
    by = _rate_name(held.by) if held.by else ""
    texts = {
        "budget": f"the retry budget of {by} was spent",
        "rate": f"the rate of {by} was used up",
        "concurrency": f"{by} had as many calls under way as it takes",
        "cool-down": f"{by} asked to be left alone (Retry-After)",
        "breaker": f"the breaker of {by} was open",
        "ramp": f"{by} is back, and what waited is let go slowly",
        "pause": f"task {by} was paused",
        "idempotency": "another message with its idempotency key is running",
    }
    text = texts.get(kind, f"put off by {kind}" + (f" of {by}" if by else ""))
    named = held.by and kind not in ("idempotency", "pause")
    next = words("flow", "show", held.by) if named else words("job", "show", message.id)
    return Hold(kind=kind, by=by, text=text, until_ms=message.due_ms, next=next, queue=message.queue, count=1)


def _newest(transitions: Sequence[Transition]) -> Transition | None:
    return transitions[-1] if transitions else None


def _rate_name(about: str) -> str:
    """Return the name of a rate for display: `queue crm`, `task push`, or the dependency."""
    name, slash, key = about.partition("/")
    name = _WINDOW.sub("", name)
    for prefix in (QUEUE, TASK):
        if name.startswith(prefix):
            return f"{prefix.removesuffix(':')} {name.removeprefix(prefix)}{slash}{key}"
    return f"{name}{slash}{key}"
