from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.redrive_pages import Pages, actions, forms, text_of

from redrive.message import FailureGroup, Swap
from redrive.store import FIRST_PAGE
from redrive.triage.redrive.records import chunk_cell
from redrive.web import Permission
from redrive.web.read import plans
from redrive.web.sums import Sums


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with Pages(tmp_path) as made:
        yield made


def frozen(pages: Pages, **how: object) -> str:
    answer = pages.post("plan", **{"q": "queue:crm", **how})
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


def test_without_a_selector_the_page_leads_to_the_largest_failure_groups(pages: Pages) -> None:
    pages.bury(pushes=3, sends=1)
    largest, smallest = pages.app.dlq.groups()
    page, record = pages.get("/plans"), pages.json("/plans")
    assert [group["count"] for group in record["groups"]] == [largest.count, smallest.count]
    assert page.index(f"fingerprint%3A{largest.fingerprint}") < page.index(f"fingerprint%3A{smallest.fingerprint}")
    assert record["matching"] is None
    assert "plan" not in actions(page)


def test_a_selector_is_counted_by_queue_and_task_as_the_store_counts_it(pages: Pages) -> None:
    pages.bury(pushes=3, sends=2)
    for words in ("lane:dead", "queue:crm", "queue:(crm,mail)", "task:mail.send", "error:Value*", "lane:quarantine"):
        matching = pages.json(f"/plans?q={words}")["matching"]
        messages = list(pages.app.dlq.select(words))
        assert matching["count"] == len(messages), words
        assert matching["whole"]
        assert matching["by_task"] == {
            t: n for t in ("crm.push", "mail.send") if (n := sum(m.task == t for m in messages))
        }
        assert matching["by_queue"] == {q: n for q in ("crm", "mail") if (n := sum(m.queue == q for m in messages))}


def test_a_count_that_takes_too_long_ends_and_says_that_there_may_be_more(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.bury(pushes=FIRST_PAGE + 1)
    monkeypatch.setattr(plans, "SCANNED_S", -1.0)
    matching = pages.json("/plans?q=error:Value*")["matching"]
    assert (matching["count"], matching["whole"]) == (FIRST_PAGE, False)
    assert "More than 100 match" in text_of(pages.get("/plans?q=error:Value*"))


def test_a_page_waits_for_no_count_that_takes_longer(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.bury(pushes=2)
    answered, groups = threading.Event(), pages.app.store.failure_groups
    pages.json("/plans")  # so that other sums are known

    def slowly(**words: Any) -> Sequence[FailureGroup]:
        answered.wait()
        return groups(**words)

    monkeypatch.setattr(plans, "COUNTED_MAX", -1)
    with monkeypatch.context() as slow:
        slow.setattr(pages.app.store, "failure_groups", slowly)
        page = pages.get("/plans?q=queue:crm")
        assert "Still being counted" in text_of(page)
        assert "plan" in actions(page)
        answered.set()
    monkeypatch.undo()
    assert pages.json("/plans?q=queue:crm")["matching"]["count"] == 2


def test_a_count_that_fails_fails_the_page() -> None:
    with pytest.raises(ZeroDivisionError):
        Sums().within(30, "count", lambda: 1 // 0)


def test_a_selector_that_cannot_be_read_is_pointed_at_and_stays_in_its_box(pages: Pages) -> None:
    record, page = pages.json("/plans?q=queu:crm"), pages.get("/plans?q=queu:crm")
    assert "unknown field 'queu'" in record["mistake"]["what"]
    assert "did you mean queue" in text_of(page)
    assert 'value="queu:crm"' in page
    assert "plan" not in actions(page)


def test_the_form_is_filled_in_with_a_canary_slow_start_and_a_stop_rule(pages: Pages) -> None:
    pages.bury(pushes=1)
    ((_, fields),) = [form for form in forms(pages.get("/plans?q=queue:crm")) if form[0].endswith("/do/plan")]
    assert (fields["canary"], fields["slow_start"], fields["stop_if"]) == ("5", "on", "failed>20%")
    assert fields["breaker"] == "closed"
    assert "halve_on_failures" not in fields


def test_three_clicks_lead_from_a_failure_group_to_its_run(pages: Pages) -> None:
    pages.bury(pushes=3)
    (group,) = pages.app.dlq.groups()
    planning = pages.get(f"/plans?q=fingerprint:{group.fingerprint}")  # "Plan a redrive" of the group's page
    plan = pages.send_form(planning, "plan")  # "Freeze the plan"
    assert "3 messages are frozen" in text_of(plan.text)
    run = pages.send_form(plan.text, "apply", reason="the records are back")  # "Redrive"
    (view,) = pages.app.dlq.runs()
    assert run.url.path == f"/runs/{view.id}"
    assert (view.actor, view.reason, view.counts["planned"]) == ("ann", "the records are back", 3)


def test_freezing_moves_nothing_and_keeps_every_choice(pages: Pages) -> None:
    pages.bury(pushes=2)
    id = frozen(
        pages, rate="20/s", canary="1", slow_start="on", halve_on_failures="on", stop_if="failed>3", attempts="2",
        to_queue="crm-slow", delay="1m", spread="30s", approval="bea", window="22:00-06:00", note="why not",
        breaker="ignored", keep_deadline="on",
    )  # fmt: skip
    settings = pages.app.dlq.plan(id).plan.settings
    assert (settings.rate, settings.canary, settings.stop_if, settings.attempts) == (20.0, 1, "failed>3", 2)
    assert settings.slow_start and settings.halve_on_failures and settings.keep_deadline
    assert (settings.to_queue, settings.delay_ms, settings.spread_ms) == ("crm-slow", 60_000, 30_000)
    assert settings.gates is not None
    assert (settings.gates.breaker, settings.gates.approval, settings.gates.window) == (False, "bea", "22:00-06:00")
    assert pages.app.store.counts("crm").dead == 2
    page = pages.json(f"/plans/{id}")
    assert page["settings"]["note"] == "why not"
    assert page["load"][0]["queue"] == "crm-slow"


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("rate", "fast", "50/s"),
        ("canary", "-1", "0 to"),
        ("canary", "some", "0 to"),
        ("stop_if", "fail>3", "did you mean failed"),
        ("attempts", "many", "1 to"),
        ("priority", "4", "0 to 3"),
        ("delay", "soon", "15m"),
        ("window", "at night", "22:00-06:00"),
        ("q", "queu:crm", "did you mean queue"),
        ("q", "", "go back and fill it in"),
    ],
)
def test_a_bad_value_answers_422_with_what_was_expected(pages: Pages, field: str, given: str, expected: str) -> None:
    answer = pages.post("plan", **{"q": "queue:crm", field: given})
    assert answer.status_code == 422
    assert expected in answer.text


def test_the_page_of_a_plan_shows_what_the_store_keeps_of_it(pages: Pages) -> None:
    pages.bury(pushes=3, sends=2)
    id = frozen(pages, q="lane:dead", rate="2/s", slow_start="")
    handle, record, page = pages.app.dlq.plan(id), pages.json(f"/plans/{id}"), text_of(pages.get(f"/plans/{id}"))
    assert (record["total"], record["by_queue"], record["by_task"]) == (5, dict(handle.by_queue), dict(handle.by_task))
    assert record["eta_s"] == handle.eta_s
    assert record["state"] == "frozen"
    assert {load["queue"]: load["added_per_s"] for load in record["load"]} == {"crm": 2 * 3 / 5, "mail": 2 * 2 / 5}
    assert all(load["now_per_s"] > 0 for load in record["load"])  # the runs in which they died
    assert "5 messages" in page
    assert record["dependencies"] == {"mail.send": "smtp"}


def test_what_a_plan_leaves_out_is_shown_with_its_reason(pages: Pages) -> None:
    pages.bury(pushes=2)
    (first, _) = pages.app.dlq.list().messages
    pages.app.dlq.quarantine([first.id], reason="looks odd")
    id = frozen(pages)
    assert pages.json(f"/plans/{id}")["excluded"] == {"quarantined": 1}
    assert "1 quarantined" in text_of(pages.get(f"/plans/{id}"))


def test_above_a_hundred_messages_their_number_is_typed(pages: Pages) -> None:
    pages.bury(pushes=101)
    id = frozen(pages)
    page = pages.get(f"/plans/{id}")
    assert "Type the number of messages, 101" in text_of(page)
    for typed in ("", "100"):
        assert pages.send_form(page, "apply", reason="fixed", count=typed).status_code == 409
    assert pages.app.dlq.runs() == []
    assert pages.send_form(page, "apply", reason="fixed", count="101").status_code == 200
    assert len(pages.app.dlq.runs()) == 1


def test_a_run_needs_a_reason_and_the_audit_log_has_it(pages: Pages) -> None:
    pages.bury(pushes=1)
    id = frozen(pages)
    assert pages.post("apply", id=id, reason="  ").status_code == 422
    assert pages.post("apply", id=id, reason="fixed").status_code == 200
    assert pages.audited("redrive") == [("redrive", "ann", "fixed")]


def test_a_plan_is_applied_once_and_leads_to_its_run_from_then_on(pages: Pages) -> None:
    pages.bury(pushes=1)
    id = frozen(pages)
    assert pages.json(f"/plans/{id}")["state"] == "frozen"
    pages.post("apply", id=id, reason="fixed")
    page = pages.get(f"/plans/{id}")
    assert pages.json(f"/plans/{id}")["state"] == "applied"
    assert f'href="/runs/{id}"' in page
    assert "apply" not in actions(page)
    again = pages.post("apply", id=id, reason="fixed")
    assert (again.status_code, "applied already" in again.text) == (409, True)


def test_an_altered_plan_says_so_and_has_no_button(pages: Pages) -> None:
    pages.bury(pushes=2)
    id = frozen(pages)
    (cell,) = pages.app.store.cells.read([chunk_cell(id, 0)])
    assert cell is not None
    pages.app.store.cells.swap([Swap(chunk_cell(id, 0), cell.version, cell.value.replace(b"0", b"1", 1))])
    page = pages.get(f"/plans/{id}")
    assert pages.json(f"/plans/{id}")["state"] == "altered"
    assert "was altered" in text_of(page)
    assert "apply" not in actions(page)
    assert pages.post("apply", id=id, reason="fixed").status_code == 409


def test_a_plan_older_than_a_day_is_expired(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.bury(pushes=1)
    id = frozen(pages)
    assert pages.json(f"/plans/{id}")["state"] == "frozen"
    store, now_ms = pages.app.store, pages.app.store.now_ms
    monkeypatch.setattr(store, "now_ms", lambda: now_ms() + 25 * 3_600_000)
    page = pages.get(f"/plans/{id}")
    assert "expired" in text_of(page)
    assert "apply" not in actions(page)
    assert pages.post("apply", id=id, reason="fixed").status_code == 409


def test_a_plan_of_nothing_is_empty_and_cannot_be_applied(pages: Pages) -> None:
    id = frozen(pages, q="queue:crm")
    page = pages.get(f"/plans/{id}")
    assert pages.json(f"/plans/{id}")["state"] == "empty"
    assert "apply" not in actions(page)


def test_an_unknown_plan_is_not_found(pages: Pages) -> None:
    assert pages.status("/plans/nope") == 404
    assert pages.post("apply", id="nope", reason="fixed").status_code == 404


def test_who_may_not_redrive_sees_plans_and_no_form(pages: Pages) -> None:
    pages.bury(pushes=1)
    id = frozen(pages)
    pages.may()
    assert actions(pages.get("/plans?q=queue:crm")) == set()
    assert actions(pages.get(f"/plans/{id}")) == set()
    assert pages.post("plan", q="queue:crm").status_code == 403
    assert pages.post("apply", id=id, reason="fixed").status_code == 403


def test_a_selector_by_bodies_needs_the_permission_to_see_them(pages: Pages) -> None:
    pages.bury(pushes=1)
    pages.may(Permission.REDRIVE)
    assert pages.status("/plans?q=args.record:0") == 403
    assert pages.post("plan", q="queue:crm not args.record:0").status_code == 403
    pages.may(Permission.REDRIVE, Permission.VIEW_BODIES)
    assert pages.json("/plans?q=args.record:0")["matching"]["count"] == 1


def test_the_last_plans_are_listed_with_their_runs(pages: Pages) -> None:
    pages.bury(pushes=1)
    first = frozen(pages, note="the first")
    second = frozen(pages)
    pages.post("apply", id=first, reason="fixed")
    rows = pages.json("/plans")["plans"]
    assert [(row["id"], row["run"], row["note"]) for row in rows] == [
        (second, None, None),
        (first, "running", "the first"),
    ]
    assert re.search(rf'href="/plans/{second}"', pages.get("/plans"))


def test_what_waits_is_counted_planned_and_made_due(pages: Pages) -> None:
    pages.bury(pushes=1)
    push = pages.app.tasks["crm.push"]
    pages.app.enqueue_many([push.using(delay="3h").draft(n) for n in range(2)])
    matching = pages.json("/plans?q=lane:scheduled")["matching"]
    while matching["count"] is None:  # a thread counts it
        matching = pages.json("/plans?q=lane:scheduled")["matching"]
    assert (matching["count"], matching["by_queue"], matching["by_task"]) == (2, {"crm": 2}, {"crm.push": 2})
    id = frozen(pages, q="lane:scheduled task:crm.push")
    page, record = text_of(pages.get(f"/plans/{id}")), pages.json(f"/plans/{id}")
    assert record["total"] == 2 and record["settings"]["hurry"] and record["by_age"] == {"<6h": 2}
    assert "Time until due" in page and "attempts as the policy says" not in page
    answer = pages.post("plan", q="lane:scheduled or lane:dead")
    assert answer.status_code == 422 and "lane:scheduled alone" in answer.text


def test_what_waits_is_changed_and_cancelled_by_a_plan(pages: Pages) -> None:
    push = pages.app.tasks["crm.push"]
    pages.app.enqueue_many([push.draft(1), push.using(delay="3h", group="g").draft(2)])
    assert "Change what waits" in pages.get("/plans?q=lane:ready")
    id = frozen(pages, q="lane:ready", priority="0", deadline="0s")
    record = pages.json(f"/plans/{id}")
    assert (record["total"], record["settings"]["priority"], record["settings"]["deadline_s"]) == (1, 0, 0)
    assert record["settings"]["edit"] and record["forecast"] is None and record["lasting"] == 0
    assert "priority 0; no deadline" in text_of(pages.get(f"/plans/{id}"))
    id = frozen(pages, q="lane:(ready,scheduled)", cancel="on")
    record, page = pages.json(f"/plans/{id}"), text_of(pages.get(f"/plans/{id}"))
    assert (record["total"], record["lasting"], record["settings"]["canary"]) == (2, 1, 0)
    assert "Cancel them" in page and "brings back none of 1 in groups or batches" in page
    answer = pages.post("plan", q="lane:ready")
    assert answer.status_code == 422 and "has nothing to change" in answer.text
    answer = pages.post("plan", q="queue:crm", cancel="on")
    assert answer.status_code == 422 and "only a plan over lane:ready" in answer.text
