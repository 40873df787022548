"""Bugs of `admit` and `decide`, one or more for each of their rows."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.support.model.bug import Bugs

from redrive import decide
from redrive.fault import Kind
from redrive.message import (
    Ack,
    DeadLetter,
    Quarantine,
    RetryAt,
)

BUGS = bug = Bugs()


# -- admit, a row each


def row(what: str, *, admit: bool = True, message: Any = None, policy: Any = None, answer: Any = None) -> None:
    """`admit` or `decide` with its message, its policy or its answer changed."""

    @bug(decide, "admit" if admit else "decide", what)
    def _(right: Any, m: Any, second: Any, third: Any, now: int) -> Any:
        m = message(m, now) if message else m
        if policy is not None:
            second, third = (policy(second), third) if admit else (second, policy(third))
        given = right(m, second, third, now)
        return answer(given, m, second, now) if answer else given


def retried(policy: Any, **parts: Any) -> Any:
    """The policy with some of its retry changed."""
    retry = policy.retry
    names = ("max_attempts", "max_elapsed", "backoff", "on", "never", "only", "override", "max_retry_after")
    return replace(policy, retry=type(retry)(**{name: getattr(retry, name) for name in names} | parts))


row("a cancelled message runs", message=lambda m, now: replace(m, cancel=False))
row("the deadline is ignored", message=lambda m, now: replace(m, deadline_ms=None))
row(
    "the deadline itself is in time",
    message=lambda m, now: replace(m, deadline_ms=m.deadline_ms and m.deadline_ms + 1),
)
row("one crash more is allowed", message=lambda m, now: replace(m, crashes=max(0, m.crashes - 1)))
row("one crash alone more is allowed", message=lambda m, now: replace(m, crashes_alone=max(0, m.crashes_alone - 1)))
row("the window of crashes is ignored", policy=lambda policy: replace(policy, crashes_within_s=None))
row("what was asked for long is forgotten", message=lambda m, now: replace(m, faults=()))
row(
    "what an earlier life was asked holds still",
    message=lambda m, now: replace(m, life_ms=0),
)
row(
    "an answer costs an attempt",
    answer=lambda given, m, policy, now: given if given == decide.RUN else replace(given, counts=True),
)
row(
    "poison is dead instead",
    answer=lambda given, m, policy, now: (
        DeadLetter("crashed", counts=False) if isinstance(given, Quarantine) else given
    ),
)


@bug(decide, "admit", "an unknown task runs")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, unroutable=None), now)


@bug(decide, "admit", "an unreadable body runs")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, unreadable=None), now)


@bug(decide, "admit", "an unknown task is parked for ever")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(replace(m, faults=()), policy, signals, now) if signals.unroutable else right(m, policy, signals, now)


@bug(decide, "admit", "an unknown task is dead at once")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, park_ms=0), now)


@bug(decide, "admit", "an unknown task that a living worker knows is parked")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, again_ms=None), now)


@bug(decide, "admit", "the wait for a newer worker counts while one lived")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, known_ms=0), now)


@bug(decide, "admit", "a body that cannot be fetched runs")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, unfetched=None), now)


@bug(decide, "admit", "unreadable comes before unroutable")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, unroutable=None) if signals.unreadable else signals, now)


# -- decide, a row each


def counted(given: Any, *args: Any) -> Any:
    return given if isinstance(given, Ack) else replace(given, counts=True)


def steer(what: str, word: str) -> None:
    @bug(decide, "decide", what)
    def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
        return right(m, replace(fault, steer="") if fault.steer == word else fault, policy, now)


steer("a snooze is a failure", "snooze")
steer("a reject is retried", "reject")
steer("a quarantine is dead", "quarantine")


@bug(decide, "decide", "a process's death is a failure like others")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, replace(fault, crash=None), policy, now)


row(
    "a crash that convicts is not the one that came last",
    admit=False,
    policy=lambda policy: replace(policy, crashes_alone_max=policy.crashes_alone_max + 1),
)
row(
    "a crash costs an attempt",
    admit=False,
    answer=lambda given, m, policy, now: replace(given, crashed=False) if isinstance(given, RetryAt) else given,
)


@bug(decide, "decide", "a crash in company is one alone")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(
        m, fault if fault.crash is None else replace(fault, crash=replace(fault.crash, alone=True)), policy, now
    )


row(
    "what crashed in company goes behind what was enqueued after it",
    admit=False,
    answer=lambda given, m, policy, now: (
        replace(given, at_ms=now) if isinstance(given, RetryAt) and given.in_company else given
    ),
)
row(
    "the crash that convicts is not counted",
    admit=False,
    answer=lambda given, m, policy, now: replace(given, crashed=False) if isinstance(given, Quarantine) else given,
)


@bug(decide, "decide", "an interruption is a failure")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, replace(fault, kind=Kind.DEFAULT) if fault.kind is Kind.INTERRUPTED else fault, policy, now)


@bug(decide, "decide", "permanent faults are retried")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, replace(fault, kind=Kind.DEFAULT) if fault.kind is Kind.PERMANENT else fault, policy, now)


@bug(decide, "decide", "what was asked is ignored")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, fault if fault.steer else replace(fault, retry_after_s=None), policy, now)


@bug(decide, "decide", "what was asked is not a floor")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    given = right(m, fault, policy, now)
    if not isinstance(given, RetryAt) or not fault.retry_after_s or given.at_ms < now + fault.retry_after_s * 1000:
        return given
    return replace(given, at_ms=given.at_ms - 1000)


row("snoozed and interrupted ones count", admit=False, answer=counted)
row("an attempt more is allowed", admit=False, message=lambda m, now: replace(m, attempt=m.attempt - 1))
row("a redrive's attempts are ignored", admit=False, message=lambda m, now: replace(m, attempts_allowed=None))
row("time held counts as elapsed", admit=False, message=lambda m, now: replace(m, held_ms=0))
row("elapsed is never looked at", admit=False, policy=lambda p: retried(p, max_elapsed=None))
row("override is never asked", admit=False, policy=lambda p: retried(p, override=None))
row("never is ignored", admit=False, policy=lambda p: retried(p, never=()))
row("only is ignored", admit=False, policy=lambda p: retried(p, only=()))
row("entries for kinds and classes are ignored", admit=False, policy=lambda p: retried(p, on={}))
row("what was asked is not clamped", admit=False, policy=lambda p: retried(p, max_retry_after="365d"))
row(
    "a retry is due a millisecond early",
    admit=False,
    answer=lambda given, m, policy, now: replace(given, at_ms=given.at_ms - 1) if isinstance(given, RetryAt) else given,
)


@bug(decide, "decide", "the least special class wins")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, replace(fault, errors=fault.errors[::-1]), policy, now)


@bug(decide, "decide", "the elapsed time ends with the failure, not with the next start")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    given = right(m, fault, policy, now)
    bound_s = policy.retry.max_elapsed
    early = isinstance(given, DeadLetter) and given.reason == "elapsed" and bound_s is not None
    if early and decide.tried_ms(m, fault, policy.retry, now) / 1000 <= bound_s:
        return right(m, fault, retried(policy, max_elapsed=None), now)
    return given


def tries(what: str, *, message: Any = None, fault: Any = None, retry: Any = None) -> None:
    """`tried_ms` with its message, its fault or its policy changed."""

    @bug(decide, "tried_ms", what)
    def _(right: Any, m: Any, f: Any, r: Any, now: int) -> Any:
        return right(message(m) if message else m, fault(f) if fault else f, retry(r) if retry else r, now)


def each(m: Any, **parts: Any) -> Any:
    """The message with something else in each of its faults."""
    return replace(m, faults=tuple(replace(f, **{name: of(f) for name, of in parts.items()}) for f in m.faults))


@bug(decide, "_guessed_ms", "without a history all its age counts as elapsed")
def _(right: Any, m: Any, fault: Any, retry: Any) -> Any:
    return 2**60


@bug(decide, "tried_ms", "all time since the life began counts as elapsed")
def _(right: Any, m: Any, fault: Any, retry: Any, now: int) -> Any:
    return max(right(m, fault, retry, now), now - m.life_ms - m.held_ms)


tries("the time of a run does not count as elapsed", fault=lambda f: replace(f, ran_ms=0))
tries("what was tried before the last failure is forgotten", message=lambda m: each(m, tried_ms=lambda f: 0))
tries(
    "the delays before retries do not count as elapsed", message=lambda m: each(m, delay_ms=lambda f: f.delay_ms and 0)
)
tries("an earlier life counts as elapsed", message=lambda m: replace(m, life_ms=0))
tries(
    "what was asked for beyond the clamp counts as the clamp", message=lambda m: each(m, retry_after_s=lambda f: None)
)
tries(
    "the wait of a parked message counts as elapsed",
    message=lambda m: each(m, kind=lambda f: Kind.DEFAULT if f.kind is Kind.UNROUTABLE else f.kind),
)
