"""Decide what happens to a message: `admit` before it runs, and `decide` by its fault afterwards.

Both are pure: no clock, no randomness, no I/O, no logging. Worker, Lambda handler, redriver, test kit and
`policy preview` all call these two, and nothing else decides.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .errors import KeyMissing
from .fault import Fault, Kind
from .message import HELD, REASON_MAX, Ack, DeadLetter, Decision, Deferral, Message, Quarantine, RetryAt
from .policy import CRASHES_MAX, Backoff, Chosen, Retry, draw

LOCKED = f"{KeyMissing.__module__}.{KeyMissing.__qualname__}"  # error in the fault of a message whose key is missing
LOCKED_LOOK_MS = 60_000  # the longest wait, in ms, before a message whose key is missing is tried again
PARK_LOOK_MS = 10_000  # longest wait, in ms, before a parked message is tried again on a worker that may know its task
PARK_LOOK_FIRST_MS = 500  # first wait, in ms, of a parked message; each later one is half of the time parked so far
ASKED_SPREAD = 0.2  # a message that must wait r is retried within [r, 1.2·r]

AT_MAX_MS = 2**62  # the largest time: stores have integers of 64 bits
SNOOZE_MIN_MS = 100  # keeps a message that snoozes in each run from occupying a worker
WAIT_MAX_MS = 2**61

GUESSED_MAX = 1_000  # the most retries whose delays `_guessed_ms` adds up

FETCH_AGAIN_S = 30.0  # the base of the retry delay while blob storage is unavailable, in seconds: 0.5 to 1.5 times this


class Policy(Struct, frozen=True):
    """The rules for the failures of a task. A message is quarantined after `crashes_alone_max` crashes while it ran
    alone, within `crashes_within_s` if that is given, or after `crashes_max` crashes of any sort, so that every crash
    loop ends."""

    retry: Retry = Retry()
    timeout_s: float = 300.0
    crashes_alone_max: int = 3
    crashes_max: int = CRASHES_MAX
    crashes_within_s: float | None = None


class Run(Struct, frozen=True):
    """The decision to run the message now."""


class Refusal(Struct, frozen=True):
    """The refusal of flow control to run a message now. The message may run at `at_ms`, with the deferral's permits;
    with `dead` it is dead-lettered instead."""

    at_ms: int
    deferral: Deferral
    dead: bool = False


class Signals(Struct, frozen=True):
    """The worker's findings about a message before it runs: why its body or task cannot be used, `park_ms` (how
    long an unroutable message waits for a newer worker) and flow control's refusal.

    `known_ms` is when a worker that knows the task was last alive. If such a worker is alive now, the message waits
    until `again_ms` for it. `unknown` lists arguments that the handler does not take.
    """

    unreadable: str | None = None
    unroutable: str | None = None
    park_ms: int = 0
    locked: str | None = None  # the missing encryption key, without which nothing in the content can be judged
    tampered: str | None = None
    unfetched: str | None = None  # why the blob of the body cannot be read at present
    refusal: Refusal | None = None
    known_ms: int = 0
    again_ms: int | None = None
    unknown: tuple[str, ...] = ()


RUN = Run()
NO_SIGNALS = Signals()


def admit(message: Message, policy: Policy, signals: Signals, now_ms: int) -> Run | RetryAt | DeadLetter | Quarantine:
    """Decide what to do with a message that was just claimed. Every decision except Run gives the attempt back."""
    if message.cancel:
        return RetryAt.released(now_ms, "cancelled")  # the store ends a cancelled message instead of retrying it
    if signals.locked is not None:
        wait_ms = min(max(PARK_LOOK_MS, message.held_ms // 2), LOCKED_LOOK_MS)
        return RetryAt.deferred(now_ms + wait_ms, "parked")
    if signals.tampered is not None:
        return Quarantine(signals.tampered, reason="tampered", counts=False)
    if message.deadline_ms is not None and now_ms >= message.deadline_ms:
        why = f"its deadline passed {now_ms - message.deadline_ms} ms before it could run"
        return DeadLetter("deadline", why, counts=False)
    if signals.unroutable is not None:
        return _park(message, signals, signals.unroutable, now_ms)
    if signals.unreadable is not None:
        return DeadLetter("unreadable", signals.unreadable, counts=False)
    if message.crashes and _crashes_too_often(message, policy, now_ms):
        last = next((fault for fault in reversed(message.faults) if fault.crash is not None), None)
        return Quarantine(_sentence(message.crashes, message.crashes_alone, last), counts=False)
    asked_ms = _asked_until_ms(message, policy.retry)
    if now_ms < asked_ms:
        return RetryAt.released(min(asked_ms, now_ms + _ceil_ms(policy.retry.max_retry_after_s)), "asked")
    if signals.refusal is not None:
        return _refuse(signals.refusal)
    if signals.unfetched is not None:
        wait_s = FETCH_AGAIN_S * (0.5 + draw(message.id, message.redrives, message.fence))
        return RetryAt.deferred(now_ms + _ceil_ms(wait_s), "blob unavailable")
    return RUN


def _refuse(refusal: Refusal) -> RetryAt | DeadLetter:
    deferral = refusal.deferral
    if refusal.dead:
        return DeadLetter("budget", f"no {deferral.why} left of {deferral.by}, and it is not to wait", counts=False)
    return RetryAt.deferred(refusal.at_ms, deferral.why, deferral)


def _park(message: Message, signals: Signals, why: str, now_ms: int) -> RetryAt | DeadLetter:
    """Defer the message to a worker that knows its task, if one is alive. Otherwise retry it until `park_ms` after it
    was first parked, or after such a worker was last alive; then dead-letter it."""
    if signals.again_ms is not None:
        return RetryAt.deferred(signals.again_ms, "newer")
    first_ms = parked_since_ms(message)
    since_ms = now_ms if first_ms is None else min(now_ms, max(first_ms, signals.known_ms))
    left_ms = since_ms + signals.park_ms - now_ms
    if left_ms <= 0:
        return DeadLetter("unroutable", why, counts=False)
    look_ms = min(max(PARK_LOOK_FIRST_MS, (now_ms - since_ms) // 2), PARK_LOOK_MS)
    return RetryAt.deferred(now_ms + min(left_ms, look_ms), "parked")


def parked_since_ms(message: Message) -> int | None:
    """Return when the message was first parked, from the fault stored then; None if a run has failed since. A wait for
    a missing key does not count as parking."""
    last = next((fault for fault in reversed(message.faults) if fault.crash is None), None)
    if last is None or last.kind is not Kind.UNROUTABLE or last.at_ms < message.life_ms or last.error == LOCKED:
        return None
    return last.at_ms


def reports_key_missing(message: Message) -> bool:
    """Return True if the last fault of the message's life already reports a missing key."""
    last = message.faults[-1] if message.faults else None
    return last is not None and last.error == LOCKED and last.at_ms >= message.life_ms


def decide(message: Message, fault: Fault, policy: Policy, now_ms: int) -> Decision:
    """Decide what happens to a message whose run ended in `fault`. Checks, in this order: control exceptions of the
    handler, crash, the policy's override, permanent fault, attempts, elapsed time; then backoff."""
    steered = _steer(fault, now_ms)
    if steered is not None:
        return steered
    if fault.crash is not None:
        decide_crash = _decide_crash if fault.crash.alone else _decide_crash_in_company
        return decide_crash(message, fault, policy, now_ms)
    retry = policy.retry
    chosen = retry.choose(fault)
    allowed = chosen.max_attempts if message.attempts_allowed is None else message.attempts_allowed
    delay_s = _delay_s(message, fault, retry, chosen.backoff, message.attempt - 1)
    if retry.override is not None:
        overridden = retry.override(message, fault, delay_s)
        if overridden is not None:
            return _check(overridden)
    if not chosen.retryable:
        return DeadLetter("permanent", chosen.why)
    if message.attempt >= allowed:
        return DeadLetter(_used_up(chosen, "exhausted"), f"failed {message.attempt} of {allowed} allowed attempts")
    at_ms = now_ms + _ceil_ms(delay_s)
    if chosen.max_elapsed_s is not None:
        elapsed_s = (tried_ms(message, fault, retry, now_ms) + at_ms - now_ms) / 1000
        if elapsed_s > chosen.max_elapsed_s:
            bound = f"allowed are {chosen.max_elapsed_s:g} s"
            why = f"its next attempt would start after {elapsed_s:.1f} s of trying; {bound}"
            return DeadLetter(_used_up(chosen, "elapsed"), why)
    return RetryAt.failed(at_ms, fault.kind.value)


def _used_up(chosen: Chosen, reason: str) -> str:
    """Return the reason of a message whose retries are used up: `held` if its policy holds it for a person."""
    return HELD if chosen.on_exhausted == "hold" else reason


def tried_ms(message: Message, fault: Fault, retry: Retry, now_ms: int) -> int:
    """Return how long this life has been tried when its run ends in `fault`: the durations of its failed runs plus the
    delays decided between them, in ms.

    Other waits do not count: before the first claim, for a free worker, or for flow control. Each fault stores the sum
    so far, so the sum survives when the middle of a long history is dropped.
    """
    for earlier in reversed(message.faults):
        if earlier.at_ms < message.life_ms:
            break
        if earlier.kind is Kind.UNROUTABLE or earlier.delay_ms is None:
            continue  # the fault of parking or of a dead worker has no decided delay
        return fault.ran_ms + earlier.tried_ms + _decided_ms(earlier, earlier.delay_ms, retry)
    if message.attempt == 1:
        return fault.ran_ms
    return max(fault.ran_ms, min(now_ms - message.life_ms - message.held_ms, _guessed_ms(message, fault, retry)))


def _guessed_ms(message: Message, fault: Fault, retry: Retry) -> int:
    """Return an estimate of the time tried, in ms, for a message without a history (SQS without cells): as if its
    earlier attempts had failed as this one did, after the same time."""
    backoff, sum_ms, previous_s = retry.choose(fault).backoff, message.attempt * fault.ran_ms, None
    for n in range(min(message.attempt - 1, GUESSED_MAX)):
        u = draw(message.id, message.redrives, message.fence - message.attempt + 1 + n)
        delay_ms = _ceil_ms(_wait_s(fault, retry, backoff, n, u, previous_s))
        sum_ms, previous_s = sum_ms + delay_ms, delay_ms / 1000
    return sum_ms


def _decided_ms(fault: Fault, delay_ms: int, retry: Retry) -> int:
    """Return the wait after a fault, in ms: the delay decided then, or a `Retry-After` above the policy's bound."""
    if fault.retry_after_s is None or fault.retry_after_s <= retry.max_retry_after_s:
        return delay_ms
    return max(delay_ms, _ceil_ms(fault.retry_after_s))


def _decide_crash(message: Message, fault: Fault, policy: Policy, now_ms: int) -> Decision:
    """Retry a message that crashed its process while it ran alone, after its backoff; quarantine it after too many
    crashes. `max_attempts` and an override do not apply."""
    chosen = policy.retry.choose(fault)
    if not chosen.retryable or _crashes_too_often(message, policy, now_ms, more=1):
        return Quarantine(_sentence(message.crashes + 1, message.crashes_alone + 1, fault), crashed=True)
    delay_s = _delay_s(message, fault, policy.retry, chosen.backoff, message.crashes_alone)
    return RetryAt.after_crash(now_ms + _ceil_ms(delay_s))


def _decide_crash_in_company(message: Message, fault: Fault, policy: Policy, now_ms: int) -> Decision:
    """Retry at once a message whose process died while other messages ran in it: most of these are innocent. The
    message is due before later ones, as after a lease that ran out. Only the bound for all crashes quarantines it."""
    if message.crashes + 1 >= policy.crashes_max:
        sentence = _sentence(message.crashes + 1, message.crashes_alone, fault)
        return Quarantine(sentence, crashed=True, in_company=True)
    return RetryAt.after_crash(min(now_ms, message.life_ms), in_company=True)


def _crashes_too_often(message: Message, policy: Policy, now_ms: int, more: int = 0) -> bool:
    """True if the crashes of the message, with `more` crashes alone that are not counted yet, quarantine it. Of the
    crashes alone, those before the policy's window do not count."""
    alone = message.crashes_alone + more
    if policy.crashes_within_s is not None:
        since_ms = now_ms - _ceil_ms(policy.crashes_within_s)
        known = [fault.at_ms for fault in message.faults if fault.crash is not None and fault.crash.alone]
        alone -= sum(message.life_ms <= at_ms < since_ms for at_ms in known)
    return alone >= policy.crashes_alone_max or message.crashes + more >= policy.crashes_max


def _sentence(crashes: int, alone: int, last: Fault | None) -> str:
    """Return why the message is poison, as a text for people; `last` is the fault of its last crash."""
    times = "once" if crashes == 1 else f"{crashes} times"
    text = f"its process died {times} while running it, {alone} of them while it ran alone"
    return text if last is None else f"{text}; the last: {last.text}"


def _check(decision: Any) -> Decision:
    """Return the decision of the policy's override, with at most REASON_MAX characters of its reason. Raises
    TypeError or ValueError if it is not a valid decision."""
    match decision:
        case RetryAt(at_ms=at_ms):
            if type(at_ms) is not int or not 0 <= at_ms <= AT_MAX_MS:
                raise ValueError(f"override returned {decision!r}; expected at_ms as whole milliseconds of the epoch")
        case DeadLetter(reason=reason, why=why) | Quarantine(why=why, reason=reason):
            f"{reason}{why}".encode()
            if not all(isinstance(word, str) for word in (reason, why)):
                raise TypeError(f"override returned {decision!r}; expected its reason and its why as text")
            if len(reason) > REASON_MAX:  # cut and not refused, as the default policy might run the message again
                decision = replace(decision, reason=reason[:REASON_MAX])
        case Ack():
            pass
        case _:
            raise TypeError(f"override returned {decision!r}; expected a Decision or None")
    chosen: Decision = decision
    return chosen


def _steer(fault: Fault, now_ms: int) -> Decision | None:
    if fault.kind is Kind.INTERRUPTED:
        return RetryAt.released(now_ms, "interrupted")
    if fault.steer == "snooze":
        return RetryAt.released(now_ms + max(_ceil_ms(fault.retry_after_s or 0.0), SNOOZE_MIN_MS), "snooze")
    if fault.steer == "reject":
        return DeadLetter("rejected", fault.text)
    if fault.steer == "quarantine":
        return Quarantine(fault.text, reason="rejected")
    return None  # RetryAfter is an ordinary failure that requests a delay


def _asked_until_ms(message: Message, retry: Retry) -> int:
    """Return the end of the wait that this life's last fault requested, if that wait exceeds
    `max_retry_after`; else 0."""
    if not message.faults:
        return 0
    last = _last_failure(message)
    if last is None or last.retry_after_s is None or last.retry_after_s <= retry.max_retry_after_s:
        return 0
    return last.at_ms + _ceil_ms(last.retry_after_s) if last.at_ms >= message.life_ms else 0


def _last_failure(message: Message) -> Fault | None:
    """Return the fault of the last failed run of the message; faults of parking and of crashes do not count."""
    return next((f for f in reversed(message.faults) if f.kind is not Kind.UNROUTABLE and f.crash is None), None)


def _delay_s(message: Message, fault: Fault, retry: Retry, backoff: Backoff, n: int) -> float:
    """Return the delay in seconds before the `n`th retry of the message, counted from 0."""
    last = _last_failure(message)
    previous_s = None if last is None or last.delay_ms is None else last.delay_ms / 1000
    u = draw(message.id, message.redrives, message.fence)
    return _wait_s(fault, retry, backoff, max(0, n), u, previous_s)


def _wait_s(fault: Fault, retry: Retry, backoff: Backoff, n: int, u: float, previous_s: float | None) -> float:
    """Return the delay in seconds: max(backoff, r + U(0, 0.2·r)), where r is the requested delay, at most
    `max_retry_after`."""
    delay_s = backoff.seconds(n, u, previous_s, fault)
    if fault.retry_after_s is None:
        return delay_s
    asked_s = min(fault.retry_after_s, retry.max_retry_after_s)
    return max(delay_s, asked_s + ASKED_SPREAD * u * asked_s)


def _ceil_ms(seconds: float) -> int:
    return min(-int(-seconds * 1000 // 1), WAIT_MAX_MS)  # rounded up, so that no retry is early


def with_fate(fault: Fault, message: Message, decision: Decision, now_ms: int, worker: str) -> Fault:
    """Return the fault as it is stored: with time, attempt, worker and the delay that was decided. If the decision
    gives the attempt back, the fault carries the lower attempt number."""
    delay_ms = max(0, decision.at_ms - now_ms) if isinstance(decision, RetryAt) else None
    attempt = message.attempt - is_free(decision)
    return replace(fault, at_ms=now_ms, attempt=attempt, worker=worker, delay_ms=delay_ms)


def is_free(decision: Decision) -> bool:
    """Return True if the decision gives the attempt back."""
    match decision:
        case Ack():
            return False
        case DeadLetter():
            return not decision.counts
        case RetryAt() | Quarantine():
            return decision.crashed or not decision.counts
