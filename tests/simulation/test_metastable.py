"""A load ramp that ends: with backoff and jitter alone the endpoint stays down, with a budget it does not."""

from __future__ import annotations

import pytest
from tests.support.simulation.scenarios import Ramped

from redrive.flow.budget import Budget

TENTH = Budget(ratio=0.1, floor=1)
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_backoff_with_jitter_alone_collapses(seed: int) -> None:
    ramped = Ramped(seed, None)
    assert ramped.goodput() < 0.1  # long after the load fell back to what was served with ease before
    assert ramped.goodput_before() > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_with_a_budget_of_a_tenth_it_recovers(seed: int) -> None:
    ramped = Ramped(seed, TENTH)
    assert ramped.goodput() > 0.95
    assert ramped.goodput_before() > 0.95
    assert not ramped.world.dead
