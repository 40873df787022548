"""A dependency is down for a minute while 100 new messages come every second: what reaches it, and what becomes of
them."""

from __future__ import annotations

from functools import cache

import pytest
from tests.support.simulation.endpoints import Fragile
from tests.support.simulation.scenarios import PATIENT, Outage
from tests.support.simulation.world import START_MS, World

from redrive.flow.breaker import Breaker
from redrive.flow.budget import Budget
from redrive.flow.dependency import Dependency
from redrive.flow.limits import Rate

pytestmark = pytest.mark.xdist_group("outage")  # so that each scenario is played once

CONTROLS = {
    "budget": Dependency("d", budget=Budget()),
    "breaker": Dependency("d", breaker=Breaker()),
    "both": Dependency("d", budget=Budget(), breaker=Breaker()),
}


@cache
def played(controls: str) -> Outage:
    return Outage(CONTROLS[controls])


def test_with_a_budget_retries_are_bounded() -> None:
    outage = played("budget")
    firsts = sum(outage.from_ms <= at < outage.until_ms for at in outage.endpoint.log.firsts)
    assert 1000 < outage.retries() <= 0.2 * firsts + 10 * outage.down_s + 100


@pytest.mark.parametrize("controls", ["breaker", "both"])
def test_with_a_breaker_next_to_nothing_reaches_it(controls: str) -> None:
    outage = played(controls)
    assert outage.retries() <= 0.05 * outage.per_s * outage.down_s
    assert outage.calls() <= 0.15 * outage.per_s * outage.down_s  # until it opens, and probes
    opened = [status for _, status in outage.world.statuses].count("open")
    assert 3 <= opened <= 8


@pytest.mark.parametrize("controls", CONTROLS)
def test_after_it_everything_succeeds_and_nothing_has_died(controls: str) -> None:
    outage = played(controls)
    assert outage.world.left == 0 and not outage.world.dead
    assert all(story.done_ms is not None for story in outage.world.stories)


@pytest.mark.parametrize("controls", CONTROLS)
def test_a_denied_retry_is_claimed_at_most_twice_per_token(controls: str) -> None:
    assert max(story.denied_most["budget"] for story in played(controls).world.stories) <= 1


@pytest.mark.parametrize("controls", ["breaker", "both"])
def test_what_a_breaker_held_comes_back_in_a_ramp(controls: str) -> None:
    outage = played(controls)
    closed_ms = next(at for at, status in reversed(outage.world.statuses) if status == "closed")
    log = outage.endpoint.log
    for second in range(60):  # 3/s, doubling every 10 s, and whatever is a quarter of a second late
        until_ms = closed_ms + second * 1000
        calls = sum(until_ms - 1000 <= at < until_ms for at in [*log.firsts, *log.retries])
        assert calls <= 1.3 * 3 * 2 ** (second / 10) + 3


def test_a_thousand_due_retries_drain_within_110_s_without_new_traffic() -> None:
    endpoint = Fragile(10_000)
    world = World(endpoint, PATIENT, CONTROLS["both"])
    world.put(1_000, attempt=1)
    world.run(START_MS + 3_600_000)
    assert world.left == 0
    assert endpoint.log.retries[99] <= START_MS + 1_000 and endpoint.log.retries[-1] <= START_MS + 110_000
    assert max(story.claims for story in world.stories) == 2


def test_a_rate_is_kept_to_its_slots_with_much_that_is_due() -> None:
    endpoint = Fragile(10_000)
    world = World(endpoint, PATIENT, Dependency("d", rate=Rate("100/s")))
    world.put(3_000)
    world.run(START_MS + 3_600_000)
    assert world.left == 0
    calls = [
        sum(START_MS + s * 1000 <= at < START_MS + s * 1000 + 1000 for at in endpoint.log.firsts) for s in range(31)
    ]
    assert max(calls[1:]) <= 101 and calls[0] <= 110 and min(calls[1:29]) >= 99
