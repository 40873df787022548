"""The pages of tasks and the charts over time: runs, failures and durations of the past, beside the time before."""

from __future__ import annotations

import re

import pytest
from tests.support.browsing.history import write_history
from tests.support.pages import Reader

from redrive import SLO, App, Reject, Retry
from redrive.web.charts import PLOT_TICKS, timeline
from redrive.web.read.fields import SINCE
from redrive.web.read.tasks import SHOWN


@pytest.fixture(autouse=True)
def tasks(app: App) -> None:
    @app.task(name="crm.push", queue="crm", slo=SLO("99% within 30s"), retry=Retry(max_attempts=1))
    def push(record: int) -> None:
        raise Reject(f"the CRM refused record {record}")

    @app.task(name="mail.send", queue="mail")
    def send(to: str) -> None: ...


def test_the_list_has_each_task_with_its_last_hour_and_its_dead(app: App, pages: Reader) -> None:
    app.enqueue_many([app.tasks["crm.push"].using().draft(n) for n in range(3)])  # type: ignore[attr-defined]
    app.run_worker(burst=True)
    write_history(app.store)
    push, send = pages.json("/tasks")["tasks"]
    assert (push["task"], push["queue"], push["dead"], push["objective"]["name"]) == ("crm.push", "crm", 3, "crm.push")
    assert push["past"]["ended"] > 100 and len(push["past"]["runs"]) == 13 and push["past"]["run_p95_ms"] > 100
    assert (send["task"], send["dead"], send["objective"]) == ("mail.send", 0, None)
    assert [each["task"] for each in pages.json("/tasks?q=mail")["tasks"]] == ["mail.send"]


def test_a_page_reads_a_bounded_number_of_tasks_and_leads_to_the_next(app: App, pages: Reader) -> None:
    for n in range(SHOWN + 5):
        app.task(name=f"many.{n:03}")(lambda: None)
    first = pages.json("/tasks?q=many")
    assert (len(first["tasks"]), first["count"]) == (SHOWN, SHOWN + 5)
    rest = pages.json(f"/tasks?q=many&after={first['more_after']}")
    assert [each["task"] for each in rest["tasks"]] == [f"many.{n:03}" for n in range(SHOWN, SHOWN + 5)]
    assert rest["more_after"] is None


def test_the_page_of_a_task_has_its_causes_its_policy_and_the_time_before(app: App, pages: Reader) -> None:
    app.enqueue_many([app.tasks["crm.push"].using().draft(n) for n in range(3)])  # type: ignore[attr-defined]
    app.run_worker(burst=True)
    write_history(app.store)
    page = pages.json("/tasks/crm.push?since=6h")
    assert [(each["error"], each["count"]) for each in page["groups"]] == [("redrive.errors.Reject", 3)]
    assert page["policy"]["max_attempts"] == 1 and page["objective"]["objective"] == "99% within 30s over 28d"
    assert page["past"]["total"]["done"] > 500 and page["past"]["before"]["done"] > 500
    assert len(page["past"]["before"]["runs"]) == len(page["past"]["times"])
    assert pages.json("/tasks/mail.send")["groups"] == []


@pytest.mark.parametrize("since", SINCE)
def test_every_time_of_the_overview_is_drawn_with_axes(app: App, pages: Reader, since: str) -> None:
    write_history(app.store)
    page = pages.json(f"/?since={since}")["past"]
    assert bool(page["before"]["runs"]) == (since != "35d"), "there is no history of the 35 days before"
    html = pages.html(f"/?since={since}")
    assert html.count("<g><title>") >= len(page["times"]), "a bar for each step"
    assert 'class="base"' in html and re.search(r'text-anchor="middle" data-at="[^"]+">\d', html)


def test_an_unknown_task_is_told(pages: Reader) -> None:
    assert pages.get("/tasks/nope").status_code == 404


def test_bars_fit_their_scale_and_say_all_their_values() -> None:
    times = [f"2026-11-28T{hour:02}:00:00.000Z" for hour in range(24)]
    drawn = str(timeline([("done", [7.0] * 24), ("dead", [0.0] * 23 + [72.0])], times, 3600, "Runs", [9.0] * 24))
    assert "28 Nov 23:00 UTC\ndone: 7\ndead: 72" in drawn
    assert re.findall(r'text-anchor="end">([^<]+)<', drawn) == ["0", "30", "60", "90"]
    assert all(float(y) >= 0 for y in re.findall(r'<rect class="s\d"[^>]* y="([-\d.]+)"', drawn))
    assert 2 <= drawn.count('text-anchor="middle"') <= PLOT_TICKS
    assert 'class="before"' in drawn and "style=" not in drawn


def test_nothing_is_drawn_of_nothing() -> None:
    assert "nothing in this time" in str(timeline([("done", [0.0])], ["2026-11-28T00:00:00.000Z"], 60, "Runs"))
