"""Prometheus' own tool on our rules: each fires on a series that should, and is silent on one that should not."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import program

from redrive import App
from redrive.config import RUNBOOKS
from redrive.observe.dashboard import ROWS
from redrive.observe.prometheus import Metrics
from redrive.observe.rules import RECORDED, Thresholds, alerting, prometheus_rules

ROOT = Path(__file__).parents[3]
NAMES = list(dict.fromkeys(rule.name for rule in alerting(Thresholds())))
MINUTES = 40  # of each series; a value a minute

Series = Mapping[str, str]  # values by series, in promtool's notation
_READY = 'redrive_queue_messages{queue="crm",lane="ready"}'
_DEAD = 'redrive_queue_messages{queue="crm",lane="dead"}'
_AGE = 'redrive_queue_oldest_age_seconds{queue="crm"}'
_PAUSED = 'redrive_queue_paused{queue="crm"}'
_DONE = 'redrive_deliveries_total{queue="crm",task="push",outcome="done"}'
_RETRY = 'redrive_deliveries_total{queue="crm",task="push",outcome="retry"}'
_WAVE = 'redrive_queue_upcoming_messages{queue="crm",kind="retry",within="10m"}'
_IDLE = 'redrive_workers{queue="crm",state="idle"}'
_GONE = 'redrive_workers{queue="crm",state="gone"}'
_BURN = 'redrive_slo_burn_rate{kind="task",name="push",window="%s"}'
_LE = 'redrive_run_seconds_bucket{queue="crm",task="push",le="%s"}'


def flat(value: float) -> str:
    return f"{value:g}+0x{MINUTES}"


def rising(each: float) -> str:
    return f"0+{each:g}x{MINUTES}"


def burning(**rates: float) -> dict[str, str]:
    return {_BURN % window.removeprefix("w"): flat(rate) for window, rate in rates.items()}


QUIET = {"w5m": 0.0, "w1h": 0.0, "w30m": 0.0, "w6h": 0.0, "w3d": 0.0}

#: By alert: series on which it fires, and series on which it must not, each with what makes the difference.
CASES: dict[str, tuple[list[Series], list[Series]]] = {
    "RedriveDeadLettersGrowing": ([{_DEAD: rising(2)}], [{_DEAD: flat(5000)}, {_DEAD: rising(0.5)}]),
    "RedriveDeadLetters": ([{_DEAD: flat(101)}], [{_DEAD: flat(100)}]),
    "RedriveQuarantined": (
        [{'redrive_quarantined_total{queue="crm",task="push",reason="crashed"}': "0x20 1x20"}],
        [{'redrive_quarantined_total{queue="crm",task="push",reason="crashed"}': flat(7)}],
    ),
    "RedriveOldestTooOld": ([{_AGE: flat(901)}], [{_AGE: flat(900)}, {_AGE: flat(9000), _PAUSED: flat(1)}]),
    "RedriveBacklog": ([{_READY: flat(5001)}], [{_READY: flat(5000)}, {_READY: flat(9000), _PAUSED: flat(1)}]),
    "RedriveErrorRate": (
        [{_DONE: rising(60), _RETRY: rising(40)}],
        [{_DONE: rising(80), _RETRY: rising(20)}, {_DONE: rising(0.5), _RETRY: rising(0.5)}],
    ),
    "RedriveRetryStorm": (
        [{_DONE: rising(30), _RETRY: rising(40)}, {_DONE: flat(0), _RETRY: rising(20)}, {_RETRY: rising(20)}],
        [{_DONE: rising(50), _RETRY: rising(40)}, {_DONE: flat(0), _RETRY: rising(5)}],
    ),
    "RedriveComingWave": (
        [{_WAVE: flat(5001)}],
        [{_WAVE: flat(5000)}, {_WAVE.replace("retry", "first"): flat(9000)}],
    ),
    "RedriveNoWorkers": (
        [{_READY: flat(3), _IDLE: flat(0), _GONE: flat(2)}],
        [
            {_READY: flat(3), _IDLE: flat(1)},
            {_READY: flat(0), _IDLE: flat(0)},
            {_READY: flat(3), _IDLE: flat(0), _PAUSED: flat(1)},
            {_READY: flat(3)},  # no process tells: a store without cells, or Lambda
        ],
    ),
    "RedriveWorkerStuck": (
        [{"redrive_worker_longest_run_seconds": rising(200)}, {"redrive_worker_loop_lag_seconds": flat(6)}],
        [{"redrive_worker_longest_run_seconds": flat(3600), "redrive_worker_loop_lag_seconds": flat(5)}],
    ),
    "RedriveWorkerHung": (
        [{"redrive_worker_hung_seconds": "0x38 12x2"}, {"redrive_worker_hung_seconds": rising(60)}],
        [{"redrive_worker_hung_seconds": flat(0)}],
    ),
    "RedriveRunStalled": (
        [{'redrive_runs{status="running"}': flat(1), 'redrive_run_messages{state="moved"}': flat(5)}],
        [
            {'redrive_runs{status="running"}': flat(1), 'redrive_run_messages{state="moved"}': rising(1)},
            {'redrive_runs{status="running"}': flat(0), 'redrive_run_messages{state="moved"}': flat(5)},
        ],
    ),
    "RedriveCanaryFailed": (
        [{'redrive_worker_notices_total{notice="run_stopped"}': "0x35 1x5"}],
        [{'redrive_worker_notices_total{notice="run_stopped"}': flat(4)}],
    ),
    "RedriveBreakerOpen": (
        [{'redrive_breaker_state{dependency="mail"}': flat(2)}],
        [
            {'redrive_breaker_state{dependency="mail"}': flat(1)},
            {'redrive_breaker_state{dependency="mail"}': "0x38 2x2"},
        ],
    ),
    "RedriveStoreErrors": (
        [{"redrive_store_up": flat(0)}, {'redrive_worker_notices_total{notice="store_unavailable"}': rising(1)}],
        [{"redrive_store_up": flat(1), 'redrive_worker_notices_total{notice="store_unavailable"}': flat(3)}],
    ),
    "RedriveSloBurn": (
        [
            burning(**QUIET | {"w1h": 14.4, "w5m": 20.0}),
            burning(**QUIET | {"w6h": 6.0, "w30m": 6.5}),
            burning(**QUIET | {"w3d": 1.0, "w6h": 1.1}),
        ],
        [
            burning(**QUIET | {"w1h": 15.0, "w5m": 0.0}),
            burning(**QUIET | {"w6h": 0.9, "w30m": 50.0}),
            burning(**QUIET | {"w3d": 0.9, "w6h": 5.0}),
        ],
    ),
    "RedriveClockSkew": (
        [{"redrive_worker_clock_ahead_seconds": flat(-6)}, {"redrive_worker_clock_ahead_seconds": flat(6)}],
        [{"redrive_worker_clock_ahead_seconds": flat(4.9)}],
    ),
    "RedriveScheduleLate": (
        [{'redrive_schedule_late_seconds{schedule="nightly"}': flat(61)}],
        [{'redrive_schedule_late_seconds{schedule="nightly"}': flat(0)}],
    ),
    "RedriveBatchPartial": (
        [{'redrive_batches{name="import",state="partial"}': flat(1)}],
        [
            {'redrive_batches{name="import",state="running"}': flat(9)},
            {'redrive_batches{name="x",state="partial"}': "_x38 1 1"},
        ],
    ),
    "RedriveBatchUnsealed": (
        [{'redrive_batch_unsealed_seconds{name="crawl"}': flat(3601)}],
        [{'redrive_batch_unsealed_seconds{name="crawl"}': flat(3600)}],
    ),
    "RedriveSlow": (
        [{_LE % "30.0": rising(90), _LE % "60.0": rising(100), _LE % "+Inf": rising(100), _DONE: rising(100)}],
        [{_LE % "30.0": rising(96), _LE % "60.0": rising(100), _LE % "+Inf": rising(100), _DONE: rising(100)}],
    ),
}


@pytest.fixture(scope="module")
def promtool() -> str:
    return program("promtool", "prometheus", "prometheus")


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "redrive.rules.yml"
    path.write_text(prometheus_rules(Thresholds(), "https://docs.example.com/runbooks"))
    return path


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)


def test_promtool_accepts_the_rules_with_any_thresholds(promtool: str, rules: Path, tmp_path: Path) -> None:
    done = run(promtool, "check", "rules", rules)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stderr
    odd = tmp_path / "odd.yml"
    odd.write_text(prometheus_rules(Thresholds(waiting=1, age_s=0.5, errors=0.999, late_s=86_400)))
    assert run(promtool, "check", "rules", odd).returncode == 0


def test_every_alert_has_series_that_fire_and_series_that_must_not() -> None:
    assert list(CASES) == NAMES
    assert all(fires and silent for fires, silent in CASES.values())


def test_each_alert_fires_on_its_series_and_is_silent_on_the_others(promtool: str, rules: Path, tmp_path: Path) -> None:
    tests = [
        _case(name, series, fires)
        for name, (firing, silent) in CASES.items()
        for fires, some in ((True, firing), (False, silent))
        for series in some
    ]
    path = tmp_path / "tests.json"  # JSON is YAML
    path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    done = run(promtool, "test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def _case(name: str, series: Series, fires: bool) -> dict[str, Any]:
    """A test of promtool: whether this alert fires at the end of the series."""
    query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > bool 0'
    wanted = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{name} {'fires' if fires else 'is silent'}",
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{MINUTES}m", "exp_samples": wanted}],
    }


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_leads_to_a_runbook_page(name: str, rules: Path) -> None:
    assert (ROOT / "docs" / "runbooks" / f"{RUNBOOKS[name]}.md").is_file()
    assert f'runbook_url: "https://docs.example.com/runbooks/{RUNBOOKS[name]}.html"' in rules.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_an_alert_has_its_severity(name: str) -> None:
    page = (ROOT / "docs" / "runbooks" / f"{RUNBOOKS[name]}.md").read_text()
    row = next(line for line in page.splitlines() if f"`{name}`" in line)
    for severity in {rule.severity for rule in alerting(Thresholds()) if rule.name == name}:
        assert severity in row.split("|")[4], row


def test_rules_and_panels_ask_for_metrics_that_are_exported() -> None:
    families = [*Metrics(App("memory://")).describe()]
    known = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    known |= {f"{family.name}{end}" for family in families for end in ("_bucket", "_sum", "_count")}
    exprs = [rule.expr for rule in alerting(Thresholds())] + [expr for _, expr in RECORDED]
    exprs += [expr for _, row in ROWS for panel in row for expr, _ in panel.queries]
    asked = {name for expr in exprs for name in re.findall(r"(?<![\w:])redrive_\w+", expr)}
    assert len(asked) > 20 and asked <= known, asked - known
