"""Completion of names: from the app and the store, bounded, and never a line too many on the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.cli import completing
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Draft, Settlement
from redrive.program.main import cli
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.dlq import DeadLetters

APP = """
from redrive import App

print("an app that prints")
app = App("sqlite:///work.db")
app.dependency("stripe")


@app.task(name="crm.push", queue="crm", dependency="stripe")
def push(n: int) -> None: ...


@app.periodic("@daily", name="nightly")
@app.task(name="mail.send", queue="mail")
def send() -> None: ...
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a plan of a store with one dead message, and one in a queue whose name a shell would run."""
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("completed", None)
    (tmp_path / "completed.py").write_text(APP)
    store = SqliteStore(tmp_path / "work.db")
    store.put([Draft(task="old", queue="legacy"), Draft(task="old", queue="$(reboot)")])
    receipt = store.exchange([], [ClaimRequest("legacy", 1, 60_000)]).deliveries[0].receipt
    fault = Fault(Kind.PERMANENT, "ValueError", "no such account", "f00d", ("ValueError",))
    store.exchange([Settlement(receipt, DeadLetter("permanent"), fault)], [])
    id = DeadLetters(store).select("queue:legacy").plan().id
    store.close()
    return id


def completed(*words: str) -> list[str]:
    *args, incomplete = words
    names = completing._Names(cli, {}, "redrive", "_REDRIVE_COMPLETE")
    at = len(args) - args[-1].startswith("--")
    return [
        item.value for item in names.get_completions([*args[:at], "--app", "completed:app", *args[at:]], incomplete)
    ]


def test_names_of_the_app_and_of_its_store_are_completed(plan: str) -> None:
    assert completed("queue", "pause", "") == ["crm", "mail", "legacy"]
    assert completed("worker", "--queues", "crm,m") == ["crm,mail"]
    assert completed("enqueue", "c") == ["crm.push"]
    assert completed("enqueue", "./b") == ["./b"]  # a file, which the shell completes
    assert completed("flow", "show", "") == ["stripe"]
    assert completed("schedule", "pause", "n") == ["nightly"]
    assert completed("dlq", "group", "") == completed("dlq", "list", "--fingerprint", "f0") == ["f00d"]
    assert completed("dlq", "apply", "") == [plan]
    assert completed("dlq", "list", "--rea") == ["--reason"]


@pytest.mark.parametrize(
    "app", ["raise SystemExit('broken')", "import time; print('slow'); time.sleep(60)", "app = 1", "syntax error"]
)
def test_an_app_that_fails_prints_or_takes_long_completes_to_nothing(app: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(app)
    words = {"COMP_WORDS": "redrive enqueue --app bad:app ", "COMP_CWORD": "4"}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    done = subprocess.run(
        [Path(sys.executable).parent / "redrive"],
        env=plain | words | {"_REDRIVE_COMPLETE": "bash_complete"},
        cwd=tmp_path, capture_output=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"file,", b"")
