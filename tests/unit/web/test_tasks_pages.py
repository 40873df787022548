"""The pages of tasks and the charts over time: runs, failures and durations of the past, beside the time before."""

from __future__ import annotations

import re

import pytest
from tests.support.browsing.history import write_history
from tests.support.pages import Reader

from redrive import SLO, App, Reject, Retry
from redrive.audit import Audit, user
from redrive.web import ALL, Permission, User
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


def test_one_message_is_enqueued_from_the_form_with_who_and_why(app: App, pages: Reader) -> None:
    html = pages.html("/tasks/crm.push")
    assert 'name="arg.record"' in html and 'action="/do/enqueue"' in html and "record (integer)" in html
    form = {"task": "crm.push", "arg.record": "12", "was.record": "", "body": "{}", "reason": "to try the new key"}
    done = pages.do("enqueue", **form)
    (message,) = (m for m in app.store.find([done["id"]]) if m is not None)
    assert (message.task, message.queue, message.body) == ("crm.push", "crm", b'{"record":12}')
    assert message.producer == f"{user()}, from the pages"
    entry = next(iter(Audit(app.store).entries()))
    assert (entry.action, entry.about, entry.reason, entry.ids) == (
        "enqueue", "task/crm.push", "to try the new key", (done["id"],),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"arg.record": "twelve", "was.record": "", "body": "{}"}, "record"),
        ({"arg.record": "", "was.record": "", "body": "{}"}, "record"),
        ({"body": '{"record": 1'}, "the body is not JSON"),
        ({"body": "[1]"}, "no JSON object"),
        ({"body": '{"record": 1}', "reason": ""}, "the reason is missing"),
        ({"body": '{"record": 1, "other<b>": 2}'}, "other"),
    ],
)
def test_what_does_not_fit_is_said_in_the_form_with_what_was_typed(
    app: App, pages: Reader, typed: dict[str, str], said: str
) -> None:
    answer = pages.post("/do/enqueue", {"task": "crm.push", "reason": "r<b>", **typed})
    assert answer.status_code == 422 and 'role="alert"' in answer.text and 'id="menu-1"' in answer.text
    alert = re.search(r'<div role="alert" id="mistake">(.*?)</div>', answer.text, re.DOTALL)
    assert alert and said in alert[1] and "<b>" not in alert[1].replace('<p class="bad">', "")
    assert "twelve" not in typed.get("arg.record", "") or 'value="twelve"' in answer.text
    assert app.store.counts("crm").ready == 0 and next(iter(Audit(app.store).entries()), None) is None


def test_a_task_that_no_app_declares_has_no_form(bare: Reader, app: App) -> None:
    app.tasks["mail.send"].enqueue("ann")  # type: ignore[attr-defined]
    assert bare.do("enqueue", 404, task="mail.send", body="{}", reason="r")["error"] == "there is no task 'mail.send'"


def test_who_may_not_edit_may_not_enqueue(app: App) -> None:
    limited = Reader(app.dashboard(authorize=lambda request: User("ann", ALL - {Permission.EDIT})))
    assert 'action="/do/enqueue"' not in limited.html("/tasks/crm.push")
    limited.do("enqueue", 403, task="crm.push", body='{"record": 1}', reason="r")


def test_the_first_page_of_an_empty_store_has_a_command_that_enqueues_one(app: App, pages: Reader) -> None:
    assert pages.json("/")["first_command"].startswith("""redrive enqueue crm.push '{"record":1}' """)
    assert "The store holds no message." in pages.text("/")
    app.tasks["mail.send"].enqueue("ann")  # type: ignore[attr-defined]
    assert Reader(app.dashboard()).json("/")["first_command"] is None


def test_answers_are_compressed_for_who_takes_it(pages: Reader) -> None:
    answer = pages.get("/tasks", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip" and "crm.push" in answer.text
    assert {"Accept", "Cookie", "Accept-Encoding"} <= {each.strip() for each in answer.headers["vary"].split(",")}
    assert "content-encoding" not in pages.get("/tasks", headers={"Accept-Encoding": "identity"}).headers
