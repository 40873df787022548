from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.support.redrive_pages import Pages, actions, text_of

from redrive.message import Swap
from redrive.program.main import cli
from redrive.triage.redrive.records import read_state, state_cell
from redrive.web import Permission


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with Pages(tmp_path) as made:
        yield made


def started(pages: Pages, q: str = "queue:crm", **how: object) -> str:
    """Plan and apply: the id of the run."""
    id: str = pages.post("plan", **{"q": q, "canary": "0", "slow_start": "off", **how}).json()["id"]
    total = pages.app.dlq.plan(id).total
    assert pages.post("apply", id=id, reason="fixed", count=str(total)).status_code == 200
    return id


def test_a_worker_carries_the_run_of_an_applied_plan_and_the_page_shows_it_done(pages: Pages) -> None:
    pages.bury(pushes=6)
    id = started(pages, canary="2")
    before, page = pages.json(f"/runs/{id}"), text_of(pages.get(f"/runs/{id}"))
    assert (before["state"], before["canary"]["verdict"]) == ("running", "waiting")
    assert "No worker carries it now" in page
    pages.broken = False
    pages.work()
    record, page = pages.json(f"/runs/{id}"), text_of(pages.get(f"/runs/{id}"))
    view = pages.app.dlq.run(id).view()
    assert record["state"] == view.state == "done"
    assert {name: record[name] for name in view.counts} == view.counts
    assert (record["done"], record["failed"]) == (6, 0)
    assert (record["canary"]["verdict"], record["canary"]["text"]) == ("passed", "2 of 2 done, 0 failed: it goes on")
    assert [stage["state"] for stage in record["stages"]] == ["done", "done", "done", "now"]
    assert "6 done, 0 failed" in page
    assert actions(pages.get(f"/runs/{id}")) == set()


def test_a_run_says_what_holds_the_canary_that_it_has_moved(pages: Pages, tmp_path: Path) -> None:
    pages.bury(sends=8)
    id = started(pages, q="queue:mail", canary="3")
    pages.app.flow.open("smtp", reason="their outage", actor="bob")
    assert pages.json(f"/runs/{id}")["held"] == [], "it has moved nothing yet"
    (cell,) = pages.app.store.cells.read([state_cell(id)])
    state = read_state(cell)
    assert cell is not None and state is not None
    moved = msgspec.json.encode(msgspec.structs.replace(state, moved=3, at=3))
    pages.app.store.cells.swap([Swap(state_cell(id), cell.version, moved)])
    (hold,) = [hold for hold in pages.json(f"/runs/{id}")["held"] if hold["kind"] == "breaker"]
    assert hold["text"] == "the breaker of smtp is held open by bob: their outage"
    assert "What it has moved does not run yet: the breaker of smtp" in text_of(pages.get(f"/runs/{id}"))
    url = f"sqlite:///{tmp_path}/work.db"
    typed = CliRunner().invoke(cli, ["run", "show", id, "-o", "json", "--url", url])
    assert [hold["kind"] for hold in json.loads(typed.stdout)["held"]].count("breaker") == 1


def test_a_canary_that_fails_stops_the_run_and_the_page_says_so(pages: Pages) -> None:
    pages.bury(pushes=8)
    id = started(pages, canary="3")
    pages.work()
    record, page = pages.json(f"/runs/{id}"), pages.get(f"/runs/{id}")
    assert (record["state"], record["moved"], record["skipped"]) == ("stopped", 3, 5)
    assert record["canary"] == {
        "size": 3, "moved": 3, "verdict": "failed", "text": "3 of 3 failed (100 %): the run stops at failed>20%",
    }  # fmt: skip
    assert {stage["name"]: stage["state"] for stage in record["stages"]} == {
        "canary": "failed", "moving": "not reached", "settling": "not reached", "over": "now",
    }  # fmt: skip
    assert "3 of 3 failed (100 %)" in text_of(page)
    failed = pages.app.dlq.run(id).failures()
    assert [row["id"] for row in record["failures"]["rows"]] == [each.id for each in failed]
    assert all(f'href="/messages/{each.id}"' in page for each in failed)
    assert "Plan what is still dead" in page
    assert pages.app.store.counts("crm").dead == 8


def test_the_story_is_shown_with_the_newest_first(pages: Pages) -> None:
    pages.bury(pushes=2)
    id = started(pages)
    pages.post("pause-run", id=id, reason="the lunch")
    texts = [line["text"] for line in pages.json(f"/runs/{id}")["story"]]
    assert texts == [line.text for line in reversed(pages.app.dlq.run(id).story())]
    assert texts[0] == "paused by ann: the lunch"
    page = text_of(pages.get(f"/runs/{id}"))
    assert page.index("paused by ann") < page.index("started by ann")


def test_each_state_has_its_buttons_and_each_is_audited_with_actor_and_reason(pages: Pages) -> None:
    pages.bury(pushes=2)
    id = started(pages)
    assert actions(pages.get(f"/runs/{id}")) == {"pause-run", "cancel-run"}
    paused = pages.send_form(pages.get(f"/runs/{id}"), "pause-run", reason="too loud")
    assert (pages.app.dlq.run(id).state, actions(paused.text)) == ("paused", {"resume-run", "cancel-run"})
    resumed = pages.send_form(paused.text, "resume-run", reason="quiet again")
    assert pages.app.dlq.run(id).state == "running"
    over = pages.send_form(resumed.text, "cancel-run", reason="not needed")
    assert (pages.app.dlq.run(id).state, actions(over.text)) == ("cancelled", set())
    assert pages.audited("run pause", "run resume", "run cancel") == [
        ("run pause", "ann", "too loud"),
        ("run resume", "ann", "quiet again"),
        ("run cancel", "ann", "not needed"),
    ]


def test_every_steering_needs_a_reason(pages: Pages) -> None:
    pages.bury(pushes=1)
    id = started(pages, approval="anyone")
    for action in ("pause-run", "resume-run", "cancel-run", "undo-run", "approve-run"):
        assert pages.post(action, id=id).status_code == 422, action
    assert pages.app.dlq.run(id).state == "running"


def test_an_undo_says_how_many_it_may_take_back_and_does(pages: Pages) -> None:
    pages.bury(pushes=4)
    id = started(pages, delay="1h")  # moved, and due in an hour
    pages.broken = False
    pages.work("mail")  # a worker of another queue carries the run; nothing works what it moves
    page = pages.get(f"/runs/{id}")
    assert pages.json(f"/runs/{id}")["can"]["undo"] == 4
    assert "have not begun to run: at most 4." in text_of(page)
    after = pages.send_form(page, "undo-run", reason="the wrong ones")
    assert "4 messages are dead again" in text_of(after.text)
    assert pages.app.store.counts("crm").dead == 4
    record = pages.json(f"/runs/{id}")
    assert (record["state"], record["returned"], record["can"]["undo"]) == ("cancelled", 4, 0)
    assert pages.audited("run undo") == [("run undo", "ann", "the wrong ones")]


def test_a_run_waits_for_the_approval_of_the_person_it_names(pages: Pages) -> None:
    pages.bury(pushes=2)
    mine, others = started(pages, approval="ann"), started(pages, approval="bea")
    assert "It waits for the approval of bea." in text_of(pages.get(f"/runs/{others}"))
    assert "approve-run" not in actions(pages.get(f"/runs/{others}"))
    assert pages.post("approve-run", id=others, reason="looks fine").status_code == 409
    stages = pages.json(f"/runs/{mine}")["stages"]
    assert stages[0] == {"name": "approval", "state": "now"}
    approved = pages.send_form(pages.get(f"/runs/{mine}"), "approve-run", reason="looks fine")
    assert "approve-run" not in actions(approved.text)
    record = pages.json(f"/runs/{mine}")
    assert (record["approved_by"], record["stages"][0]["state"]) == ("ann", "done")
    assert pages.audited("run approve") == [("run approve", "ann", "looks fine")]


def test_approving_and_redriving_are_permissions_of_their_own(pages: Pages) -> None:
    pages.bury(pushes=1)
    id = started(pages, approval="anyone")
    pages.may(Permission.APPROVE)
    assert actions(pages.get(f"/runs/{id}")) == {"approve-run"}
    assert pages.post("cancel-run", id=id, reason="no").status_code == 403
    pages.may(Permission.REDRIVE)
    assert "approve-run" not in actions(pages.get(f"/runs/{id}"))
    assert pages.post("approve-run", id=id, reason="yes").status_code == 403


def test_a_run_that_is_over_refuses_to_be_steered(pages: Pages) -> None:
    pages.bury(pushes=1)
    id = started(pages)
    pages.broken = False
    pages.work()
    answer = pages.post("pause-run", id=id, reason="late")
    assert (answer.status_code, "it cannot pause any more" in answer.text) == (409, True)


def test_failures_are_shown_fifty_a_page(pages: Pages) -> None:
    pages.bury(pushes=60)
    id = started(pages, stop_if="")
    pages.work()
    first, second = (pages.json(f"/runs/{id}?page={n}")["failures"] for n in (1, 2))
    assert (first["failed"], first["pages"], len(first["rows"]), len(second["rows"])) == (60, 2, 50, 10)
    ids = [row["id"] for row in first["rows"] + second["rows"]]
    assert ids == [each.id for each in pages.app.dlq.run(id).failures()]
    assert f'href="/runs/{id}?page=2"' in pages.get(f"/runs/{id}")


def test_runs_are_listed_open_ones_first_as_the_store_has_them(pages: Pages) -> None:
    pages.bury(pushes=1, sends=1)
    over = started(pages, "queue:crm")
    pages.post("cancel-run", id=over, reason="no")
    pages.work()  # closes it
    open = started(pages, "queue:mail")
    rows, page = pages.json("/runs")["runs"], pages.get("/runs")
    assert [row["id"] for row in rows] == [open, over]
    assert rows == pages.json("/")["runs"]
    assert [(row["state"], row["actor"], row["reason"]) for row in rows] == [
        ("running", "ann", "fixed"), ("cancelled", "ann", "fixed"),
    ]  # fmt: skip
    assert re.findall(r'data-row="([^"]+)"', page) == [open, over]


def test_a_list_of_runs_has_fifty_a_page(pages: Pages) -> None:
    pages.bury(pushes=1)
    ids = [started(pages) for _ in range(51)]
    first, second = pages.json("/runs"), pages.json("/runs?page=2")
    assert [row["id"] for row in first["runs"]] == ids[:0:-1]
    assert [row["id"] for row in second["runs"]] == ids[:1]
    assert (first["more"], second["more"]) == (True, False)
    assert 'href="/runs?page=2"' in pages.get("/runs")


def test_a_run_is_found_by_the_beginning_of_its_id_and_an_unknown_one_is_not(pages: Pages) -> None:
    pages.bury(pushes=1)
    id = started(pages)
    assert pages.json(f"/runs/{id[:20]}")["id"] == id
    for unknown in ("nope", f"{id[:-1]}0/plan", "01a20931-48a6-76fe-a23e-da6eca41788a"):
        assert pages.status(f"/runs/{unknown}") == 404
        assert pages.post("cancel-run", id=unknown, reason="no").status_code == 404


def test_what_changes_stands_in_parts_that_live_updates_find_again(pages: Pages) -> None:
    pages.bury(pushes=1)
    id = started(pages)
    parts = re.findall(r'data-part="([^"]+)"', pages.get(f"/runs/{id}"))
    assert len(parts) == len(set(parts))
    assert {"state", "counts", "canary", "acts", "failures", "story"} <= set(parts)
