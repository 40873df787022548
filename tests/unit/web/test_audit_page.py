"""The page of the audit log: who did what, when and why; page by page, filtered, exported and verified."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.support.pages import Reader
from tests.support.storefront import buried

from redrive import App, Draft
from redrive.audit.log import CHUNK_MAX, Audit
from redrive.message import Swap
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock
from redrive.triage.pauses import cancel, pause, resume
from redrive.web import User


def test_entries_are_those_of_the_log_newest_first_with_links(store: SqliteStore, app: App, pages: Reader) -> None:
    id = store.put([Draft(task="push", queue="crm")])[0].id
    pause(store, "crm", actor="ann", reason="their maintenance")
    cancel(store, [id], actor="bob", reason="ordered twice")
    app.dlq.note("ab" * 8, "words", actor="ann", reason="seen")
    found = pages.json("/audit")["entries"]
    assert [(e["action"], e["about"], e["claimed"], e["reason"], e["count"], e["ids"]) for e in found] == [
        ("note", "ab" * 8, "ann", "seen", None, []),
        ("cancel", id, "bob", "ordered twice", 1, [id]),
        ("pause", "queue/crm", "ann", "their maintenance", None, []),
    ]
    page = pages.html("/audit")
    for place in (f"/groups/{'ab' * 8}", f"/messages/{id}", "/queues/crm"):
        assert f'href="{place}"' in page


def test_what_was_done_to_a_redrive_run_leads_to_the_run(store: SqliteStore, app: App, pages: Reader) -> None:
    buried(store, 1, Draft(task="push", queue="crm"), "exhausted", "ab" * 8)
    run = app.dlq.select("queue:crm").plan().start(reason="their fix is out")
    run.pause(reason="too fast")
    told = [(each["action"], each["to"]) for each in pages.json("/audit")["entries"]]
    assert told == [("run pause", ["runs", run.id]), ("redrive", ["runs", run.id])]
    pages.html(f"/runs/{run.id}")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("actor=ann", ["resume crm", "pause crm"]),
        ("action=pause", ["pause mail", "pause crm"]),
        ("about=queue/mail", ["pause mail"]),
        ("id=nothing", []),
        ("actor=ann&action=pause", ["pause crm"]),
    ],
)
def test_filters_choose_entries(store: SqliteStore, pages: Reader, query: str, expected: list[str]) -> None:
    pause(store, "crm", actor="ann")
    pause(store, "mail", actor="bob")
    resume(store, "crm", actor="ann")
    found = pages.json(f"/audit?{query}")["entries"]
    assert [f"{each['action']} {each['about'].removeprefix('queue/')}" for each in found] == expected


def test_since_bounds_the_time_and_a_wrong_one_is_refused() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    pages = Reader(App(store=store).dashboard())
    pause(store, "old")
    clock.advance("2h")
    pause(store, "new")
    assert [each["about"] for each in pages.json("/audit?since=1h")["entries"]] == ["queue/new"]
    assert len(pages.json("/audit?since=3h")["entries"]) == 2
    pages.json("/audit?since=soon", 422)
    pages.json("/audit?before=yesterday", 422)


@pytest.mark.parametrize("step", ["0s", "1ms", "10m"])
def test_each_entry_of_a_long_log_is_on_exactly_one_page(step: str) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    pages = Reader(App(store=store).dashboard())
    for n in range(2 * CHUNK_MAX + 50):
        pause(store, f"q{n}")
        clock.advance(step)
    seen, address = [], "/audit"
    while True:
        found = pages.json(address)
        seen += [each["about"] for each in found["entries"]]
        assert len(found["entries"]) <= 100
        if found["before"] is None:
            break
        address = f"/audit?before={found['before']}"
    assert seen == [f"queue/q{n}" for n in reversed(range(2 * CHUNK_MAX + 50))]


def test_a_reader_that_begins_in_the_middle_reads_few_cells_and_knows_corrections() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    log = Audit(store)
    for n in range(20 * CHUNK_MAX):
        log.keep(log.entry("pause", "ann", about=f"queue/q{n}"))
        clock.advance("1m")
    wrong = log.entry("cancel", "ann", ids=["a", "b"])
    log.keep(wrong)
    middle = store.now_ms()
    clock.advance("1m")
    log.amend(wrong, ids=["a"])
    first = next(log.entries(until_ms=middle))
    assert (first.action, first.ids, first.count) == ("cancel", ("a",), 1)
    reads, read = [], store.cells.read
    store.cells.read = lambda keys: reads.extend(keys) or read(keys)  # type: ignore[method-assign, func-returns-value]
    early = middle - 19 * CHUNK_MAX * 60_000
    found = next(log.entries(until_ms=early))
    assert found.at_ms <= early < found.at_ms + 60_000
    assert len(reads) < 12, reads


def test_the_log_is_verified_only_when_that_is_asked_for(store: SqliteStore, pages: Reader) -> None:
    pause(store, "crm", actor="ann")
    assert pages.json("/audit")["verified"] is None
    assert pages.json("/audit?verify=1")["verified"]["ok"] is True
    assert "All 1 entries stand as they were written." in pages.text("/audit?verify=1")


def test_an_altered_entry_is_found(store: SqliteStore, pages: Reader) -> None:
    pause(store, "crm", actor="ann")
    (head,) = store.cells.read(["audit/log"])
    assert head is not None
    store.cells.swap([Swap("audit/log", head.version, head.value.replace(b'"ann"', b'"bob"'))])
    found = pages.json("/audit?verify=1")["verified"]
    assert found["ok"] is False and "was changed" in found["problems"][0]
    assert "does not hold what was written" in pages.text("/audit?verify=1")


def test_the_export_is_the_whole_log_as_the_command_line_writes_it(store: SqliteStore, app: App, pages: Reader) -> None:
    pause(store, "crm", reason="r")
    resume(store, "crm")
    answer = pages.do("export-audit")
    assert answer.content.splitlines() == [*app.audit.lines()]
    assert [json.loads(line)["entry"]["action"] for line in answer.content.splitlines()] == ["pause", "resume"]
    assert "audit.jsonl" in answer.headers["content-disposition"]


def test_the_export_is_for_administrators(store: SqliteStore, app: App) -> None:
    pages = Reader(app.dashboard(authorize=lambda request: User("bob", frozenset(["view"]))))
    pages.do("export-audit", 403)
    assert "export-audit" not in pages.html("/audit")


def test_text_of_an_entry_is_escaped_and_secrets_are_hidden(store: SqliteStore, pages: Reader) -> None:
    pause(store, "crm", actor="<b>ann</b>", reason="<script>alert(1)</script> password=correct-horse-battery")
    page = pages.html("/audit")
    assert "<script>alert" not in page and "<b>ann" not in page and "&lt;b&gt;ann" in page
    assert "correct-horse-battery" not in page
    assert "correct-horse-battery" not in msgspec.json.encode(pages.json("/audit")).decode()


def test_an_empty_log_says_so(bare: Reader) -> None:
    assert "Nothing was done here by hand." in bare.text("/audit")
    assert "Nothing that was done matches." in bare.text("/audit?actor=ann")
