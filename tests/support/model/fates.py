"""What `admit` and `decide` must answer, said once more: a list of rows, the first that applies wins.

Written from the words of the policy and not from `redrive.decide`. A retry is given as the earliest and the latest time
it may start, as the spread of what was asked is a draw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from redrive.decide import Policy, Run, Signals
from redrive.fault import Fault, Kind
from redrive.message import DeadLetter, Message, Quarantine, RetryAt
from redrive.policy import Backoff, Retry


@dataclass(frozen=True)
class Fate:
    """`where` it goes, why, whether the attempt counts, and from when to when a retry may start."""

    where: str
    reason: str = ""
    counts: bool = True
    least_ms: int = 0
    most_ms: int = 0
    held: bool = False
    crashed: bool = False
    in_company: bool = False
    or_dead: str = ""  # whether it is this instead, the draw decides

    def is_that_of(self, answer: object) -> bool:
        match answer:
            case Run():
                return self.where == "run"
            case RetryAt(at_ms, why, counts, held):
                told = (self.where, self.reason, self.counts, self.held) == ("retry", why, counts, held)
                told = told and (answer.crashed, answer.in_company) == (self.crashed, self.in_company)
                return told and self.least_ms <= at_ms <= self.most_ms
            case DeadLetter(reason, _, counts):
                if reason == self.or_dead:
                    return counts
                return (self.where, self.reason, self.counts) == ("dead", reason, counts)
            case Quarantine(_, reason, counts, crashed, in_company):
                told = (self.where, self.reason, self.counts) == ("quarantine", reason, counts)
                return told and (self.crashed, self.in_company) == (crashed, in_company)
            case _:
                return False


def retry(why: str, at_ms: int, most_ms: int | None = None, *, counts: bool = True) -> Fate:
    return Fate("retry", why, counts, at_ms, at_ms if most_ms is None else most_ms)


def admitted(message: Message, policy: Policy, signals: Signals, now: int) -> Fate:
    """Before a run: nothing that happens here costs an attempt."""
    clamp_ms = int(policy.retry.max_retry_after * 1000)
    asked_until_ms = 0
    told = [fault for fault in message.faults if fault.crash is None]  # the others say how its processes died
    failures = [fault for fault in told if fault.kind is not Kind.UNROUTABLE]  # the others say when it parked
    for fault in failures[-1:]:
        asked_ms = int((fault.retry_after_s or 0) * 1000)
        if asked_ms > clamp_ms and fault.at_ms >= message.life_ms:
            asked_until_ms = fault.at_ms + asked_ms
    passed = message.deadline_ms is not None and message.deadline_ms <= now
    poison = guilty(message, policy, now)
    unknown, alone_ms = signals.unroutable is not None, 0  # for how long no worker has known it
    for fault in told[-1:]:
        if fault.kind is Kind.UNROUTABLE and fault.at_ms >= message.life_ms:
            alone_ms = max(0, min(now - fault.at_ms, now - signals.known_ms))
    left_ms = signals.park_ms - alone_ms
    look_ms = 500 if alone_ms < 1000 else 10_000 if alone_ms > 20_000 else alone_ms // 2
    newer = unknown and signals.again_ms is not None
    unfetched = retry("blob unavailable", now + 15_000, now + 45_000, counts=False)
    rows: list[tuple[bool, Fate]] = [
        (message.cancel, retry("cancelled", now, counts=False)),
        (passed, Fate("dead", "deadline", counts=False)),
        (newer, replace(retry("newer", signals.again_ms or 0, counts=False), held=True)),
        (unknown and left_ms > 0, replace(retry("parked", now + min(left_ms, look_ms), counts=False), held=True)),
        (unknown, Fate("dead", "unroutable", counts=False)),
        (signals.unreadable is not None, Fate("dead", "unreadable", counts=False)),
        (poison, Fate("quarantine", "crashed", counts=False)),
        (now < asked_until_ms, retry("asked", min(asked_until_ms, now + clamp_ms), counts=False)),
        (signals.unfetched is not None, replace(unfetched, held=True)),
        (True, Fate("run")),
    ]
    return _first(rows)


def guilty(message: Message, policy: Policy, now: int, more: int = 0) -> bool:
    """Whether crashes alone reach their cap, those known to be too old apart, or all crashes theirs."""
    too_old = 0
    for fault in message.faults:
        if policy.crashes_within_s is not None and fault.crash is not None and fault.crash.alone:
            too_old += message.life_ms <= fault.at_ms < now - policy.crashes_within_s * 1000
    enough_alone = message.crashes_alone + more - too_old >= policy.crashes_alone_max
    return message.crashes + more > 0 and (enough_alone or message.crashes + more >= policy.crashes_max)


@dataclass(frozen=True)
class Plan:
    """A policy in whole seconds and without jitter, so that every delay is known."""

    attempts: int
    elapsed_s: int | None
    base_s: int
    factor: int
    cap_s: int
    on: tuple[tuple[str, int], ...]  # fixed delays by fault kind or class name
    never: tuple[str, ...]
    only: tuple[str, ...]
    overrides: str | None  # the kind that an override retries in 7 s, whatever else is said
    max_retry_after_s: int

    def retry(self, now: int) -> Retry:
        def override(message: Message, fault: Fault, delay_s: float) -> RetryAt | None:
            return RetryAt(now + 7000, "mine") if fault.kind == self.overrides else None

        return Retry(
            self.attempts,
            self.elapsed_s,
            Backoff(self.base_s, self.factor, self.cap_s, "none"),
            {name: Backoff.fixed(delay_s) for name, delay_s in self.on},
            self.never,
            self.only,
            override if self.overrides else None,
            self.max_retry_after_s,
        )


def tried(message: Message, fault: Fault, plan: Plan, now: int) -> tuple[int, int]:
    """How long its life was tried, at least and at most: runs, and waits between them that were decided. What was asked
    for beyond the clamp is waited for in pieces, and counts whole."""
    told: list[Fault] = []
    for each in reversed(message.faults):
        if each.at_ms < message.life_ms:
            break
        if each.delay_ms is not None and each.kind is not Kind.UNROUTABLE:
            told.insert(0, each)
    if not told and message.attempt > 1:  # as if all had failed like this one, though no longer than it is there
        waits = [waited(fault, plan, n) for n in range(message.attempt - 1)]
        age_ms, ran_ms = now - message.life_ms - message.held_ms, message.attempt * fault.ran_ms
        least_ms, most_ms = (
            max(fault.ran_ms, min(age_ms, ran_ms + sum(column))) for column in zip(*waits, strict=True)
        )
        return least_ms, most_ms
    sum_ms = fault.ran_ms
    for each in told[-1:]:
        asked_s = each.retry_after_s or 0
        either_ms = [each.delay_ms or 0, asked_s * 1000 if asked_s > plan.max_retry_after_s else 0]
        sum_ms += each.tried_ms + int(max(either_ms))
    return sum_ms, sum_ms


def waited(fault: Fault, plan: Plan, n: int) -> tuple[int, int]:
    """The wait before retry n, at least and at most: the backoff's, or what was asked for, spread."""
    own = [name for name in (*fault.errors, fault.kind.value) if name in dict(plan.on)]
    least_ms = most_ms = 1000 * (dict(plan.on)[own[0]] if own else min(plan.cap_s, plan.base_s * plan.factor**n))
    if fault.retry_after_s is not None:
        asked_ms = int(min(fault.retry_after_s, plan.max_retry_after_s) * 1000)
        least_ms, most_ms = max(least_ms, asked_ms), max(most_ms, asked_ms + asked_ms // 5 + 1)
    return least_ms, most_ms


FINAL = (Kind.PERMANENT, Kind.UNREADABLE, Kind.UNROUTABLE)


def decided(message: Message, fault: Fault, plan: Plan, now: int, policy: Policy) -> Fate:
    """After a run that failed, or killed its process."""
    names = [*fault.errors, fault.kind.value]  # the most special class first, its kind last
    on = dict(plan.on)
    own = [name for name in names if name in on]
    died = fault.crash is not None
    in_company = fault.crash is not None and not fault.crash.alone
    one_too_many = message.crashes + 1 >= policy.crashes_max
    least_ms, most_ms = waited(fault, plan, message.crashes_alone if died else max(0, message.attempt - 1))
    expected = bool(own) and own[0] != "Exception"  # the policy has an entry for just this
    refused = (
        any(name in plan.never for name in names)
        or (bool(plan.only) and not any(name in plan.only for name in names))
        or (fault.kind in FINAL and not expected)
    )
    allowed = plan.attempts if message.attempts_allowed is None else message.attempts_allowed
    lived_ms, lived_most_ms = tried(message, fault, plan, now)
    bound_ms = None if plan.elapsed_s is None else plan.elapsed_s * 1000
    again = retry(fault.kind.value, now + least_ms, now + most_ms)
    snooze_ms = max(100, int((fault.retry_after_s or 0) * 1000))
    rows: list[tuple[bool, Fate]] = [
        (fault.kind is Kind.INTERRUPTED, retry("interrupted", now, counts=False)),
        (fault.steer == "snooze", retry("snooze", now + snooze_ms, counts=False)),
        (fault.steer == "reject", Fate("dead", "rejected")),
        (fault.steer == "quarantine", Fate("quarantine", "rejected")),
        (in_company and one_too_many, Fate("quarantine", "crashed", crashed=True, in_company=True)),
        (in_company, replace(retry("crashed", min(now, message.life_ms)), crashed=True, in_company=True)),
        (died and (refused or guilty(message, policy, now, 1)), Fate("quarantine", "crashed", crashed=True)),
        (died, replace(retry("crashed", now + least_ms, now + most_ms), crashed=True)),
        (fault.kind == plan.overrides, retry("mine", now + 7000)),
        (refused, Fate("dead", "permanent")),
        (message.attempt >= allowed, Fate("dead", "exhausted")),
        (bound_ms is not None and lived_ms + least_ms > bound_ms, Fate("dead", "elapsed")),
        (bound_ms is not None and lived_most_ms + most_ms > bound_ms, replace(again, or_dead="elapsed")),
        (True, again),
    ]
    return _first(rows)


def _first(rows: list[tuple[bool, Fate]]) -> Fate:
    return next(fate for applies, fate in rows if applies)
