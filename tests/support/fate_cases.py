"""Cases of `decide` and `admit`, and a second implementation that judges them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from tests.support.model.fates import Fate, Plan, admitted, decided

from redrive import decide
from redrive.decide import Policy, Signals
from redrive.fault import Crash, Fault, Kind
from redrive.message import Lane, Message
from redrive.policy.retry import Retry

NOW = 1_750_000_000_000


ID = "0197716a-5800-7abc-8def-0123456789ab"


CASES = 4_000


HOURS_6 = 6 * 3600


LONG_AGO, BEFORE_THE_CLAMP, A_MINUTE_AGO = NOW - 10 * 3_600_000, NOW - HOURS_6 * 1000, NOW - 60_000


Choices = dict[str, list[Any]]  # by field: what is usual, then what is not


# Times lie on both sides of each bound, and on it.
FAULT: Choices = {
    "kind": [Kind.DEFAULT, *Kind],
    "errors": [
        ("ValueError", "Exception"),
        ("KeyError", "LookupError", "Exception"),
        ("acme.Quota", "acme.Error", "Exception"),
        (),
    ],
    "retry_after_s": [None, 0.0, 5.0, 60.0, 100.0, 3600.0, float(HOURS_6), HOURS_6 + 1.0, HOURS_6 + 1000.0, 1e6],
    "steer": ["", "retry_after", "snooze", "reject", "quarantine"],
    "at_ms": [NOW - 1000, NOW - 999, NOW - 300, NOW - 299, BEFORE_THE_CLAMP - 1000, BEFORE_THE_CLAMP, A_MINUTE_AGO],
    "delay_ms": [10_000, None, 0, 1, 40_000],
    "ran_ms": [0, 1, 50_000, 60_000],
    "tried_ms": [0, 1, 10_000, 40_001, 50_000, 90_000],
}


MESSAGE: Choices = {
    "fence": [1, 2, 3, 4, 5, 6, 7],
    "attempt": [1, 2, 3, 4, 5, 30],
    "life_ms": [LONG_AGO, NOW - 1000, NOW - 500, A_MINUTE_AGO, A_MINUTE_AGO - 1, NOW - 100_000, NOW - 69_999],
    "held_ms": [0, 10_000, 40_000],
    "attempts_allowed": [None, 1, 3, 5],
    "redrives": [0, 1],
    "cancel": [False, True],
    "deadline_ms": [None, NOW - 1, NOW, NOW + 1],
    "crashes": [0, 1, 2, 3, 9, 10],
    "crashes_alone": [0, 1, 2, 3],
}


POLICY: Choices = {"crashes_alone_max": [3, 1], "crashes_max": [10, 3]}


CRASHES = (Crash(alone=True), Crash(alone=True), Crash(cause="lease"))


WINDOWS_S = (None, 1.0, 0.5)


SIGNALS: Choices = {
    "unreadable": [None, "why"],
    "unroutable": [None, "why"],
    "park_ms": [0, 300, 1000, 300_000],
    "known_ms": [0, NOW, NOW - 299, NOW - 300, NOW - 1000, A_MINUTE_AGO, NOW + 5],
    "again_ms": [None, NOW - 7, NOW, NOW + 5000],
    "unfetched": [None, "why"],
}


PLAN: Choices = {
    "attempts": [25, 1, 3, 4],
    "elapsed_s": [None, 61, 70, 110, 24 * 3600],
    "base_s": [10, 1],
    "factor": [2, 1, 3],
    "cap_s": [3600, 15, 60],
    "on": [
        (),
        (("LookupError", 20), ("KeyError", 40)),
        (("default", 20), ("LookupError", 40)),
        (("permanent", 20), ("Exception", 40)),
        (("permanent", 20),),
        (("acme.Error", 20), ("throttled", 40)),
    ],
    "never": [(), ("LookupError",), ("throttled",), ("ValueError",)],
    "only": [(), ("LookupError", "default"), ("throttled",)],
    "overrides": [None, "permanent", "default"],
    "max_retry_after_s": [HOURS_6, 60],
}


def some(rng: random.Random, choices: Choices) -> dict[str, Any]:
    """Three fields in four are usual."""
    return {name: values[0] if rng.random() < 0.75 else rng.choice(values[1:]) for name, values in choices.items()}


def a_message(rng: random.Random) -> Message:
    faults = tuple(Fault(**some(rng, FAULT)) for _ in range(rng.choice((0, 1, 1, 2))))
    return Message(ID, "t", "q", b"{}", ID, lane=Lane.LEASED, faults=faults, **some(rng, MESSAGE))


def crashing(rng: random.Random, message: Message, policy: Policy) -> tuple[Message, Policy]:
    """Every tenth with crashes near their caps, and evidence near a window."""
    if rng.random() < 0.9:
        return message, policy
    faults = tuple(replace(fault, crash=rng.choice(CRASHES)) for fault in message.faults)
    crashes = {name: rng.choice(MESSAGE[name]) for name in ("crashes", "crashes_alone")}
    life_ms = min(message.life_ms, NOW - 1000)
    return (
        replace(message, faults=faults, life_ms=life_ms, **crashes),
        replace(policy, crashes_within_s=rng.choice(WINDOWS_S)),
    )


def aging(rng: random.Random, message: Message, plan: Plan) -> tuple[Message, Plan]:
    """Every tenth without a history, near a bound of its time."""
    if rng.random() < 0.9:
        return message, plan
    fields = {name: rng.choice(MESSAGE[name]) for name in ("attempt", "life_ms", "held_ms")}
    return replace(message, faults=(), **fields), dataclasses.replace(plan, elapsed_s=rng.choice(PLAN["elapsed_s"]))


def parking(rng: random.Random, message: Message, signals: Signals) -> tuple[Message, Signals]:
    """Every tenth parked already, near a bound of its wait for a worker that knows it."""
    if rng.random() < 0.9:
        return message, signals
    fault = Fault(**(some(rng, FAULT) | {"kind": Kind.UNROUTABLE, "at_ms": rng.choice(FAULT["at_ms"])}))
    times = {name: rng.choice(SIGNALS[name]) for name in ("park_ms", "known_ms")}
    return replace(message, faults=(fault,), life_ms=LONG_AGO), replace(signals, unroutable="why", **times)


def wrong_admission(rng: random.Random) -> str | None:
    """What is wrong with the answer for some message; None if nothing is."""
    retry = Retry(max_retry_after=rng.choice((HOURS_6, HOURS_6, 60)))
    message, policy = crashing(rng, a_message(rng), Policy(retry, **some(rng, POLICY)))
    message, signals = parking(rng, message, Signals(**some(rng, SIGNALS)))
    case = message, policy, signals
    return _wrong(case, decide.admit(*case, NOW), admitted(*case, NOW))


def wrong_decision(rng: random.Random) -> str | None:
    fault = Fault(**some(rng, FAULT))
    message, plan = aging(rng, a_message(rng), Plan(**some(rng, PLAN)))
    message, policy = crashing(rng, message, Policy(plan.retry(NOW), **some(rng, POLICY)))
    if policy.crashes_within_s is not None:
        fault = replace(fault, crash=rng.choice(CRASHES))
    answer = decide.decide(message, fault, policy, NOW)
    return _wrong((message, fault, plan, policy), answer, decided(message, fault, plan, NOW, policy))


def _wrong(case: tuple[object, ...], answer: object, expected: Fate) -> str | None:
    return None if expected.is_that_of(answer) else f"{answer}, expected {expected} for {case}"


def first_wrong(look: Callable[[random.Random], str | None], seed: int, cases: int = CASES) -> str | None:
    return next((wrong for n in range(cases) if (wrong := look(random.Random(f"{seed}.{n}")))), None)
