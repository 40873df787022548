"""Each noun has one shape in JSON: what a command prints, and what the page about it answers, over a store full of
everything. A surface may add fields of its own; a field that both have is equal."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.pages import Reader
from tests.support.sites import FP, stocked

from redrive import App
from redrive.cli.opening import load_app
from redrive.presence import HeldMessage, Hung, ProcessCell, QueueWork, WorkerInfo
from redrive.program.main import run
from redrive.stores.sqlite.store import SqliteStore

# Of each noun: the fields that say the same in other words on each surface, and change from one look to the next.
MOVING = {"next", "age_s", "oldest_age_s", "seen_at", "late_s", "command", "at"}

Record = dict[str, Any]


@pytest.fixture
def parts(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    monkeypatch.setenv("REDRIVE_URL", f"sqlite:///{tmp_path / 'work.db'}")
    return stocked(app)


def printed(*words: str) -> Any:
    """What a command prints as JSON."""
    sys.modules.pop("shapes_tasks", None)  # a command closes the store of its app
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run([*words, "-o", "json"])
    return json.loads(out.getvalue())


def by(rows: list[Record], name: str, value: object) -> Record:
    [row] = [row for row in rows if row[name] == value]
    return row


def pair(noun: str, pages: Reader, parts: dict[str, dict[str, str]]) -> list[tuple[str, Record]]:
    """The records of one noun, by where they are."""
    status, home = printed("status"), pages.json("/")
    match noun:
        case "run":
            id = parts["run"]["id"]
            return [
                ("run list", by(printed("run", "list"), "id", id)),
                ("run show", printed("run", "show", id)),
                ("status", by(status["runs"], "id", id)),
                ("/", by(home["runs"], "id", id)),
                ("/runs", by(pages.json("/runs")["runs"], "id", id)),
                ("/runs/ID", pages.json(f"/runs/{id}")),
            ]
        case "queue":
            return [
                ("queue list", by(printed("queue", "list"), "queue", "crm")),
                ("status", by(status["queues"], "queue", "crm")),
                ("/", by(home["queues"], "queue", "crm")),
                ("/queues", by(pages.json("/queues")["queues"], "queue", "crm")),
                ("/queues/crm", pages.json("/queues/crm")),
            ]
        case "failure group":
            return [
                ("dlq groups", by(printed("dlq", "groups"), "fingerprint", FP)),
                ("status", by(status["failures"], "fingerprint", FP)),
                ("/", by(home["groups"], "fingerprint", FP)),
                ("/groups", by(pages.json("/groups")["groups"], "fingerprint", FP)),
            ]
        case "message":
            id = parts["message"]["id"]
            return [
                ("job show", printed("job", "show", id)),
                ("dlq show", printed("dlq", "show", id)),
                ("/messages/ID", pages.json(f"/messages/{id}")),
            ]
        case "dead message":
            id = parts["message"]["id"]
            return [
                ("dlq list", by(printed("dlq", "list"), "id", id)),
                ("/groups/FP", by(pages.json(f"/groups/{FP}")["rows"], "id", id)),
                ("/messages", by(pages.json("/messages")["rows"], "id", id)),
            ]
        case "audit entry":
            return [
                ("audit list", by(printed("dlq", "audit"), "action", "note")),
                ("/audit", by(pages.json("/audit")["entries"], "action", "note")),
                ("/groups/FP", by(pages.json(f"/groups/{FP}")["log"], "action", "note")),
                ("dlq group", by(printed("dlq", "group", FP)["log"], "action", "note")),
            ]
        case "batch":
            id = parts["batch"]["id"]
            return [
                ("batch list", by(printed("batch", "list"), "id", id)),
                ("batch show", printed("batch", "show", id)),
                ("/batches", by(pages.json("/batches")["batches"], "id", id)),
                ("/batches/ID", pages.json(f"/batches/{id}")),
            ]
        case "need":
            return [("status", status["needs"][0]), ("/", home["needs"][0])]
        case "dependency":
            return [
                ("flow list", by(printed("flow", "list"), "dependency", "crm")),
                ("flow show", printed("flow", "show", "crm")),
                ("/", by(home["dependencies"], "dependency", "crm")),
                ("/flow", by(pages.json("/flow")["dependencies"], "dependency", "crm")),
                ("/flow/crm", pages.json("/flow/crm")),
            ]
        case "worker":
            found = [
                ("workers", by(printed("workers"), "name", "vm/a")),
                ("status", by(status["workers"], "name", "vm/a")),
                ("/workers", by(pages.json("/workers")["workers"], "name", "vm/a")),
                ("/workers/NAME", pages.json("/workers/vm%2Fa")),
                ("/queues/crm", by(pages.json("/queues/crm")["workers"], "name", "vm/a")),
            ]
            assert found[0][1]["messages"] and found[0][1]["hung"]
            return found
        case "schedule":
            assert len(pages.json("/schedules")["schedules"]) == 1
            return [
                ("schedule list", by(printed("schedule", "list"), "name", "push")),
                ("status", by(status["schedules"], "name", "push")),
                ("/schedules", by(pages.json("/schedules")["schedules"], "name", "push")),
            ]
    raise AssertionError(noun)


def agree(one: object, other: object) -> bool:
    """Whether two values are equal; a record within them may have more fields on the one side."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(agree(one[name], other[name]) for name in (one.keys() & other.keys()) - {"next"})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(agree, one, other))
    return one == other


NOUNS = (
    "run",
    "queue",
    "failure group",
    "message",
    "dead message",
    "audit entry",
    "need",
    "dependency",
    "worker",
    "batch",
)
TASKS = """
from redrive import App

app = App.from_env()


@app.periodic("@hourly", name="push")
@app.task(name="push", queue="crm")
def push() -> None: ...
"""


@pytest.mark.parametrize("noun", NOUNS)
def test_each_noun_has_one_shape_wherever_json_shows_it(
    noun: str, store: SqliteStore, bare: Reader, parts: dict[str, dict[str, str]], app: App
) -> None:
    if noun == "dependency":
        app.run_worker(drain=True)  # it calls crm, so that the store knows of it
    app.flow.open("crm", reason="their outage", actor="ann")
    if noun == "worker":
        ProcessCell(store).write(busy(store.now_ms()))
    compare(pair(noun, bare, parts))


def test_a_schedule_has_one_shape_wherever_json_shows_it(
    tmp_path: Path, parts: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shapes_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("REDRIVE_APP", "shapes_tasks:app")
    app = load_app("shapes_tasks:app", tmp_path)
    try:
        app.scheduler().step()
        compare(pair("schedule", Reader(app.dashboard()), parts))
    finally:
        app.store.close()


def busy(now_ms: int) -> WorkerInfo:
    """A worker that holds two messages, one of which blocks it."""
    return WorkerInfo(
        name="vm/a", host="vm", pid=1, version="9.9", started_ms=now_ms - 5000, seen_ms=now_ms, held=2, running=1,
        queues=(QueueWork(name="crm", concurrency=20, held=2),),
        messages=(HeldMessage(id="m-1", task="push", since_ms=now_ms - 4000), HeldMessage(id="m-2", task="push")),
        hung=Hung(since_ms=now_ms - 1000, queues=("crm",), task="push", id="m-1"),
    )  # fmt: skip


def compare(records: list[tuple[str, Record]]) -> None:
    """Refuse a record that lacks a field of the first one, or has another value there."""
    first, *others = records
    where, record = first
    for place, other in others:
        both = (record.keys() & other.keys()) - MOVING
        wrong = {name: (record[name], other[name]) for name in both if not agree(record[name], other[name])}
        assert not wrong, f"{place} is not as {where}"
        missing = record.keys() - other.keys()
        assert not missing, f"{place} lacks what {where} has"
