"""Published results, reproduced by redrive's own functions; each beside a broken twin that does not.

- Jitter: M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). The figures are those of its
  program, `src/backoff_simulator.py` of github.com/aws-samples/aws-arch-backoff-simulator at commit 66cb1692, run for
  1,000 rounds of each case by Python 3 with the seed 1: mean and standard deviation of the calls and of the time of N
  clients that each write once to one row with optimistic concurrency control.
- Amplification: calls per message if each call fails with probability p. With r retries it is 1 + p + … + p^r; a
  budget of a tenth bounds it by 1.1 (M. Brooker, "Fixing retries with token buckets and circuit breakers", 2022).
- Collapse: N. Bronson et al., "Metastable Failures in Distributed Systems" (HotOS '21), and L. Huang et al.,
  "Metastable Failures in the Wild" (OSDI '22): retries keep a system down after the load that broke it has gone.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from statistics import mean, stdev

import pytest
from msgspec.structs import replace

from redrive import Backoff, Breaker, Budget, Retry
from redrive.decide import Policy, decide
from redrive.fault import Fault, Kind
from redrive.flow import budget as budgets
from redrive.flow.dependency import Dependency
from redrive.message import Message, RetryAt
from redrive.simulate import FleetSize, LoadPhase, ModelService, Scenario, Simulated, simulate
from redrive.simulate.world import as_kept

# -- jitter

SECOND_MS = 1000  # a unit of time of the program is a second here, so that whole milliseconds round nothing off
FAULT = Fault(Kind.TRANSIENT, "Conflict", "another client wrote")
Delay = Callable[[Message, int], tuple[Message, float]]  # the message after a failure, and its delay in units


def decided(backoff: Backoff) -> Delay:
    """The delays that the product decides."""
    policy = Policy(Retry(max_attempts=100_000, max_elapsed=None, backoff=backoff))

    def delay(message: Message, now_ms: int) -> tuple[Message, float]:
        decision = decide(message, FAULT, policy, now_ms)
        assert isinstance(decision, RetryAt)
        kept = as_kept(message, decision, FAULT, now_ms, "w")
        return replace(kept, attempt=kept.attempt + 1, fence=kept.fence + 1), (decision.at_ms - now_ms) / SECOND_MS

    return delay


def contend(clients: int, delay: Delay, seed: int) -> tuple[int, float]:
    """The calls and the time of that many clients, in the model of the program."""
    chance, number, version, calls, at = random.Random(seed), itertools.count(), 0, 0, 0.0
    queue: list[tuple[float, int, str, Message, int]] = []

    def net() -> float:
        return abs(chance.normalvariate(10, 2))

    for n in range(clients):
        # The program counts a client's first failure as its attempt 1, which waits 2 * base.
        message = Message(f"{seed}-{n}", "t", "q", b"", "", fence=2, attempt=2)
        heapq.heappush(queue, (net(), next(number), "read", message, 0))
    while queue:
        at, _, what, message, seen = heapq.heappop(queue)
        match what:
            case "read":
                heapq.heappush(queue, (at + net(), next(number), "have read", message, version))
            case "have read":
                heapq.heappush(queue, (at + net(), next(number), "write", message, seen))
            case "write":
                calls += 1
                well = seen == version
                version += well
                heapq.heappush(queue, (at + net(), next(number), "wrote" if well else "lost", message, 0))
            case "lost":
                message, wait = delay(message, round(at * SECOND_MS))
                heapq.heappush(queue, (at + net() + wait, next(number), "read", message, 0))
    return calls, at


ROUNDS = 1_000  # of each published figure
PUBLISHED: dict[tuple[str, int], tuple[float, float, float, float]] = {  # calls and time: mean, standard deviation
    ("Exponential", 10): (50.98, 4.21, 3539.1, 1325.9),
    ("Exponential", 50): (624.74, 28.67, 36525.9, 3214.2),
    ("Exponential", 100): (1854.47, 57.24, 63342.7, 3760.6),
    ("Decorr", 10): (37.77, 2.27, 435.7, 83.2),
    ("Decorr", 50): (374.91, 12.97, 2195.0, 505.2),
    ("Decorr", 100): (1001.91, 29.58, 4585.3, 684.9),
    ("EqualJitter", 10): (42.50, 2.63, 729.5, 188.5),
    ("EqualJitter", 50): (347.31, 5.98, 4259.2, 545.5),
    ("EqualJitter", 100): (812.35, 7.85, 6604.0, 649.4),
    ("FullJitter", 10): (39.05, 2.20, 466.3, 105.0),
    ("FullJitter", 50): (332.48, 4.77, 2901.4, 559.6),
    ("FullJitter", 100): (796.21, 7.23, 4916.4, 529.7),
    ("None", 10): (51.05, 4.08, 381.2, 34.1),
    ("None", 50): (689.74, 17.20, 1138.1, 42.1),
    ("None", 100): (2424.26, 31.99, 2029.6, 44.7),
    ("FullJitter, cap 20", 50): (577.09, 12.99, 1167.7, 41.0),
}
BACKOFFS = {
    "Exponential": Backoff(5, 2, 2000, jitter="none"),
    "Decorr": Backoff(5, 2, 2000, jitter="decorrelated"),
    "EqualJitter": Backoff(5, 2, 2000, jitter="equal"),
    "FullJitter": Backoff(5, 2, 2000, jitter="full"),
    "None": Backoff.fixed(0),
}


def apart(name: str, clients: int, delay: Delay, rounds: int) -> tuple[float, float]:
    """By how many standard errors calls and time are apart from those published."""
    ran = [contend(clients, delay, seed) for seed in range(rounds)]
    calls, calls_sd, time, time_sd = PUBLISHED[name, clients]

    def errors(values: list[float], published: float, sd: float) -> float:
        return abs(mean(values) - published) / math.sqrt(stdev(values) ** 2 / rounds + sd**2 / ROUNDS)

    return errors([float(c) for c, _ in ran], calls, calls_sd), errors([at for _, at in ran], time, time_sd)


@pytest.mark.parametrize("clients", [10, 50, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", BACKOFFS)
def test_clients_that_contend_call_and_take_as_published(name: str, clients: int) -> None:
    assert max(apart(name, clients, decided(BACKOFFS[name]), 40)) < 4


def test_a_cap_after_the_jitter_is_told_apart() -> None:
    """The broken twin: where the cap comes last, delays at the cap are no longer spread. The program was run with a cap
    of 20 for this."""

    def capped(message: Message, now_ms: int) -> tuple[Message, float]:
        drawn = random.Random(f"{message.id} {message.fence}").uniform(0, 5 * 2 ** (message.attempt - 1))
        return replace(message, attempt=message.attempt + 1, fence=message.fence + 1), min(20, drawn)

    case = ("FullJitter, cap 20", 50)
    assert max(apart(*case, decided(Backoff(5, 2, 20, jitter="full")), 40)) < 4
    assert max(apart(*case, capped, 40)) > 8


# -- amplification

AT_ONCE = Backoff("100ms", 1, "100ms")


def called(fails: float, attempts: int, d: Dependency | None = None, seed: int = 0) -> Simulated:
    policy = Policy(Retry(max_attempts=attempts, max_elapsed=None, backoff=AT_ONCE))
    return simulate(
        Scenario(load=(LoadPhase(0, 60, 100),), policy=policy, service=ModelService(latency_ms=10, fails=fails),
                 dependency=d, seed=seed, settle_s=0)
    )  # fmt: skip


@pytest.mark.parametrize("fails", [0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("retries", [0, 3])
def test_retries_amplify_as_published(fails: float, retries: int) -> None:
    expected = sum(fails**n for n in range(retries + 1))
    assert called(fails, retries + 1).amplification == pytest.approx(expected, rel=0.03)


TENTH = Budget(ratio=0.1, floor=1, on_exhausted="dead_letter")


def amplified(fails: float, d: Dependency) -> float:
    came = called(fails, 4, d)
    return sum(came.calls) / (sum(came.calls) - sum(came.retries))


@pytest.mark.parametrize("fails", [0.1, 0.5, 1.0])
def test_a_budget_of_a_tenth_bounds_amplification(fails: float) -> None:
    assert amplified(fails, Dependency("d", budget=TENTH)) <= 1.1 + (60 * 1 + 10) / 6000


def test_a_budget_that_retries_fill_too_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: each retry deposits as well, as if all traffic earned."""
    ask = budgets.ask

    def leaky(state: budgets.BudgetState, budget: Budget, now_ms: int) -> tuple[budgets.BudgetState, int]:
        return ask(budgets.deposit(state, budget, 9, now_ms), budget, now_ms)

    monkeypatch.setattr(budgets, "ask", leaky)
    assert amplified(1.0, Dependency("d", budget=TENTH)) > 1.2


def test_a_breaker_ends_amplification_where_all_fails() -> None:
    came = called(1.0, 4, Dependency("d", breaker=Breaker()))
    assert sum(came.calls) < 0.2 * 6000


# -- collapse

CAPACITY, CALM, HIGH, BEFORE_S, RISE_S, AFTER_S = 20.0, 0.7, 1.5, 40, 60, 160
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 20))]


def ramped(seed: int, d: Dependency | None) -> float:
    """The share of what came in the last 40 s that was served in them. The load rises to half above what the
    dependency bears, and falls back to what it bore with ease. It serves also those that have given up."""
    rise = [
        LoadPhase(BEFORE_S + s, BEFORE_S + s + 1, CAPACITY * (CALM + (HIGH - CALM) * s / RISE_S)) for s in range(RISE_S)
    ]
    end_s = BEFORE_S + RISE_S + AFTER_S
    load = (LoadPhase(0, BEFORE_S, CAPACITY * CALM), *rise, LoadPhase(BEFORE_S + RISE_S, end_s, CAPACITY * CALM))
    retry = Retry(max_attempts=10, max_elapsed=None, backoff=Backoff("1s", 2, "30s"))
    service = ModelService(latency_ms=20, capacity=CAPACITY, queue_ms=4000, timeout_ms=2000)
    came = simulate(
        Scenario(load=load, arrivals="random", policy=Policy(retry), dependency=d, service=service,
                 fleet=FleetSize(2, 500), seed=seed, settle_s=0)
    )  # fmt: skip
    return sum(came.done[end_s - 40 : end_s]) / sum(came.arrived[end_s - 40 : end_s])


@pytest.mark.parametrize("seed", SEEDS)
def test_without_controls_it_collapses_and_stays(seed: int) -> None:
    assert ramped(seed, None) < 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_with_a_budget_of_a_tenth_it_recovers(seed: int) -> None:
    assert ramped(seed, Dependency("d", budget=Budget(ratio=0.1, floor=1))) > 0.9
