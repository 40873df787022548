"""What the simulator says and what a real run does agree: ten kinds of redrive and outage, played for real on loopback
with worker processes and SQLite, and simulated with nine seeds."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, median, stdev

import pytest
from msgspec.structs import replace
from tests.support.simulation.truths import ALIGNED, SCENARIOS, error_of_calls, play

from redrive.simulate import simulate

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600), pytest.mark.xdist_group("truths")]
SEEDS = range(9)


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_simulated_and_what_is_real_agree(name: str, tmp_path: Path) -> None:
    real = play(name, tmp_path)
    forecasts = [simulate(replace(SCENARIOS[name], seed=seed)) for seed in SEEDS]
    error = error_of_calls(real, forecasts, aligned=name in ALIGNED)
    deaths = [sum(each.dead.values()) for each in forecasts]
    drained_s = median(each.drained_s or math.inf for each in forecasts)
    died = sum(real.dead.values())
    print(f"\n{name}: calls {error:.1%}, dead {died} of {mean(deaths):.1f} ± {stdev(deaths):.1f}, "
          f"drained {real.drained_s:.1f} s of {drained_s:.1f} s")  # fmt: skip
    assert error <= 0.10
    assert abs(died - mean(deaths)) <= 3 * max(stdev(deaths), math.sqrt(mean(deaths)), 1 / 3)
    assert real.drained_s == pytest.approx(drained_s, rel=0.15)
    assert bool(real.stopped) == bool(forecasts[0].stopped)
