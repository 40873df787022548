"""Each noun has one shape in JSON: what a command prints, and what the page about it answers, over a store full of
everything. A surface may add fields of its own; a field that both have is equal."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.pages import Reader
from tests.support.sites import FP, stocked

from redrive import App
from redrive.program.main import run
from redrive.stores.sqlite.store import SqliteStore

# Of each noun: the fields that say the same in other words on each surface, and change from one look to the next.
MOVING = {"next", "age_s", "oldest_age_s", "seen_at", "late_s", "command", "at"}

Record = dict[str, Any]


@pytest.fixture
def parts(app: App) -> dict[str, dict[str, str]]:
    return stocked(app)


def printed(tmp_path: Path, *words: str) -> Any:
    """What a command prints as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run([*words, "-o", "json", "--url", f"sqlite:///{tmp_path / 'work.db'}"])
    return json.loads(out.getvalue())


def by(rows: list[Record], name: str, value: object) -> Record:
    [row] = [row for row in rows if row[name] == value]
    return row


def pair(noun: str, tmp_path: Path, pages: Reader, parts: dict[str, dict[str, str]]) -> list[tuple[str, Record]]:
    """The records of one noun, by where they are."""
    status, home = printed(tmp_path, "status"), pages.json("/")
    match noun:
        case "run":
            id = parts["run"]["id"]
            return [
                ("run list", by(printed(tmp_path, "run", "list"), "id", id)),
                ("run show", printed(tmp_path, "run", "show", id)),
                ("status", by(status["runs"], "id", id)),
                ("/", by(home["runs"], "id", id)),
                ("/runs", by(pages.json("/runs")["runs"], "id", id)),
                ("/runs/ID", pages.json(f"/runs/{id}")),
            ]
        case "queue":
            return [
                ("queue list", by(printed(tmp_path, "queue", "list"), "queue", "crm")),
                ("status", by(status["queues"], "queue", "crm")),
                ("/", by(home["queues"], "queue", "crm")),
                ("/queues", by(pages.json("/queues")["queues"], "queue", "crm")),
                ("/queues/crm", pages.json("/queues/crm")),
            ]
        case "failure group":
            return [
                ("dlq groups", by(printed(tmp_path, "dlq", "groups"), "fingerprint", FP)),
                ("status", by(status["failures"], "fingerprint", FP)),
                ("/", by(home["groups"], "fingerprint", FP)),
                ("/groups", by(pages.json("/groups")["groups"], "fingerprint", FP)),
            ]
        case "message":
            id = parts["message"]["id"]
            return [
                ("job show", printed(tmp_path, "job", "show", id)),
                ("dlq show", printed(tmp_path, "dlq", "show", id)),
                ("/messages/ID", pages.json(f"/messages/{id}")),
            ]
        case "dead message":
            id = parts["message"]["id"]
            return [
                ("dlq list", by(printed(tmp_path, "dlq", "list"), "id", id)),
                ("/groups/FP", by(pages.json(f"/groups/{FP}")["rows"], "id", id)),
                ("/messages", by(pages.json("/messages")["rows"], "id", id)),
            ]
        case "audit entry":
            return [
                ("audit list", by(printed(tmp_path, "dlq", "audit"), "action", "note")),
                ("/audit", by(pages.json("/audit")["entries"], "action", "note")),
                ("/groups/FP", by(pages.json(f"/groups/{FP}")["log"], "action", "note")),
                ("dlq group", by(printed(tmp_path, "dlq", "group", FP)["log"], "action", "note")),
            ]
        case "need":
            return [("status", status["needs"][0]), ("/", home["needs"][0])]
        case "dependency":
            return [
                ("flow list", by(printed(tmp_path, "flow", "list"), "dependency", "crm")),
                ("flow show", printed(tmp_path, "flow", "show", "crm")),
                ("/flow", by(pages.json("/flow")["dependencies"], "dependency", "crm")),
                ("/flow/crm", pages.json("/flow/crm")),
            ]
    raise AssertionError(noun)


def agree(one: object, other: object) -> bool:
    """Whether two values are equal; a record within them may have more fields on the one side."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(agree(one[name], other[name]) for name in (one.keys() & other.keys()) - {"next"})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(agree, one, other))
    return one == other


NOUNS = ("run", "queue", "failure group", "message", "dead message", "audit entry", "need", "dependency")


@pytest.mark.parametrize("noun", NOUNS)
def test_each_noun_has_one_shape_wherever_json_shows_it(
    noun: str, tmp_path: Path, store: SqliteStore, bare: Reader, parts: dict[str, dict[str, str]], app: App
) -> None:
    if noun == "dependency":
        app.run_worker(drain=True)  # it calls crm, so that the store knows of it
    app.flow.open("crm", reason="their outage", actor="ann")
    first, *others = pair(noun, tmp_path, bare, parts)
    where, record = first
    for place, other in others:
        both = (record.keys() & other.keys()) - MOVING
        wrong = {name: (record[name], other[name]) for name in both if not agree(record[name], other[name])}
        assert not wrong, f"{place} is not as {where}"
        missing = record.keys() - other.keys()
        assert not missing, f"{place} lacks what {where} has"
