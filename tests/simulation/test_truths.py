"""What the simulator says and what a real run does agree: ten kinds of redrive and outage, played for real on loopback
with worker processes and SQLite, and simulated with nine seeds."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from statistics import mean, median, stdev

import pytest
from msgspec.structs import replace
from tests.support.simulation.truths import ALIGNED, PLAYED, RECORDED, SCENARIOS, error_of_calls, make_app, play

from redrive.simulate import simulate
from redrive.simulate.past import read_past, with_setting

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


def test_a_recorded_outage_is_replayed_and_then_with_a_breaker_and_with_a_budget(tmp_path: Path) -> None:
    """Its history has minutes: a minute in which the outage ended is one of a few per cent that succeed throughout."""
    time.sleep(60 - time.time() % 60)
    real = play(RECORDED, tmp_path)
    app = make_app(PLAYED[RECORDED], f"sqlite:///{tmp_path}/work.db", 1)
    with contextlib.closing(app.store):
        now_ms = app.store.now_ms()
        past = read_past(app.store, app, now_ms - 7 * 60_000, now_ms)
    again = simulate(past.scenario)
    guarded, bounded = (simulate(with_setting(past.scenario, each)) for each in ("breaker=on", "budget=0.1"))
    calls = [sum(each) for each in (real.calls, again.calls, guarded.calls, bounded.calls)]
    dead = [sum(each.values()) for each in (real.dead, again.dead, guarded.dead, bounded.dead)]
    print(f"\nreal, replayed, with a breaker, with a budget: calls {calls}, dead {dead}")
    assert calls[1] == pytest.approx(calls[0], rel=0.1)
    assert dead[1] == pytest.approx(dead[0], rel=0.2)
    assert dead[2] == 0 and calls[2] < 0.3 * calls[0]
    assert calls[3] < 0.5 * calls[0] and dead[3] < dead[0]
