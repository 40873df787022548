"""On a terminal, `redrive enqueue` warns of a queue that nothing seems to run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from redrive.cli import enqueue as command
from redrive.message import ClaimRequest
from redrive.presence import ProcessCell, QueueWork, WorkerInfo
from redrive.program.main import run
from redrive.stores.sqlite.store import SqliteStore

APP = """
from redrive import App

app = App("sqlite:///work.db")


@app.task(name="crm.push", queue="crm")
def push(n: int = 0) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "UNWORKED_S", 0)
    (tmp_path / "worked.py").write_text(APP)
    return tmp_path


def warnings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str, tty: bool = True) -> str:
    sys.modules.pop("worked", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty)
    assert run(["enqueue", "crm.push", *words, "--app", "worked:app"]) == 0
    return capsys.readouterr().err


def test_a_queue_that_no_living_worker_runs_is_warned_of_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "UNWORKED_S", 1000)
    said = warnings(capsys, monkeypatch)
    assert said.startswith("no worker runs yet; to start one: "), "before the first worker it is no alarm"
    assert said.rstrip().endswith(" worker worked:app")
    store = SqliteStore(folder / "work.db")
    other = WorkerInfo(name="vm/worker-1", seen_ms=store.now_ms(), queues=(QueueWork(name="mail", concurrency=1),))
    ProcessCell(store).write(other)
    said = warnings(capsys, monkeypatch)
    assert said.startswith("warning: no worker that is alive runs queue 'crm'; to start one: ")
    assert said.rstrip().endswith(" worker worked:app")
    idle = WorkerInfo(name="vm/worker-0", seen_ms=store.now_ms(), queues=(QueueWork(name="crm", concurrency=1),))
    ProcessCell(store).write(idle)
    assert warnings(capsys, monkeypatch) == ""
    assert "runs queue 'other' only if it is named: " in warnings(capsys, monkeypatch, "-q", "other")
    store.configure("crm", paused=True)
    assert "warning: queue 'crm' is paused; to go on: " in warnings(capsys, monkeypatch)
    store.close()


def test_without_telemetry_a_queue_that_nothing_seems_to_run_is_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_TELEMETRY", "false")
    said = warnings(capsys, monkeypatch)
    assert said.startswith("warning: no worker seems to run queue 'crm': 1 due, the oldest for ")
    assert said.rstrip().endswith(" worker worked:app")
    assert warnings(capsys, monkeypatch, tty=False) == ""
    store = SqliteStore(folder / "work.db")
    store.exchange([], [ClaimRequest("crm", 1, 60_000)])
    assert warnings(capsys, monkeypatch) == ""  # a worker runs one
    store.close()
