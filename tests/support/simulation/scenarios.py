"""The scenarios, each played to its end: what tests assert of, and a person can look at."""

from __future__ import annotations

import random

from tests.support.simulation.endpoints import Fragile, Queueing
from tests.support.simulation.world import START_MS, World

from redrive.decide import Policy
from redrive.flow.breaker import Breaker
from redrive.flow.budget import Budget
from redrive.flow.dependency import Dependency
from redrive.flow.limits import Aimd
from redrive.policy.policies import Backoff, Retry

PATIENT = Policy(retry=Retry(max_attempts=1000, max_elapsed=None, backoff=Backoff("2s", 2, "60s")))
GUARDED = Dependency("customer", breaker=Breaker(), concurrency=Aimd(start=5, most=20))
BY_KEY = Dependency("customers", breaker=Breaker(), concurrency=Aimd(start=5, most=20), per="group")


def war_story(
    webhooks: int,
    dependency: Dependency | None,
    endpoint: Fragile,
    *,
    width: int | None,
    outage_s: int = 600,
    watched_s: int = 3600,
) -> World:
    """One customer's endpoint is out while `webhooks` come in, evenly. Then it returns; they go on coming in half as
    fast for a quarter of that time. What happens is watched until all are done, or for `watched_s`."""
    back_ms = START_MS + outage_s * 1000
    endpoint.outages = ((START_MS, back_ms),)
    world = World(endpoint, PATIENT, dependency, width=width)
    world.put_steadily(webhooks / outage_s, START_MS, back_ms)
    world.put_steadily(webhooks / outage_s / 2, back_ms, back_ms + outage_s * 250)
    world.run(back_ms + watched_s * 1000)
    return world


class Ramped:
    """A load that rises to half above what the endpoint bears, and falls back to what it bore with ease before."""

    capacity, before_s, rise_s, after_s = 20.0, 40, 60, 160
    calm, high = 0.7, 1.5  # of the capacity

    def __init__(self, seed: int, budget: Budget | None) -> None:
        self.endpoint = Queueing(self.capacity)
        retry = Retry(max_attempts=10, max_elapsed=None, backoff=Backoff("1s", 2, "30s"))
        dependency = None if budget is None else Dependency("d", budget=budget)
        self.world = World(self.endpoint, Policy(retry=retry), dependency, workers=2, concurrency=500)
        self._draw = random.Random(seed)
        end_s = self.before_s + self.rise_s + self.after_s
        at_s = 0.0
        while at_s < end_s:
            self.world.at(START_MS + round(at_s * 1000), self.world.put)
            at_s += self._draw.expovariate(self.load(at_s))
        self.end_ms = START_MS + end_s * 1000
        self.world.run(self.end_ms)

    def load(self, at_s: float) -> float:
        risen = (at_s - self.before_s) / self.rise_s
        return self.capacity * (self.calm + (self.high - self.calm) * risen if 0 <= risen < 1 else self.calm)

    def goodput(self) -> float:
        """Of what came in the last 40 seconds, how much was served in them: above 1 while a backlog goes."""
        return self._served(self.end_ms - 40_000, self.end_ms)

    def goodput_before(self) -> float:
        """The same of the time before the load rose."""
        return self._served(START_MS + 5_000, START_MS + self.before_s * 1000)

    def _served(self, since_ms: int, until_ms: int) -> float:
        log = self.endpoint.log
        served = sum(since_ms <= at < until_ms for at in log.served)
        return served / sum(since_ms <= at < until_ms for at in log.firsts)


class Outage:
    """A dependency that bears much is down for a minute; new messages come all the while, 100 a second."""

    per_s, down_s = 100, 60
    from_ms, until_ms = START_MS + 20_000, START_MS + 80_000

    def __init__(self, dependency: Dependency) -> None:
        self.endpoint = Fragile(10_000, latency_ms=10, outages=((self.from_ms, self.until_ms),))
        self.world = World(self.endpoint, PATIENT, dependency)
        self.world.put_steadily(self.per_s, START_MS, self.until_ms + 20_000)
        self.world.run(START_MS + 4 * 3_600_000)

    def retries(self) -> int:
        """Those that reached it while it was down."""
        return sum(self.from_ms <= at < self.until_ms for at in self.endpoint.log.retries)

    def calls(self) -> int:
        log = self.endpoint.log
        return sum(self.from_ms <= at < self.until_ms for at in [*log.firsts, *log.retries])
