"""Redrive runs against a dependency that works, is broken, or breaks meanwhile, on a virtual clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.support.simulation.endpoints import Fragile
from tests.support.simulation.redrives import Redriving
from tests.support.simulation.world import START_MS

from redrive import Breaker, Retry

FOREVER = START_MS * 2


def broken(from_s: float = 0, until_s: float | None = None) -> Fragile:
    """A dependency that refuses every call meanwhile, times since the beginning."""
    until_ms = FOREVER if until_s is None else START_MS + int(until_s * 1000)
    return Fragile(100_000, outages=((START_MS + int(from_s * 1000), until_ms),))


def counts(**but: int) -> dict[str, int]:
    """A run's counts, those not named 0."""
    return dict.fromkeys(("planned", "moved", "done", "failed", "skipped", "changed", "waiting"), 0) | but


def told(scene: Redriving) -> str:
    return "\n".join(line.text for line in scene.run.story())


# Slow start


def test_slow_start_of_10000_has_moved_1270_after_70_s() -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(10_000)
    run = scene.start(rate="100/s", slow_start=True)
    scene.play(until_s=75)
    assert [scene.moved(0, s) for s in range(0, 71, 10)] == pytest.approx(
        [0, 10, 30, 70, 150, 310, 630, 1270], rel=0.03
    )
    assert scene.moved(71, 75) == pytest.approx(400, abs=10)
    assert len(scene.moves) + scene.dead == 10_000
    assert (run.counts["failed"], run.counts["moved"]) == (0, pytest.approx(len(scene.moves), abs=5))


@pytest.mark.soak
def test_slow_start_of_10000_ends_with_all_of_them_done() -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(10_000)
    run = scene.start(rate="100/s", slow_start=True)
    scene.play()
    assert (run.state, run.counts) == ("done", counts(planned=10_000, moved=10_000, done=10_000))
    assert len(scene.moves) == 10_000
    assert (scene.clock() - scene.begun_ms) / 1000 == pytest.approx(157.3, rel=0.03)


@pytest.mark.parametrize("rate", [50, 333, 7])
def test_in_any_second_no_more_are_moved_than_the_rate_allows(rate: int) -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(rate * 4)
    scene.start(rate=f"{rate}/s")
    scene.play()
    assert len(scene.moves) == rate * 4
    assert max(scene.moved(s / 100, s / 100 + 1) for s in range(500)) <= rate * 1.1 + 1
    assert scene.moves[-1] - scene.moves[0] == pytest.approx(4000 - 1000 / rate, rel=0.1)


# The canary


def test_a_canary_against_a_broken_dependency_stops_the_run() -> None:
    scene = Redriving(broken())
    scene.bury(100)
    run = scene.start(rate="20/s", canary=5)
    scene.play()
    assert (run.state, len(scene.moves), scene.dead) == ("stopped", 5, 100)
    assert run.counts == counts(planned=100, moved=5, failed=5, skipped=95)
    assert run.why == "canary: 5 of 5 failed (100 %): the run stops at failed>20%"
    assert run.why in told(scene) and "95 were left where they are" in told(scene)
    assert {(f.kind, f.error) for f in run.failures()} == {("transient", "builtins.ConnectionRefusedError")}
    assert len(run.failures()) == 5


def test_a_canary_is_waited_for_however_long_its_verdicts_take() -> None:
    scene = Redriving(Fragile(100_000, latency_ms=30_000))
    scene.bury(20)
    run = scene.start(rate="20/s", canary=5)
    scene.play(until_s=29)
    assert (run.view().phase, run.counts["moved"], scene.dead) == ("canary", 5, 15)
    scene.play()
    assert (run.state, run.counts["done"]) == ("done", 20)
    assert "canary: 5 of 5 done, 0 failed: it goes on" in told(scene)


def test_slow_start_begins_once_the_canary_is_over() -> None:
    scene = Redriving(Fragile(100_000, latency_ms=20_000))
    scene.bury(100)
    scene.start(rate="50/s", canary=5, slow_start=True)
    scene.play()
    over_s = next(s for s in range(100) if scene.moved(s, s + 1) and s > 5)
    assert scene.moved(0, 1) == 5 and over_s == 20
    assert scene.moved(over_s, over_s + 10) == pytest.approx(10, abs=1)


def test_a_canary_that_fails_a_little_goes_on_under_the_handler_s_own_policy() -> None:
    """A first run that fails is its verdict, whatever its retries come to."""
    scene = Redriving(broken(until_s=0.15), retry=Retry(max_attempts=5))
    scene.bury(50)
    run = scene.start(rate="10/s", canary=5, stop_if="failed>50%")
    scene.play()
    assert (run.state, run.counts["done"], run.counts["failed"]) == ("done", 48, 2)


# What breaks meanwhile


def test_where_the_dependency_breaks_the_speed_halves_each_second_until_the_breaker_opens_and_the_run_waits() -> None:
    scene = Redriving(broken(from_s=10, until_s=60), breaker=Breaker())
    scene.bury(3000)
    run = scene.start(rate="64/s", halve_on_failures=True)
    scene.play(until_s=10)
    assert scene.speeds == [(START_MS, 64)] and run.counts["failed"] == 0
    scene.play(until_s=60)
    opened_ms = next(ms for ms, status in scene.statuses if status == "open")
    falls = [(ms, speed) for ms, speed in scene.speeds if START_MS + 10_000 < ms <= opened_ms]
    assert [speed for _, speed in falls] == [32, 16, 8, 4, 2, 1][: len(falls)] and len(falls) >= 4
    assert all(990 <= later - earlier <= 1100 for (earlier, _), (later, _) in pairwise(falls))
    in_vain = scene.moved(10, (opened_ms - START_MS) / 1000)
    assert in_vain <= 64 + 64 + 32 + 16 + 8 + 4 + 2 + 10
    # From then on nothing is moved but what probes a breaker that is half-open.
    closed = [(ms, status) for ms, status in scene.statuses if ms > opened_ms]
    openings = [opened_ms] + [ms for ms, status in closed if status == "open"]
    assert "waits: the breaker of crm is open" in told(scene)
    for ms in openings:
        assert scene.moved((ms - START_MS) / 1000 + 0.1, (ms - START_MS) / 1000 + 4.9) == 0
    assert scene.moved((opened_ms - START_MS) / 1000, 60) <= 3 * len(openings)
    failed = run.counts["failed"]
    assert run.state == "running" and scene.dead == 3000 - run.counts["done"] - run.counts["waiting"]
    scene.play()
    assert "goes on" in told(scene)
    assert run.state == "done" and run.counts["failed"] <= failed + 3
    assert run.counts["done"] + run.counts["failed"] == 3000 == len(scene.moves)
    assert scene.speeds[-1][1] == 64  # it doubled back
    assert scene.dead == run.counts["failed"]


def test_where_more_fail_than_the_stop_rule_bears_the_run_stops_and_leaves_the_rest() -> None:
    scene = Redriving(broken(from_s=5))
    scene.bury(1000)
    run = scene.start(rate="50/s", stop_if="failed>20%")
    scene.play()
    assert run.state == "stopped"
    assert run.counts["moved"] + run.counts["skipped"] == 1000
    assert run.counts["failed"] == pytest.approx(63, abs=4)  # of 313
    assert scene.dead == run.counts["skipped"] + run.counts["failed"]
    assert run.why in told(scene) and ": the run stops at failed>20%" in run.why


def test_a_stop_rule_of_a_number_stops_at_that_many() -> None:
    scene = Redriving(broken())
    scene.bury(500)
    run = scene.start(rate="20/s", stop_if="failed>30")
    scene.play()
    assert (run.state, run.counts["failed"]) == ("stopped", pytest.approx(31, abs=2))


# The clock of the run


def test_a_paused_run_goes_on_where_its_slow_start_was() -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(500)
    run = scene.start(rate="100/s", slow_start=True)
    scene.play(until_s=25)
    run.pause(actor="ann", reason="lunch")
    scene.play(until_s=3625)
    assert scene.moved(26, 3625) == 0
    run.resume(actor="ann")
    before = len(scene.moves)
    scene.play(until_s=3630)
    assert len(scene.moves) - before == pytest.approx(5 * 4, abs=4)
    scene.play(until_s=3640)
    assert scene.moved(3631, 3640) == pytest.approx(9 * 8, abs=8)


def test_a_run_that_nobody_carried_goes_on_without_a_burst_and_as_slowly_as_it_was() -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(500)
    scene.start(rate="100/s", slow_start=True)
    scene.play(until_s=25)
    scene.clock.advance("10m")
    at_s, before = scene.clock() - START_MS, len(scene.moves)
    scene.play(until_s=at_s / 1000 + 5)
    assert len(scene.moves) - before == pytest.approx(5 * 4, abs=4)


def test_a_slow_run_writes_little_but_its_lease_while_it_has_nothing_to_move() -> None:
    scene = Redriving(Fragile(100_000))
    scene.bury(100)
    scene.start(rate="6/h", halve_on_failures=True, slow_start=True)
    scene.play(until_s=5)
    before = scene.store.commits
    scene.play(until_s=590)
    assert len(scene.moves) == 1
    assert scene.store.commits - before <= 585 / 2.5
    scene.play(until_s=1801)
    assert [round((ms - START_MS) / 1000) for ms in scene.moves] == [0, 600, 1200, 1800]
