"""45,000 webhooks held by one customer's outage do not knock the endpoint over again when it returns."""

from __future__ import annotations

import pytest
from tests.support.simulation.endpoints import TOO_MANY, UNAVAILABLE, Fragile
from tests.support.simulation.scenarios import BY_KEY, GUARDED, war_story

from redrive.fault import Fault
from redrive.flow.breaker import Breaker
from redrive.flow.dependency import Dependency

BORNE = 100.0  # calls a second


def soak(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("webhooks", "dependency", "shed"),
    [
        (4_500, GUARDED, UNAVAILABLE),
        soak(4_500, GUARDED, TOO_MANY),
        soak(4_500, BY_KEY, UNAVAILABLE),
        soak(45_000, GUARDED, UNAVAILABLE),
        soak(45_000, BY_KEY, UNAVAILABLE),
    ],
)
def test_with_width_aimd_and_ramp_it_never_gets_more_than_a_tenth_above_what_it_bears(
    webhooks: int, dependency: Dependency, shed: Fault
) -> None:
    endpoint = Fragile(BORNE, shed=shed)
    world = war_story(webhooks, dependency, endpoint, width=5)
    assert endpoint.falls == [] and endpoint.peak <= 1.1 * BORNE
    assert endpoint.peak > 0.9 * BORNE  # it was put to use
    assert world.left == 0 and not world.dead
    if dependency.per is None:  # claims go by what may run
        assert sum(story.claims for story in world.stories) <= 1.05 * sum(story.runs for story in world.stories)
    back_ms = endpoint.outages[0][1]
    held = [story.done_ms for story in world.stories if story.done_ms is not None and story.put_ms < back_ms]
    assert max(held) - back_ms <= 2 * 1000 * (1.25 * webhooks / BORNE) + 60_000  # the ramp takes its time first


@pytest.mark.parametrize(
    ("webhooks", "width", "outage_s", "watched_s"),
    [(4_500, None, 150, 90), soak(4_500, 5, 150, 90), soak(45_000, None, 600, 300)],
)
def test_without_them_it_is_knocked_over_again_as_soon_as_it_stands(
    webhooks: int, width: int | None, outage_s: int, watched_s: int
) -> None:
    endpoint = Fragile(BORNE)
    world = war_story(webhooks, None, endpoint, width=width, outage_s=outage_s, watched_s=watched_s)
    assert len(endpoint.falls) >= watched_s // 61  # down for a minute each time
    assert endpoint.peak > 1.5 * BORNE and world.left > webhooks / 2


@pytest.mark.soak
def test_the_ramp_alone_saves_it() -> None:
    endpoint = Fragile(BORNE)
    world = war_story(4_500, Dependency("customer", breaker=Breaker()), endpoint, width=None)
    assert endpoint.falls == [] and endpoint.peak <= 1.1 * BORNE and world.left == 0
