"""The page of policies: the delays of each task's retries as a chart and a table, and what else decides."""

from __future__ import annotations

import re

from tests.support.pages import Reader

from redrive import SLO, App, Backoff, Breaker, Idempotency, Poison, Retry, presets
from redrive.policy import preview
from redrive.web.charts import ranges
from redrive.web.read.policies import SHOWN


def declare(app: App) -> None:
    app.dependency("crm", breaker=Breaker(min_calls=7), rate="500/s")

    @app.task(
        name="push", queue="crm", retry="standard_api", timeout="10m", dependency="crm", slo=SLO("99.9% within 30s"),
        poison=Poison(2, within="1h"), idempotency=Idempotency(key=lambda: "k", keep="7d"),
    )  # fmt: skip
    def push() -> None: ...

    @app.task(name="once", retry=Retry(max_attempts=1))
    def once() -> None: ...


def test_the_delays_of_a_task_are_those_of_its_preview(app: App, pages: Reader) -> None:
    declare(app)
    found = {each["task"]: each for each in pages.json("/policies")["policies"]}
    shown = preview(presets["standard_api"])
    push = found["push"]
    assert [(s["low_s"], s["mean_s"], s["high_s"]) for s in push["steps"]] == [
        (round(s.low_s, 6), round(s.mean_s, 6), round(s.high_s, 6)) for s in shown.steps
    ]
    assert push["horizon_s"] == shown.horizon_s and push["retries"] == shown.retries
    assert found["once"]["steps"] == [] and "its first run is its only one" in pages.text("/policies")
    page = pages.html("/policies")
    assert page.count('<tr><th scope="row"') == len(shown.steps), "a row of the table for each bar"
    assert page.count("<g><title>retry ") == len(shown.steps)


def test_it_says_what_else_decides_about_a_task(app: App, pages: Reader) -> None:
    declare(app)
    (push,) = [each for each in pages.json("/policies")["policies"] if each["task"] == "push"]
    rules = {rule["rule"]: rule["words"] for rule in push["rules"]}
    assert rules["timeout"] == "10m a run" and rules["poison"] == "quarantined after 2 crashes alone within 1h"
    assert rules["budget"] == "0.2 retries for each first attempt and 10/s, then they wait"
    assert rules["breaker"].startswith("opens when 50% of at least 7 calls in 10s fail")
    assert rules["rate of dependency"] == "500/s, 50 at once"
    assert rules["idempotency"] == "a key is kept for 7d" and rules["objective"] == "99.9% within 30s over 28d"
    assert 'href="/flow/crm"' in pages.html("/policies")


def test_a_dependency_that_is_not_declared_has_the_budget_and_breaker_of_a_worker(app: App, pages: Reader) -> None:
    @app.task(name="push", dependency="crm")
    def push() -> None: ...

    (found,) = pages.json("/policies")["policies"]
    assert {"budget", "breaker"} <= {rule["rule"] for rule in found["rules"]}


def test_the_kind_of_fault_is_chosen(app: App, pages: Reader) -> None:
    declare(app)
    (push,) = pages.json("/policies?kind=throttled&task=push")["policies"]
    assert push["steps"][0]["low_s"] == preview(presets["standard_api"], kind="throttled").steps[0].low_s == 60
    (push,) = pages.json("/policies?kind=permanent&task=push")["policies"]
    assert push["ends"] == "refused" and "Never retried" in pages.text("/policies?kind=permanent")
    assert "no kind of fault 'nope'" in pages.json("/policies?kind=nope", 422)["error"]


def test_many_tasks_are_shown_page_by_page(app: App, pages: Reader) -> None:
    for n in range(120):
        app.task(name=f"task-{n:03}")(lambda: None)
    seen, after = [], ""
    while after is not None:
        found = pages.json(f"/policies?after={after}")
        seen += [each["task"] for each in found["policies"]]
        after = found["more_after"]
    assert seen == sorted(app.tasks) and found["count"] == 120
    assert f"after=task-{SHOWN - 1:03}" in pages.html("/policies")


def test_a_delay_of_the_apps_own_that_fails_is_told_and_the_others_are_shown(app: App, pages: Reader) -> None:
    def broken(n: int, fault: object) -> float:
        raise RuntimeError("no clock")

    app.task(name="a", retry=Retry(backoff=Backoff.custom(broken)))(lambda: None)
    declare(app)
    assert "RuntimeError: no clock" in pages.text("/policies")
    assert len(pages.json("/policies")["policies"]) == 3


def test_without_an_app_the_presets_are_shown(bare: Reader) -> None:
    found = bare.json("/policies")
    assert found["no_app"] and [each["name"] for each in found["policies"]] == list(presets)
    assert "redrive web --app tasks:app" in bare.text("/policies")


def test_a_chart_of_ranges_has_a_bar_from_the_least_to_the_greatest_and_says_when_it_is_logarithmic() -> None:
    drawn = str(ranges([(0, 5, 10), (5, 7.5, 10)], ["first", "<second>"], "Delays"))
    heights = [float(h) for h in re.findall(r'class="s0 range"[^>]* height="([\d.]+)"', drawn)]
    assert heights[0] == 2 * heights[1] > 0 and "logarithmic" not in drawn
    assert "&lt;second&gt;" in drawn and "<second>" not in drawn
    assert "logarithmic" in str(ranges([(1, 1, 1), (3600, 3600, 3600)], ["a", "b"], "Delays"))
    assert "there are none" in str(ranges([], [], "Delays"))


def test_a_task_is_paused_and_resumed_as_by_the_command_line(app: App, pages: Reader, bare: Reader) -> None:
    declare(app)
    assert "Pause once" in pages.text("/policies")
    said = pages.do("pause-task", task="o*", reason="CRM migration", **{"for": "2h"})
    assert (said["task"], said["paused"], said["reason"]) == ("o*", True, "CRM migration")
    (once,) = [each["state"] for each in pages.json("/policies")["policies"] if each["task"] == "once"]
    assert (once["paused"], once["pattern"], once["reason"]) == (True, "o*", "CRM migration")
    assert "Resume o*" in pages.text("/policies") and "as o* by" in pages.text("/policies")
    assert "held by the pause of 'o*'" in str(pages.do("resume-task", 422, task="once"))
    assert pages.do("resume-task", task="o*")["paused"] is False
    assert "did you mean 'once'" in str(pages.do("pause-task", 422, task="onc", reason="r"))
    for span in ("soon", "0s"):
        pages.do("pause-task", 422, task="once", reason="r", **{"for": span})
    assert bare.do("pause-task", task="once", reason="r")["paused"] is True
    assert [(entry.action, entry.about) for entry in app.audit] == [
        ("task-pause", "task/once"), ("task-resume", "task/o*"), ("task-pause", "task/o*"),
    ]  # fmt: skip
