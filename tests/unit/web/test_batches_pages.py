"""The pages of batches: the list by state, one batch with its links, and the button that cancels it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.pages import Reader
from tests.support.sites import JSON, Browser

from redrive import App, Retry
from redrive.message import Cancel
from redrive.stores.sqlite.store import SqliteStore
from redrive.web import Permission, User
from redrive.web.read import batches


@pytest.fixture
def app(store: SqliteStore) -> App:
    app = App(store=store)

    @app.task(name="push", retry=Retry(max_attempts=1))
    def push(n: int) -> None:
        if n < 0:
            raise ValueError("no room")

    return app


def fill(app: App, *numbers: int, name: str = "sync", **options: Any) -> str:
    return app.batch((app.tasks["push"].draft(n) for n in numbers), name=name, **options).enqueue().id


def test_the_list_shows_each_batch_with_its_state_and_takes_one_state(app: App) -> None:
    partial = fill(app, 1, 2, -1)
    app.run_worker(drain=True)
    running = fill(app, 1, name="other")
    browser = Browser(app.dashboard())
    page = browser.get("/batches").text
    assert f'href="/batches/{partial}">sync</a>' in page and f'href="/batches/{running}">other</a>' in page
    record = browser.json("/batches?state=partial")
    assert [(each["id"], each["state"], each["dead"]) for each in record["batches"]] == [(partial, "partial", 1)]
    assert record["command"].startswith("redrive batch list --state partial ")
    assert "No batch is in this state" in browser.get("/batches?state=filling").text
    assert browser.get("/batches?state=gone").status_code == 422
    assert "There is no batch here" in Browser(App("memory://").dashboard()).get("/batches").text


def test_a_dead_member_is_waived_by_a_button_of_its_page_and_on_success_is_due(app: App) -> None:
    done: list[str] = []

    @app.task(name="report")
    def report() -> None:
        done.append("report")

    id = fill(app, 1, -1, on_success=report.draft())
    app.run_worker(drain=True)
    (dead,) = app.batch_ref(id).members("dead")
    browser = Browser(app.dashboard())
    assert ">Waive</summary>" in browser.get(f"/messages/{dead.id}").text
    browser.post("/do/discard", {"id": dead.id, "waive": "1", "reason": "paid by hand"})
    app.run_worker(drain=True)
    assert app.batch_ref(id).state == "done" and done == ["report"]
    other = app.tasks["push"].enqueue(-1).id  # of no batch
    app.run_worker(drain=True)
    assert ">Waive</summary>" not in browser.get(f"/messages/{other}").text


def test_the_page_of_a_failure_group_says_how_many_batches_wait_for_it(app: App) -> None:
    app.tasks["push"].enqueue(-1)
    app.run_worker(drain=True)
    browser = Browser(app.dashboard())
    (group,) = browser.json("/groups")["groups"]
    page = f"/groups/{group['fingerprint']}"
    assert "batches" not in browser.json(page)["by_task"][0] and "batches wait" not in browser.get(page).text
    for n in range(2):
        fill(app, 1, -1, -1, name=f"b{n}")
    app.run_worker(drain=True)
    browser = Browser(app.dashboard())
    assert browser.json(page)["by_task"][0]["batches"] == 2
    text = browser.get(page).text
    assert 'for which 2 <a href="/batches?state=partial">batches wait</a>' in text and "at least" not in text


def test_the_list_goes_on_behind_the_last_batch_that_was_read(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ROWS", 3)
    monkeypatch.setattr(batches, "READ_MAX", 6)
    ids = sorted(fill(app, 1, name=f"b{n}") for n in range(13))
    app.batch_ref(ids[-1]).cancel()
    browser = Browser(app.dashboard())

    def pages(query: str) -> list[list[str]]:
        read, after = [], ""
        while after is not None:
            record = browser.json(f"/batches?{query}&after={after}")
            read.append([each["id"] for each in record["batches"]])
            after = record["next"]
        return read

    assert pages("") == [ids[0:3], ids[3:6], ids[6:9], ids[9:12], ids[12:]]
    assert pages("state=cancelled") == [[], [], [ids[-1]]]  # six are read for each page
    assert "None of the batches that this page read" in browser.get("/batches?state=cancelled").text


def test_a_batch_leads_to_its_members_and_to_a_plan_of_those_that_are_dead(app: App) -> None:
    id = fill(app, 1, 2, -1, -2)
    app.run_worker(drain=True)
    browser = Browser(app.dashboard())
    [one, two] = [message.id for message in app.batch_ref(id).members("dead")]
    app.dlq.quarantine(ids=[two], reason="it kills the parser")
    page = browser.get(f"/batches/{id}").text
    assert f'<a href="/batches/{id}">{id}</a>' in browser.get(f"/messages/{one}").text
    assert 'aria-label="Of 4: ' in page and "dead 1 · 25%" in page and "Plan a redrive of 1 dead" in page
    for address, found in ((f"q=batch:{id}", [one]), (f"q=batch:{id} lane:quarantine", [two])):
        assert f'href="/messages?{address.replace(":", "%3A").replace(" ", "+")}"' in page
        assert [row["id"] for row in browser.json(f"/messages?{address}")["rows"]] == found
    assert {row["id"] for row in browser.json(f"/messages?q=batch:{id}&lane=any")["rows"]} == {one, two}
    assert "cancel-batch" in page and browser.json(f"/batches/{id}")["can"] == {"cancel": True}
    assert browser.json("/")["needs"][-1]["place"] == ["batches", id]
    assert browser.get("/batches/none").status_code == 404
    assert browser.post("/do/cancel-batch", {"id": "none", "reason": "r"}).status_code == 404


def test_a_batch_is_cancelled_with_a_reason_that_the_audit_log_keeps(app: App) -> None:
    id = fill(app, 1, 2)
    browser = Browser(app.dashboard())
    assert browser.post("/do/cancel-batch", {"id": id}).status_code == 422  # without a reason
    assert browser.post("/do/cancel-batch", {"id": id, "reason": "r", "csrf": "x"}).status_code == 403
    assert app.batch_ref(id).counts.open == 2
    done = browser.post("/do/cancel-batch", {"id": id, "reason": "they changed their mind"})
    assert done.status_code == 303 and done.headers["location"] == f"/batches/{id}"
    page = browser.get(f"/batches/{id}").text
    assert "The batch is cancelled; 2 members were open." in page and "A person ended it." in page
    assert browser.post("/do/cancel-batch", {"id": id, "reason": "once more"}).status_code == 409
    [entry] = [entry for entry in app.dlq.audit() if entry.action == "cancel"]
    assert (entry.about, entry.reason) == (f"batch/{id}", "they changed their mind")


def test_more_than_a_hundred_members_need_their_number_typed(app: App) -> None:
    id = fill(app, *range(101))
    browser = Browser(app.dashboard())
    assert "Type the number of messages, 101" in browser.get(f"/batches/{id}").text
    [first, *_] = app.store.peek("ready", limit=1).messages
    assert app.store.cancel([first.id]) == [Cancel.CANCELLED]  # the number stays that of all members
    assert browser.post("/do/cancel-batch", {"id": id, "reason": "r"}).status_code == 409
    assert browser.post("/do/cancel-batch", {"id": id, "reason": "r", "count": "100"}).status_code == 409
    assert app.batch_ref(id).counts.open == 100
    done = browser.post("/do/cancel-batch", {"id": id, "reason": "r", "count": "101"}, headers=JSON)
    assert done.json()["ended_now"] == 100 and done.json()["state"] == "cancelled"


def test_a_batch_is_cancelled_with_the_permission_that_messages_need(app: App) -> None:
    id = fill(app, 1)
    for permissions, status in (({Permission.RETRY}, 403), ({Permission.DISCARD}, 303)):
        user = User("ann", frozenset({Permission.VIEW, *permissions}))
        browser = Browser(app.dashboard(authorize=lambda request, user=user: user))
        assert ("cancel-batch" in browser.get(f"/batches/{id}").text) is (status == 303)
        assert browser.post("/do/cancel-batch", {"id": id, "reason": "r"}).status_code == status


def test_a_store_that_counts_no_members_says_so(
    app: App, store: SqliteStore, bare: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = fill(app, 1)
    monkeypatch.setattr(store, "traits", replace(store.traits, batches=False))
    assert "does not count members" in bare.get("/batches").text
    assert bare.json("/batches")["batches"] == [] and bare.get(f"/batches/{id}").status_code == 404
    assert bare.post("/do/cancel-batch", {"id": id, "reason": "r"}).status_code == 404


def test_the_page_of_a_nested_batch_opens_from_that_of_the_outer_one() -> None:
    app = App("memory://")

    @app.task(name="push")
    def push(n: int) -> None: ...

    ref = app.batch([push.draft(2), app.batch([push.draft(1)], name="eu north")], name="sync").enqueue()
    browser = Browser(app.dashboard())
    page = browser.get(f"/batches/{ref.id}").text
    (link,) = re.findall(rf'href="(/batches/{ref.id}[^"]+)"', page)
    assert "Batch eu north" in browser.get(link).text
    assert browser.json(link)["name"] == "eu north"
    assert browser.get(f"/batches/{ref.id}/asia").status_code == 404
