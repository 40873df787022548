"""Scenarios as files: what they say is what is played, and what is wrong in them is named."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from redrive.cli import simulate as command
from redrive.errors import ConfigError
from redrive.simulate import FleetChange, FleetSize, LoadPhase, ModelService, Scenario, read_scenario, simulate

LOAD = '[[load]]\nrate = "20/s"\nfor = "1m"\n'
WHOLE = """
seeds = [3, 4]
arrivals = "even"
[[load]]
rate = "10/s"
to = "30/s"
for = "1m"
[[load]]
burst = 50
from = "10s"
every = "20s"
for = "40s"
[[load]]
times = "times.txt"
[policy]
attempts = 6
jitter = "none"
breaker = true
[fleet]
processes = 3
concurrency = 5
[[fleet.change]]
at = "20s"
processes = 6
[dependency]
latency = "40ms"
spread = "lognormal"
capacity = 80
queue = "2s"
timeout = "1s"
abandons = true
[[dependency.error]]
share = 0.1
[[dependency.error]]
share = 0.09
kind = "throttled"
retry_after = "3s"
[[event]]
what = "down"
at = "20s"
for = "10s"
[[event]]
what = "capacity"
at = "40s"
for = "10s"
[redrive]
total = 100
at = "30s"
rate = "20/s"
"""


def _file(folder: Path, text: str) -> Path:
    (folder / "times.txt").write_text("1\n2.5\n\n70\n")
    path = folder / "scenario.toml"
    path.write_text(text)
    return path


def test_a_file_says_all_of_a_scenario(tmp_path: Path) -> None:
    scenario, seeds = read_scenario(_file(tmp_path, WHOLE))
    assert seeds == (3, 4)
    assert scenario.load == (LoadPhase(0, 60, 10, 30),)
    assert scenario.times == (*[10.0] * 50, *[30.0] * 50, *[50.0] * 50, 1.0, 2.5, 70.0)
    assert (scenario.fleet, scenario.fleet_changes) == (FleetSize(3, 5), (FleetChange(20, 6),))
    assert (scenario.policy.retry.max_attempts, scenario.policy.retry.backoff.jitter) == (6, "none")
    assert scenario.dependency is not None and scenario.dependency.breaker is not None
    assert (scenario.service.latency_ms, scenario.service.queue_ms, scenario.service.abandons) == (40, 2000, True)
    assert [phase.share for phase in scenario.service.phases] == pytest.approx([0.1, 0.1, 1.0, 0.0])
    assert scenario.service.phases[-1].capacity == 40
    assert scenario.redrive is not None and (scenario.redrive.at_s, scenario.redrive.total) == (30, 100)
    came = simulate(scenario)
    assert sum(came.arrived) == 1200 + 150 + 3 and came.moved == 100
    assert came.messages == 1453 and came.left == 0


def test_a_ramp_brings_its_area_and_a_steady_load_is_none(tmp_path: Path) -> None:
    came = simulate(Scenario(load=(LoadPhase(0, 100, 0, 20),)))
    assert sum(came.arrived[:50]) == pytest.approx(250, abs=2) and sum(came.arrived) == pytest.approx(1000, abs=2)
    falling = simulate(Scenario(load=(LoadPhase(0, 100, 20, 0),), arrivals="random", seed=1))
    assert sum(falling.arrived[:50]) > 2 * sum(falling.arrived[50:]) and 880 < sum(falling.arrived) < 1120


def test_loads_that_overlap_come_in_order_and_all(tmp_path: Path) -> None:
    came = simulate(Scenario(load=(LoadPhase(0, 20, 10), LoadPhase(5, 15, 40))))
    assert [came.arrived[second] for second in (2, 10, 17)] == [10, 50, 10] and sum(came.arrived) == 600


def test_processes_that_start_take_work_and_those_that_stop_take_none() -> None:
    slow = Scenario(load=(LoadPhase(0, 40, 20),), fleet=FleetSize(1, 1), service=ModelService(latency_ms=100))
    more = msgspec.structs.replace(slow, fleet_changes=(FleetChange(10, 4),))
    none = msgspec.structs.replace(slow, fleet_changes=(FleetChange(10, 0), FleetChange(30, 1)))
    assert (simulate(more).drained_s or 0) < 45 < (simulate(slow).drained_s or 0)
    assert sum(simulate(none).calls[11:30]) == 0 and simulate(none).left == 0


def test_calls_take_longer_beside_others_and_abandoned_ones_free_the_service() -> None:
    load = (LoadPhase(0, 30, 50),)
    crowded = simulate(Scenario(load=load, service=ModelService(latency_ms=50, crowd_ms=20)))
    assert (crowded.p50_s or 0) > 0.06
    service = ModelService(capacity=20, queue_ms=4000, timeout_ms=1000)
    frees = msgspec.structs.replace(service, abandons=True)
    kept, freed = (sum(simulate(Scenario(load=load, service=each)).calls) for each in (service, frees))
    assert freed < kept


def test_who_watches_may_end_it_and_gets_what_is_known() -> None:
    seen: list[tuple[float, float]] = []

    def goes_on(passed_s: float, ends_s: float) -> bool:
        seen.append((passed_s, ends_s))
        return passed_s < 10

    scenario = Scenario(load=(LoadPhase(0, 60, 20),))
    came = simulate(scenario, goes_on)
    assert came.cut_s == pytest.approx(10, abs=1.1) and len(came.calls) <= 12 and came.drained_s is None
    assert all(ends_s == 60 for _, ends_s in seen)
    assert simulate(scenario, lambda passed_s, ends_s: True) == simulate(scenario)


@pytest.mark.parametrize(
    ("text", "what", "expected"),
    [
        (LOAD.replace("rate", "rat"), "load.rat is no setting", "did you mean 'rate'"),
        (LOAD + "[dependency]\nspread = 'log-normal'", "dependency.spread is 'log-normal'", "did you mean 'lognormal'"),
        (LOAD + "[[dependency.error]]\nshare = 1.5", "dependency.error.share is 1.5", "from 0 to 1"),
        (LOAD + "[[dependency.error]]\nkind = 'timeout'", "dependency.error has no 'share'", "kind"),
        (LOAD + "[[dependency.error]]\nshare = 0.6\n[[dependency.error]]\nshare = 0.6", "more than 1", "at most 1"),
        (LOAD + "[policy]\nbudget = 'much'", "budget=much", "RATIO"),
        (LOAD + "[policy]\nworkers = '2x2'", "policy.workers", "known: retry"),
        (LOAD + "[[event]]\nwhat = 'capacity'\nat = 0\nfor = 5", "capacity", "[dependency]"),
        (LOAD + "[[event]]\nwhat = 'down'\nat = -1\nfor = 5", "event.at is -1", "not negative"),
        (LOAD + "seeds = []", "load.seeds", "known"),
        ("seeds = [true]\n" + LOAD, "seeds is [True]", "whole number"),
        ("fleet = 3\n" + LOAD, "fleet is 3", "a table"),
        (LOAD + "[fleet]\nprocesses = 0", "fleet.processes is 0", "from 1"),
        ("[[load]]\nrate = 3", "load says too little", "burst"),
        ("[[load]]\nburst = 3\nevery = 0\nfor = 9", "load.every is 0", "'1m'"),
        ("[[load]]\ntimes = 'no.txt'", "no.txt", "a TOML file"),
        ("seeds = [1]", "nothing comes", "[[load]]"),
        (LOAD + "[redrive]\ntotal = 5\nrate = 'quick'", "quick", "expected"),
        ("load = ", "cannot be read", "a TOML file"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, what: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_scenario(_file(tmp_path, text))
    assert what in str(caught.value) and expected in str(caught.value) and "scenario.toml" in str(caught.value)


def test_a_line_that_is_no_time_is_named(tmp_path: Path) -> None:
    path = _file(tmp_path, "[[load]]\ntimes = 'times.txt'")
    (tmp_path / "times.txt").write_text("1\nsoon\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*times\.txt is 'soon'; expected seconds"):
        read_scenario(path)


def test_the_command_plays_each_seed_of_a_file_to_the_same_bytes(tmp_path: Path) -> None:
    path = str(_file(tmp_path, WHOLE))
    argv = [path, "--compare", "breaker=off", "-o", "tsv"]
    first, second = (CliRunner().invoke(command.simulate, argv) for _ in range(2))
    assert first.exit_code == 0 and first.stdout == second.stdout
    assert [line.split("\t")[0] for line in first.stdout.splitlines()[1:]] == [
        "default, seed 3", "default, seed 4", "breaker=off, seed 3", "breaker=off, seed 4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["outag"], "did you mean 'outage'?"),
        (["redrive.toml"], "redrive.toml holds the settings of redrive, not a scenario; expected a file of another"),
        (["../pyproject.toml"], "not a scenario; expected a file of another name"),
        (["a.toml", "--rate", "3"], "a.toml has a load of its own"),
        (["outage", "--from-history", "3h..1h"], "--from-history has the load of its time"),
    ],
)
def test_the_command_refuses_what_does_not_go_together(argv: list[str], said: str) -> None:
    came = CliRunner().invoke(command.simulate, argv)
    assert isinstance(came.exception, ConfigError) and said in str(came.exception)


def test_an_interrupt_prints_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(scenario: Scenario, goes_on: Any) -> Any:
        def watch(passed_s: float, ends_s: float) -> bool:
            if passed_s > 100:
                signal.raise_signal(signal.SIGINT)
            return bool(goes_on(passed_s, ends_s))

        return simulate(scenario, watch)

    monkeypatch.setattr(command, "play", play)
    before = signal.getsignal(signal.SIGINT)
    came = CliRunner().invoke(command.simulate, ["outage", "--compare", "breaker=on", "-o", "json"])
    assert signal.getsignal(signal.SIGINT) is before
    (only,) = msgspec.json.decode(came.stdout)["variants"]
    assert 100 < only["cut_s"] < 103 and only["drained_s"] is None and only["dead"] == {}
    assert "stopped: the last variant has what came until then" in came.stderr
