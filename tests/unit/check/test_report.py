"""The policy check: exceptions, the baseline, SARIF, what is unknown, and what a store knows."""

from __future__ import annotations

import json
import math
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from redrive import App, Backoff, Breaker, Budget, Retry
from redrive.check import Assumptions, Case, CheckReport, baseline_of, facts_of, read_baseline, report_on, sarif_of
from redrive.check.flow import _closes, _granted_per_s
from redrive.check.policy import opens_after_s
from redrive.errors import ConfigError
from redrive.testing import policy_report

HERD = Retry(max_attempts=5, backoff=Backoff.fixed("10s"))


def app_with(**options: Any) -> App:
    app = App("memory://")

    @app.task(name="push", retry=HERD, **options)
    def push(n: int = 0) -> None: ...

    return app


def rules_of(report: CheckReport) -> list[str]:
    return [finding.rule for finding in report.findings if finding.accepted is None]


def test_warnings_fail_with_strict_and_errors_always() -> None:
    report = policy_report(app_with(), rate="50/s")
    assert rules_of(report) == ["no-spread"] and not report.fails() and report.fails(strict=True)
    report = policy_report(app_with(), rate="1/s", outage="2h", run="1s")
    assert rules_of(report) == ["short-horizon"] and report.fails()
    assert "push" in str(report) and report.summary == "1 error, 0 warnings, 0 accepted, 0 unknown"


def test_what_is_unknown_is_counted_and_fails_nothing() -> None:
    report = policy_report(app_with())
    assert report.findings == () and not report.fails(strict=True)
    assert {(one.rule, one.subject) for one in report.unknown} >= {("no-spread", "task push")}


def test_a_finding_that_a_task_accepts_fails_nothing_and_keeps_its_reason() -> None:
    report = policy_report(app_with(accepts={"no-spread": "ten messages a night"}), rate="50/s")
    (finding,) = report.findings
    assert finding.accepted == "ten messages a night" and not report.fails(strict=True)


def test_a_task_accepts_findings_of_its_queue() -> None:
    app = app_with(queue="crm", accepts={"retries-starve": "they may wait"})
    app.queue("crm", retry_share=0)
    assert rules_of(policy_report(app, rate="1/s", run="1s")) == []


def test_an_exception_that_silences_nothing_is_a_finding_unless_its_rule_is_undecided() -> None:
    app = app_with(accepts={"no-spread": "few"})
    assert rules_of(policy_report(app, rate="1/s")) == ["stale-exception"]
    assert rules_of(policy_report(app)) == []
    (finding,) = policy_report(app_with(accepts={"no-spred": "few"})).findings
    assert "no such rule" in finding.text and "no-spread" in finding.text


@pytest.mark.parametrize("accepts", [{"no-spread": ""}, ["no-spread"], {"no-spread": None}, {1: "x"}])
def test_an_exception_needs_a_reason(accepts: Any) -> None:
    with pytest.raises(ConfigError, match="reason"):
        app_with(accepts=accepts)


def test_a_baseline_accepts_what_it_lists_and_names_what_is_mended(tmp_path: Path) -> None:
    case = Case(app_with(), Assumptions(rates_per_s={"": 50.0}))
    (tmp_path / "base.json").write_text(baseline_of(report_on(case)))
    known = read_baseline(tmp_path / "base.json")
    assert known == [("no-spread", "task push", "")] and rules_of(report_on(case, known)) == []
    assert baseline_of(report_on(case, known)) == (tmp_path / "base.json").read_text()
    mended = Case(app_with(), Assumptions(rates_per_s={"": 1.0}))
    assert rules_of(report_on(mended, known)) == ["stale-exception"]
    (tmp_path / "base.json").write_text("[]")
    with pytest.raises(ConfigError, match="no baseline"):
        read_baseline(tmp_path / "base.json")


def test_a_report_is_the_same_bytes_each_time() -> None:
    first, second = (sarif_of(policy_report(app_with(), rate="50/s", outage="2h")) for _ in range(2))
    assert first == second


# What the schema of SARIF 2.1.0 (OASIS) requires of the objects that a report has, with the types of their properties.
_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
_RULE = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "string"}, "shortDescription": _TEXT, "fullDescription": _TEXT},
}
_LOCATION = {
    "type": "object",
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {"required": ["uri"], "properties": {"uri": {"type": "string", "minLength": 1}}},
                "region": {"required": ["startLine"], "properties": {"startLine": {"type": "integer", "minimum": 1}}},
            },
        },
        "logicalLocations": {"type": "array", "minItems": 1, "uniqueItems": True},
    },
    "additionalProperties": False,
}
_RESULT = {
    "type": "object",
    "required": ["message"],
    "properties": {
        "message": _TEXT,
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "locations": {"type": "array", "items": _LOCATION},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
        "suppressions": {
            "type": "array",
            "items": {"required": ["kind"], "properties": {"kind": {"enum": ["inSource", "external"]}}},
        },
        "properties": {"type": "object"},
    },
    "additionalProperties": False,
}
_DRIVER = {"required": ["name"], "properties": {"rules": {"type": "array", "uniqueItems": True, "items": _RULE}}}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"enum": ["2.1.0"]},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool"],
                "properties": {
                    "tool": {"required": ["driver"], "properties": {"driver": _DRIVER}},
                    "results": {"type": "array", "items": _RESULT},
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                },
            },
        },
    },
    "additionalProperties": False,
}


def test_sarif_has_what_its_schema_requires_and_names_the_line_of_the_handler() -> None:
    accepted = {"no-spread": "few", "cap-never-reached": "stale"}
    text = sarif_of(policy_report(app_with(accepts=accepted), rate="50/s", outage="2h"))
    log = json.loads(text)
    jsonschema.validate(log, SARIF)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**log, "version": "2"}, SARIF)
    (run,) = log["runs"]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(ids[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    by_rule = {result["ruleId"]: result for result in run["results"]}
    assert by_rule["no-spread"]["suppressions"] == [{"kind": "external", "justification": "few"}]
    place = by_rule["short-horizon"]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("tests/unit/check/test_report.py")
    line = Path(__file__).read_text().splitlines()[place["region"]["startLine"] - 1]
    assert line.strip().startswith("@app.task(")


@pytest.mark.parametrize("rate", ["0.001/s", "1/s", "1000/s"])
def test_200_tasks_take_fewer_calls_than_a_second_has(rate: str) -> None:
    """CPython makes more than two million calls a second; a count is the same on every machine."""
    app = App("memory://")
    for n in range(200):
        retry = Retry(5 + n % 40) if n % 2 else Retry(5, backoff=Backoff.fixed(7 + n))
        app.task(name=f"t{n}", queue=f"q{n % 20}", dependency=f"d{n % 20}", retry=retry)(lambda n=0: None)
    calls = 0

    def count(frame: object, event: str, about: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        report = policy_report(app, rate=rate, outage="2h", run="1s", failing=0.05, retry_after="1h")
    finally:
        sys.setprofile(None)
    assert report.unknown == () and 100_000 < calls < 1_500_000


def test_a_custom_backoff_that_raises_leaves_its_rules_undecided() -> None:
    def broken(n: int, fault: object) -> float:
        raise LookupError("no table of delays")

    app = App("memory://")
    app.task(name="push", retry=Retry(5, backoff=Backoff.custom(broken)))(lambda n=0: None)
    report = policy_report(app, outage="2h", rate="1/s")
    assert report.findings == ()
    assert any(u.rule == "short-horizon" and "LookupError: no table of delays" in u.needs for u in report.unknown)


# -- what rules ask the product


def test_a_breaker_opens_by_retries_where_first_attempts_are_too_few() -> None:
    app = app_with(dependency="crm")
    app.dependency("crm", breaker=Breaker(window="10s", min_calls=20))
    opened = {
        rate: opens_after_s(case, case.dependencies["crm"], Breaker())
        for rate in (10.0, 1.0, 0.01)
        for case in [Case(app, Assumptions(rates_per_s={"": rate}))]
    }
    assert opened[10.0] is not None and opened[10.0] <= 3 and opened[0.01] == math.inf
    assert opened[1.0] is not None and 10 < opened[1.0] < 60  # after one retry of each


def test_a_task_is_spared_by_a_breaker_that_opens_before_its_retries_end() -> None:
    app = app_with(dependency="crm")
    assert "short-horizon" not in rules_of(policy_report(app, rate="10/s", outage="2h"))
    assert "short-horizon" in rules_of(policy_report(app, rate="0.01/s", outage="2h"))
    assert ("short-horizon", "task push") in {(u.rule, u.subject) for u in policy_report(app, outage="2h").unknown}


def test_a_budget_grants_what_ordinary_failures_need_or_less() -> None:
    assert _granted_per_s(Budget(), 20, 2) == pytest.approx(2, rel=0.02)
    assert _granted_per_s(Budget(ratio=0.01, floor=0.1), 20, 2) < 0.5
    assert _granted_per_s(Budget.fixed(60, "1m"), 20, 2) < 2


def test_a_breaker_closes_unless_its_probes_outlast_their_lease_or_are_slow() -> None:
    assert _closes(Breaker(), 1) and not _closes(Breaker(probe_lease="30s"), 31)
    assert not _closes(Breaker(slow_call="1s"), 2) and _closes(Breaker(slow_call="3s"), 2)


def test_figures_come_from_the_history_of_the_store(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.task(name="push", retry=HERD)
    def push(n: int = 0) -> None: ...

    with closing(app.store):
        app.enqueue_many([push.draft(n) for n in range(300)])
        app.run_worker(burst=True)
        facts = facts_of(app, app.store, "sqlite:///x.db")
    measured = facts.measured["push"]
    assert measured.rate_per_s == pytest.approx(1) and measured.failing == 0 and measured.run_s is not None
    case = Case(app, Assumptions(), facts)
    assert [u for u in report_on(case).unknown if u.rule == "no-spread"] == []
