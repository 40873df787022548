"""The only place where a message's fate is chosen.

`admit` looks at a claimed message before it runs, `decide` at its fault afterwards. Both are pure: no clock, no randomness,
no I/O, no logging. The worker, Lambda handlers, redriver, simulator and `policy preview` all call these two.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from .fault import Fault, Kind
from .message import DeadLetter, Decision, Message, Quarantine, RetryAt
from .policy import Retry, draw

ASKED_SPREAD = 0.2  # what was asked to wait for r comes back within [r, 1.2·r]


class Policy(Struct, frozen=True):
    """What a task says about its failures. `crashes_alone_max`: crashes while it ran alone that convict it;
    `crashes_max`: the bound for crashes in company, so that nothing loops for ever."""

    retry: Retry = Retry()
    timeout_s: float = 300.0
    crashes_alone_max: int = 3
    crashes_max: int = 10


class Run(Struct, frozen=True):
    """Run it now."""


class Signals(Struct, frozen=True):
    """What the worker knows about a message beyond the message: why its body or task cannot be used, if so."""

    unreadable: str | None = None
    unroutable: str | None = None


RUN = Run()
NO_SIGNALS = Signals()


def admit(message: Message, policy: Policy, signals: Signals, now_ms: int) -> Run | RetryAt | DeadLetter | Quarantine:
    """What to do with a message that was just claimed. Every answer but Run gives the attempt back."""
    if message.cancel:
        return RetryAt(now_ms, "cancelled", counts=False)  # the store ends it: a cancelled message is never retried
    if signals.unroutable is not None:
        return DeadLetter("unroutable", signals.unroutable, counts=False)
    if signals.unreadable is not None:
        return DeadLetter("unreadable", signals.unreadable, counts=False)
    if message.deadline_ms is not None and now_ms >= message.deadline_ms:
        return DeadLetter("deadline", f"its deadline passed {now_ms - message.deadline_ms} ms before it could run", counts=False)
    if message.crashes_alone >= policy.crashes_alone_max or message.crashes >= policy.crashes_max:
        return Quarantine(f"its worker died {message.crashes} times while running it", counts=False)
    return RUN


def decide(message: Message, fault: Fault, policy: Policy, now_ms: int) -> Decision:
    """What happens to a message whose run ended in `fault`: steered first, then permanent, attempts, elapsed, backoff."""
    steered = _steered(fault, now_ms)
    if steered is not None:
        return steered
    retry = policy.retry
    chosen = retry.choose(fault)
    if not chosen.retryable:
        return DeadLetter("permanent", chosen.why)
    allowed = chosen.max_attempts if message.attempts_allowed is None else message.attempts_allowed
    delay_s = _delay_s(message, fault, retry, now_ms) if message.attempt < allowed else 0.0
    if retry.override is not None:
        overridden = retry.override(message, fault, delay_s)
        if overridden is not None:
            return overridden
    if message.attempt >= allowed:
        return DeadLetter("exhausted", f"failed {message.attempt} of {allowed} allowed attempts")
    at_ms = now_ms + _ceil_ms(delay_s)
    elapsed_ms = at_ms - message.life_ms - message.held_ms
    if chosen.max_elapsed_s is not None and elapsed_ms > chosen.max_elapsed_s * 1000:
        return DeadLetter("elapsed", f"its next attempt would start {elapsed_ms / 1000:.1f} s into its life, allowed are {chosen.max_elapsed_s:g} s")
    return RetryAt(at_ms, fault.kind.value)


def _steered(fault: Fault, now_ms: int) -> Decision | None:
    if not fault.steer or fault.steer == "retry_after":
        if fault.kind is Kind.INTERRUPTED:
            return RetryAt(now_ms, "interrupted", counts=False)
        return None
    match fault.steer:
        case "snooze":
            return RetryAt(now_ms + _ceil_ms(fault.retry_after_s or 0.0), "snooze", counts=False)
        case "reject":
            return DeadLetter("rejected", fault.text)
        case "quarantine":
            return Quarantine(fault.text, reason="rejected")
    raise ValueError(f"unknown steer {fault.steer!r}; known: snooze, reject, quarantine, retry_after")


def _delay_s(message: Message, fault: Fault, retry: Retry, now_ms: int) -> float:
    """max(backoff, r + U(0, 0.2·r)) with r the asked delay, at most `max_retry_after` (SPEC 3)."""
    u = draw(message.id, message.redrives, message.fence)
    previous = message.faults[-1].delay_ms if message.faults else None
    backoff = retry.choose(fault).backoff
    delay_s = backoff.seconds(message.attempt - 1, u, None if previous is None else previous / 1000, fault)
    if fault.retry_after_s is None:
        return delay_s
    asked_s = min(fault.retry_after_s, retry.max_retry_after_s)
    return max(delay_s, asked_s + ASKED_SPREAD * u * asked_s)


def _ceil_ms(seconds: float) -> int:
    return -int(-seconds * 1000 // 1)  # up, so that nothing is early


def with_fate(fault: Fault, message: Message, decision: Decision, now_ms: int, worker: str) -> Fault:
    """The fault as it is kept: when, in which attempt, by whom, and the delay that followed."""
    delay_ms = max(0, decision.at_ms - now_ms) if isinstance(decision, RetryAt) else None
    return replace(fault, at_ms=now_ms, attempt=message.attempt, worker=worker, delay_ms=delay_ms)
