"""`redrive dlq edit, discard, quarantine, readmit, export, import`: as people type them and as scripts read them."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Draft
from redrive.audit.actor import user
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Lane, Settlement
from redrive.program.main import run
from redrive.stores.sqlite.store import SqliteStore

Cli = Callable[..., tuple[int, str, str]]
TASKS = """
from redrive import App

app = App("sqlite:///work.db")

@app.task(name="push")
def push(record_id: int, *, token: str = "") -> None: ...
"""
BODY = b'{"record_id":"x","token":"s3cret"}'
_modules = itertools.count()


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three dead messages in the store of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    store = SqliteStore(tmp_path / "work.db")
    ids = [put.id for put in store.put([Draft(task="push", body=BODY) for _ in range(3)])]
    fault = Fault(Kind.PERMANENT, "ValueError", "no number", "ab" * 8, attempt=1, worker="w")
    taken = store.exchange([], [ClaimRequest("default", 3, 30_000)]).deliveries
    store.exchange([Settlement(each.receipt, DeadLetter("permanent"), fault) for each in taken], [])
    store.close()
    return ids


@pytest.fixture
def cli(ids: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: str, where: str = "") -> tuple[int, str, str]:
        module = f"mend_tasks_{next(_modules)}"  # one name each: a module is imported once
        (tmp_path / f"{module}.py").write_text(TASKS)
        code = run(["dlq", *words, where or f"--app={module}:app"])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def record(cli: Cli, *words: str) -> Any:
    code, out, err = cli(*words, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def counts(tmp_path: Path) -> tuple[int, int, int]:
    store = SqliteStore(tmp_path / "work.db")
    found = store.counts()
    store.close()
    return found.ready, found.dead, found.quarantine


def test_an_edit_says_what_took_whose_place_and_hides_secrets(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    done = record(
        cli, "edit", ids[0], "--set", "record_id=7", "--header", "by=me", "--reason", "typo", "--actor", "ann"
    )
    assert done["replaces"] == ids[0] and '+  "record_id": 7,' in done["diff"] and "s3cret" not in done["diff"]
    assert counts(tmp_path) == (1, 2, 0)
    code, _, err = cli("show", ids[0])
    assert code == 1 and f"was edited: {done['id']} took its place" in err and "typo (ann" in err
    assert cli("edit", ids[0], "--set", "record_id=7", "--reason", "again")[0] == 1
    assert [(e["action"], e["about"]) for e in record(cli, "audit", "--id", done["id"])] == [("edit", ids[0])]


def test_an_edit_that_does_not_fit_is_refused_and_leads_on(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    code, _, err = cli("edit", ids[0], "--set", "record_id=seven", "--reason", "typo")
    assert code == 4 and "does not fit push" in err and f"dlq show {ids[0]}" in err
    code, _, err = cli("edit", ids[0], "--set", "record_id=7", "--reason", "x", where="--url=sqlite:///work.db")
    assert code == 4 and "is not known without its app" in err and "--unchecked" in err
    words = ("edit", ids[0], "--set", "record_id=7", "--unchecked", "--reason", "x")
    assert cli(*words, where="--url=sqlite:///work.db")[0] == 0
    assert counts(tmp_path) == (1, 2, 0)


def test_an_edit_takes_a_whole_body_from_a_file(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text('{"record_id": 7}')
    new = record(cli, "edit", ids[0], "--body", "body.json", "--reason", "typo")["id"]
    store = SqliteStore(tmp_path / "work.db")
    message = store.find([new])[0]
    store.close()
    assert message is not None and message.body == b'{"record_id": 7}'


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "record_id=7"),
        ("--set", "record_id", "--reason", "x"),
        ("--set", "=7", "--reason", "x"),
        ("--reason", "x"),
        ("--unset", "token", "--body", "work.db", "--reason", "x"),
    ],
)
def test_an_edit_that_cannot_be_meant_is_a_usage_error(
    cli: Cli, ids: list[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert cli("edit", ids[0], *words)[0] == 2
    assert counts(tmp_path) == (0, 3, 0)


def test_a_dry_run_shows_the_difference_and_changes_nothing(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    code, _, err = cli("edit", ids[0], "--set", "record_id=7", "--set", "token=new", "--dry-run")
    assert code == 0 and '+  "token": "***2"' in err and counts(tmp_path) == (0, 3, 0)


def test_a_discard_must_be_confirmed_and_counts_first(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    code, _, err = cli("discard", "task:push", "--reason", "noise")
    assert code == 4 and "3 dead messages would be discarded" in err and counts(tmp_path) == (0, 3, 0)
    code, out, err = cli("discard", ids[0], "0199f3a1-0000-7000-8000-000000000001", "--reason", "noise", "--yes")
    assert code == 5 and "error: 1 of 2 messages were not discarded\nwhy: 1 discarded; 1 unknown\n" in err
    assert cli("discard", ids[0], "--reason", "noise", "--yes")[0] == 1
    code, out, _ = cli("discard", "--all", "--reason", "noise", "--yes", "-o", "ids")
    assert code == 0 and sorted(out.split()) == sorted(ids[1:])
    code, _, err = cli("discard", "--all", "--reason", "noise", "--yes")
    assert code == 1 and "nothing is dead in sqlite:///work.db" in err
    assert [entry["count"] for entry in record(cli, "audit")] == [2, 1]


def test_a_discard_without_a_choice_or_a_reason_is_a_usage_error(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    for words in (["--reason", "x"], ["--all"], ["--all", "--reason", " "], ["queu:x", "--reason", "x"]):
        assert cli("discard", *words, "--yes")[0] == 2
    assert counts(tmp_path) == (0, 3, 0)


def test_to_quarantine_and_back_by_id_by_selector_and_all(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    assert cli("quarantine", ids[0], "--reason", "poison")[0] == 0
    assert cli("quarantine", "task:push", "--reason", "poison")[0] == 0 and counts(tmp_path) == (0, 0, 3)
    assert cli("readmit", ids[0], "--reason", "fixed")[0] == 0 and counts(tmp_path) == (0, 1, 2)
    code, _, err = cli("readmit", ids[0], "--reason", "fixed")
    assert code == 1 and "it is no longer in quarantine" in err
    assert cli("readmit", "task:push", "--reason", "fixed")[2] == "2 readmitted\n" and counts(tmp_path) == (0, 3, 0)


def test_the_story_of_a_message_is_told_in_order(cli: Cli, ids: list[str]) -> None:
    cli("quarantine", ids[0], "--reason", "poison", "--actor", "ann")
    cli("readmit", ids[0], "--reason", "fixed", "--actor", "bob")
    story = record(cli, "show", ids[0])["timeline"]
    assert {(moment["what"], moment["claimed"]) for moment in story} >= {("quarantine", "ann"), ("readmit", "bob")}
    table = cli("show", ids[0], "-o", "table")[1]
    assert table.startswith("error    ValueError: no number\n") and "attempt 1 on w: permanent, the same error" in table
    assert f"readmit by bob ({user()}): fixed" in table


def test_what_is_exported_is_imported_elsewhere_and_run_there(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    cli("quarantine", ids[0], "--reason", "poison")
    code, _, err = cli("export", *ids, "-f", "dead.jsonl", "--reveal", "--reason", "to find out why")
    assert code == 0 and "3 exported to dead.jsonl" in err and "hidden" not in err
    laptop = "--url=sqlite:///laptop.db"
    code, out, err = cli("import", "dead.jsonl", "--reason", "look", "-o", "ids", where=laptop)
    assert code == 0 and sorted(out.split()) == sorted(ids) and "3 imported" in err
    code, _, err = cli("import", "dead.jsonl", "--reason", "look", where=laptop)
    assert code == 1 and "3 held" in err
    store = SqliteStore(tmp_path / "laptop.db")
    assert [m.lane for m in store.find(ids) if m is not None] == [Lane.QUARANTINE, Lane.DEAD, Lane.DEAD]
    store.close()
    assert counts(tmp_path) == (0, 2, 1)


def test_a_damaged_line_is_named_and_stops_the_import_unless_told(cli: Cli, ids: list[str], tmp_path: Path) -> None:
    cli("export", "--all", "-f", "dead.jsonl", "--reveal")
    lines = (tmp_path / "dead.jsonl").read_text().splitlines()
    (tmp_path / "bad.jsonl").write_text("\n".join([lines[0], lines[1][:-9], lines[2]]) + "\n")
    laptop = "--url=sqlite:///laptop.db"
    code, out, err = cli("import", "bad.jsonl", "--reason", "look", where=laptop)
    assert code == 4 and not out and "line 2: it is not JSON" in err and "--skip-damaged" in err
    code, out, err = cli("import", "bad.jsonl", "--reason", "look", "--skip-damaged", "-o", "ids", where=laptop)
    assert code == 5 and len(out.split()) == 2 and "line 2: it is not JSON" in err


def test_an_export_of_what_is_not_dead_says_so(cli: Cli, ids: list[str]) -> None:
    unknown = "0199f3a1-0000-7000-8000-000000000001"
    assert cli("export", unknown, "-f", "x")[0] == 1
    code, _, err = cli("export", ids[0], unknown, "-f", "x")
    assert code == 5 and "1 of 2 were not exported" in err


def test_what_is_asked_again_can_be_pasted(cli: Cli, ids: list[str]) -> None:
    where = "--url=sqlite:///work.db"
    code, _, err = cli("discard", "age:<6h", "task:push", "--reason", "nobody's", where=where)
    words = shlex.split(err.splitlines()[-1].partition(" dlq ")[2])
    assert code == 4
    assert words == ["discard", "age:<6h", "task:push", "--reason", "nobody's", "--url=sqlite:///work.db", "--yes"]
    Path("my dead.jsonl").write_text("{}\n")
    code, _, err = cli("import", "my dead.jsonl", "--reason", "to look", where=where)
    words = shlex.split(err.splitlines()[-1].partition(" dlq ")[2])
    assert code == 4 and words[:4] == ["import", "my dead.jsonl", "--reason", "to look"] and "--skip-damaged" in words


def test_an_export_that_cannot_be_written_is_no_mistake_of_redrive(cli: Cli) -> None:
    code, _, err = cli("export", "--all", "-f", "nowhere/dead.jsonl")
    assert code == 1 and err.startswith("error: nowhere/dead.jsonl cannot be written: No such file or directory\nwhy: ")


def test_an_edit_of_what_is_dead_no_more_leads_to_where_it_is(cli: Cli, ids: list[str]) -> None:
    assert cli("retry", ids[0])[0] == 0
    code, _, err = cli("edit", ids[0], "--set", "record_id=1", "--reason", "typo")
    assert code == 4 and f" job show {ids[0]} " in err.splitlines()[-1]
