"""`redrive batch`: what it lists, shows and cancels, and what it says of an id that it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import App, Retry
from redrive.program.main import run

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command on a store with a partial batch and one that waits; its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    app = App("sqlite:///work.db")

    @app.task(name="push", retry=Retry(max_attempts=1))
    def push(n: int) -> None:
        if n == 1:
            raise ValueError("no")

    app.batch([push.draft(n) for n in range(3)], name="import", key="a").enqueue()
    app.run_worker(drain=True)
    app.batch([push.using(delay="1h").draft(n) for n in range(2)], name="sync", key="b").enqueue()
    app.store.close()
    capsys.readouterr()

    def call(*words: str) -> tuple[int, str, str]:
        code = run([*words, "--url", "sqlite:///work.db"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_it_lists_by_name_and_state(call: Call) -> None:
    rows = [json.loads(line) for line in call("batch", "list", "-o", "jsonl")[1].splitlines()]
    assert {(row["name"], row["state"], row["total"], row["open"], row["dead"]) for row in rows} == {
        ("import", "partial", 3, 0, 1),
        ("sync", "running", 2, 2, 0),
    }
    names = call("batch", "list", "--state", "partial", "-o", "jsonl")[1]
    assert [json.loads(line)["name"] for line in names.splitlines()] == ["import"]
    assert call("batch", "list", "--name", "sync", "-o", "ids")[1].strip() in {row["id"] for row in rows}


def test_it_shows_and_cancels_one(call: Call) -> None:
    (id,) = call("batch", "list", "--name", "sync", "-o", "ids")[1].split()
    shown = json.loads(call("batch", "show", id, "-o", "json")[1])
    assert (shown["state"], shown["open"]) == ("running", 2)
    ended = json.loads(call("batch", "cancel", id, "--reason", "wrong", "-o", "json")[1])
    assert (ended["state"], ended["cancelled"], ended["ended_now"]) == ("cancelled", 2, 2)
    (dead,) = call("batch", "list", "--name", "import", "-o", "ids")[1].split()
    _, out, err = call("batch", "cancel", dead, "-o", "json")
    assert "it is given up, and what is dead stays" in err and json.loads(out)["state"] == "cancelled"
    assert len(call("dlq", "list", f"batch:{dead}", "-o", "ids")[1].split()) == 1


def test_a_waived_member_counts_as_done_and_the_audit_log_says_so(call: Call) -> None:
    (id,) = call("batch", "list", "--name", "import", "-o", "ids")[1].split()
    code, _, _ = call("dlq", "discard", f"batch:{id}", "--waive", "--yes", "--reason", "paid by hand")
    assert code == 0
    shown = json.loads(call("batch", "show", id, "-o", "json")[1])
    assert (shown["state"], shown["done"], shown["discarded"]) == ("done", 3, 0)
    (entry,) = [json.loads(line) for line in call("audit", "list", "-o", "jsonl")[1].splitlines()]
    assert (entry["action"], entry["reason"]) == ("discard", "paid by hand") and entry["text"].startswith("waived:")


def test_an_unknown_id_leads_to_the_list(call: Call) -> None:
    code, _, err = call("batch", "show", "nonsense")
    assert code != 0 and "batch nonsense is unknown" in err and "batch list" in err
