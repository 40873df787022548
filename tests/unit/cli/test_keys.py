"""`redrive keys`, and what other commands say of what they cannot open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.commands import Call

from redrive import App, Keys, Retry
from redrive.message import Lane

SECRETS = {"new": "A" * 43, "old": "B" * 42 + "A"}
CANARY = "canary-4111-1111"


def has(monkeypatch: pytest.MonkeyPatch, *ids: str) -> None:
    monkeypatch.setenv("REDRIVE_KEYS", ",".join(f"{id}:{SECRETS[id]}" for id in ids))


@pytest.fixture
def dead(redrive: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dead letter in `work.db`, encrypted with the old key; the environment has none. Its id."""
    has(monkeypatch, "old")
    app = App("sqlite:///work.db", encrypt=Keys.from_env())

    @app.task(name="push", retry=Retry(max_attempts=1))
    def push(card: str) -> None:
        raise ValueError(f"declined {card}")

    push.enqueue(CANARY)
    app.run_worker(burst=True)
    (message,) = app.store.peek(Lane.DEAD).messages
    app.store.close()
    monkeypatch.delenv("REDRIVE_KEYS")
    return message.id


def test_a_new_key_is_one_that_the_environment_takes(redrive: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (redrive("keys", "new", "2026-11").out.strip() for _ in range(2))
    assert first.startswith("2026-11:") and first != second
    monkeypatch.setenv("REDRIVE_KEYS", first)
    assert Keys.from_env().write == "2026-11"


def test_status_counts_what_each_key_encrypts(redrive: Call, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, "new", "old")
    said = redrive("keys", "status", "-o", "json")
    rows = {row["key"]: row for row in json.loads(said.out)}
    assert said.code == 0 and rows["new"]["state"] == "writes" and rows["new"]["bodies"] == 0
    assert (rows["old"]["state"], rows["old"]["bodies"], rows["old"]["texts"]) == ("in use", 1, 2)
    redrive("dlq", "discard", dead, "--reason", "gone", "--yes")
    rows = {row["key"]: row for row in json.loads(redrive("keys", "status", "-o", "json").out)}
    assert rows.get("old", {"state": "unused"})["state"] == "unused"


def test_status_exits_1_where_a_key_that_is_needed_is_not_here(
    redrive: Call, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ids in ((), ("new",)):
        if ids:
            has(monkeypatch, *ids)
        said = redrive("keys", "status", "-o", "json")
        states = {row["key"]: row["state"] for row in json.loads(said.out)}
        assert said.code == 1 and states["old"] == "missing" and "not here: old" in said.err


def test_show_names_the_key_and_shows_no_envelope(redrive: Call, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = redrive("dlq", "show", dead, "-o", "json").record
    assert record["body"] == {"encrypted": "old"}
    assert record["faults"][0]["text"] == "[encrypted with key old]" and record["faults"][0]["error"] == "ValueError"
    assert "sealed:" not in json.dumps(record)
    has(monkeypatch, "new", "old")
    record = redrive("dlq", "show", dead, "-o", "json").record
    assert record["body"] == {"card": CANARY} and CANARY in record["faults"][0]["text"]


def test_lists_and_groups_go_without_the_key(redrive: Call, dead: str) -> None:
    for words in (("dlq", "list"), ("dlq", "groups"), ("dlq", "list", "error:ValueError")):
        said = redrive(*words, "-o", "json")
        assert said.code == 0 and "ValueError" in said.out and "sealed:" not in said.out, words


def test_selecting_arguments_says_why_not(redrive: Call, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = redrive("dlq", "list", "args.card:x")
    assert said.code != 0 and "encrypted with key 'old'" in said.err and "REDRIVE_KEYS" in said.err
    has(monkeypatch, "old")
    assert dead in redrive("dlq", "list", f"args.card:{CANARY}", "-o", "ids").out


def test_an_edit_without_the_key_is_refused(redrive: Call, dead: str) -> None:
    said = redrive("dlq", "edit", dead, "--set", "card=x", "--reason", "mended", "--unchecked", "--yes")
    assert said.code != 0 and CANARY not in said.err and "encrypted" in said.err


def test_export_and_import_carry_the_envelope(redrive: Call, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert redrive("dlq", "export", "--all", "-f", "dead.jsonl").code == 0
    assert CANARY not in Path("dead.jsonl").read_text()
    redrive("dlq", "discard", dead, "--reason", "carried over", "--yes")
    assert redrive("dlq", "import", "dead.jsonl", "--reason", "back again").code == 0
    has(monkeypatch, "old")
    assert redrive("dlq", "show", dead, "-o", "json").record["body"] == {"card": CANARY}


def test_keys_that_cannot_be_read_are_said_and_not_shown(
    redrive: Call, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_KEYS", "k:notbase64!!")
    said = redrive("keys", "status")
    assert said.code != 0 and "REDRIVE_KEYS" in said.err and "notbase64" not in said.err
