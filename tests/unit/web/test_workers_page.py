"""The page of workers: who is alive, what they run, and the button that drains one."""

from __future__ import annotations

import pytest
from tests.support.pages import Reader

from redrive import App
from redrive.presence import GONE_MS, HeldMessage, ProcessCell, QueueWork, WorkerInfo
from redrive.present.workers import worker_record
from redrive.stores.sqlite.store import SqliteStore
from redrive.web import User

LONG, SHORT, WAITS = (f"01a20935-e451-7923-9b40-c62b763aad{n}" for n in (10, 20, 30))


@pytest.fixture
def fleet(store: SqliteStore) -> SqliteStore:
    now_ms = store.now_ms()
    crm = (QueueWork(name="crm", concurrency=20, held=3),)
    long, short = (HeldMessage(id=id, task="push", since_ms=now_ms - ms) for id, ms in ((LONG, 9000), (SHORT, 10)))
    waits = HeldMessage(id=WAITS, task="push", alone=True)
    busy = WorkerInfo(
        name="vm/a", host="vm", pid=1, version="9.9", started_ms=now_ms - 5000, seen_ms=now_ms, queues=crm, held=3,
        running=2, messages=(waits, short, long), runs=("run-1",), clock_ahead_ms=2500, rss_bytes=50 * 2**20,
    )  # fmt: skip
    killed = WorkerInfo(name="vm/b", pid=2, seen_ms=now_ms - GONE_MS, queues=crm, held=1, messages=(long,))
    clock = WorkerInfo(name="scheduler/vm:3", kind="scheduler", pid=3, seen_ms=now_ms, schedules=("nightly",))
    for info in (busy, killed, clock):
        ProcessCell(store).write(info)
    return store


def test_it_has_the_rows_of_the_command_line_with_the_gone_ones_apart(
    fleet: SqliteStore, app: App, pages: Reader
) -> None:
    found = pages.json("/workers")
    told = {info.name: worker_record(info) for info in app.workers()}
    assert [each["name"] for each in found["workers"]] == ["scheduler/vm:3", "vm/a"]
    assert [each["name"] for each in found["gone"]] == ["vm/b"]
    for each in (*found["workers"], *found["gone"]):
        assert {name: value for name, value in each.items() if name != "drains"} == told[each["name"]]
    text = pages.text("/workers")
    assert "crm 3 of 20" in text and "redrive 9.9" in text and "+2500 ms" in text and "50 MiB" in text


def test_what_they_hold_is_listed_with_what_runs_longest_first_and_links(fleet: SqliteStore, pages: Reader) -> None:
    found = pages.json("/workers")
    assert [(each["id"], each["worker"]) for each in found["running"]] == [(id, "vm/a") for id in (LONG, SHORT, WAITS)]
    assert found["running_count"] == 3
    page = pages.html("/workers")
    assert all(f'href="/messages/{id}"' in page for id in (LONG, SHORT, WAITS)) and 'href="/runs/run-1"' in page
    assert "claimed, not started" in page


def test_only_a_living_worker_has_a_button_and_it_asks_it_to_drain(fleet: SqliteStore, app: App, pages: Reader) -> None:
    drains = {each["name"]: each["drains"] for key in ("workers", "gone") for each in pages.json("/workers")[key]}
    assert drains == {"vm/a": True, "vm/b": False, "scheduler/vm:3": False}
    assert pages.html("/workers").count('action="/do/drain-worker"') == 1
    assert pages.do("drain-worker", worker="vm/a", reason="it leaks")["drain_asked"] is True
    assert [info.name for info in app.workers() if info.drain_asked] == ["vm/a"]
    (entry,) = app.audit
    assert (entry.action, entry.about, entry.reason) == ("drain", "worker/vm/a", "it leaks")
    page = pages.html("/workers")
    assert "asked to drain" in page and 'action="/do/drain-worker"' not in page


def test_draining_needs_a_reason_and_a_living_worker(fleet: SqliteStore, app: App, pages: Reader) -> None:
    assert "reason" in pages.do("drain-worker", 422, worker="vm/a")["error"]
    assert "is gone" in pages.do("drain-worker", 409, worker="vm/b", reason="r")["error"]
    assert "no worker 'vm/c'" in pages.do("drain-worker", 422, worker="vm/c", reason="r")["error"]
    assert [*app.audit] == [] and not any(info.drain_asked for info in app.workers())


def test_draining_is_for_administrators(fleet: SqliteStore, app: App) -> None:
    pages = Reader(app.dashboard(authorize=lambda request: User("bob", frozenset(["view", "pause"]))))
    assert "admin" in pages.do("drain-worker", 403, worker="vm/a", reason="r")["why"]
    assert "drain-worker" not in pages.html("/workers") and [*app.audit] == []


def test_without_any_and_without_an_app_it_says_so(bare: Reader) -> None:
    assert "No worker or scheduler tells that it is alive." in bare.text("/workers")
    assert bare.json("/workers")["workers"] == []


def test_a_worker_has_a_page_with_what_it_runs_and_how_it_is(fleet: SqliteStore, pages: Reader) -> None:
    shown = pages.json("/workers/vm/a")
    assert (shown["state"], shown["running"], shown["version"], shown["drains"]) == ("running", 2, "9.9", True)
    html = pages.html("/workers/vm/a")
    assert all(f'href="/messages/{id}"' in html for id in (LONG, SHORT, WAITS)) and 'href="/runs/run-1"' in html
    assert 'href="/queues/crm"' in html and "3 of 20 slots are busy" in html and 'action="/do/drain-worker"' in html
    assert 'href="/workers/vm%2Fa"' in pages.html("/workers")


def test_a_worker_that_is_gone_has_one_too_and_another_name_none(fleet: SqliteStore, pages: Reader) -> None:
    assert "it was killed, or it cannot reach the store" in pages.html("/workers/vm/b")
    assert 'action="/do/drain-worker"' not in pages.html("/workers/vm/b")
    assert pages.json("/workers/vm/none", 404)["error"] == "no worker 'vm/none' reports"
