"""What a worker says of its set-up when it starts and of what it waits for: dependencies that nobody names, drains."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support.commands import Call

from redrive import App
from redrive.cli.terminal.holding import noting_waits
from redrive.message import Draft
from redrive.worker.preflight import advice, unmatched

TYPO = """
from redrive import App

app = App("sqlite:///work.db")
app.dependency("stripe", rate="100/s")


@app.task(name="order.charge", dependency="strpe")
def charge(order: int = 1) -> None: ...
"""
TOLD = "dependency 'stripe' is declared, and no task names it"
MEANT = "task order.charge names 'strpe', which is not declared; did you mean 'stripe'?"


def test_a_misspelled_dependency_is_named_when_a_worker_starts_and_by_the_doctor(
    redrive: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typo.py").write_text(TYPO)
    monkeypatch.syspath_prepend(tmp_path)
    App("sqlite:///work.db").store.close()
    said = redrive("doctor", "--app", "typo:app")
    assert said.code == 1 and TOLD in said.out and MEANT in said.out


def test_dependencies_that_tasks_name_or_that_nobody_declares_are_no_matter(app: App) -> None:
    app.dependency("stripe")
    app.dependency("order.refund")
    app.task(name="order.charge", dependency="stripe")(lambda: None)
    app.task(name="order.refund")(lambda: None)
    app.task(name="mail.send", dependency="smtp")(lambda: None)
    assert unmatched(app) == []
    app.dependency("billing")
    assert unmatched(app) == advice(app, app.store) != []


def test_a_drain_says_after_a_while_what_it_waits_for_and_why(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    app.task(name="push", queue="crm")(lambda: None)
    app.store.put([Draft(task="gone", queue="crm", delay_ms=3_600_000)] * 2)
    told, end_s = "", time.monotonic() + 30
    with noting_waits(app.store, app, ["crm", "idle"], after_s=0.01):
        while not told and time.monotonic() < end_s:
            told += capsys.readouterr().err
    assert "the drain waits for queue 'crm': 2 for later; " in told and "has no task 'gone'" in told
    assert "idle" not in told
