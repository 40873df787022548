"""What a worker says of its set-up when it starts and of what it waits for: dependencies that nobody names, drains."""

from __future__ import annotations

import io
import sys
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
MEANT = "task order.charge names dependency 'strpe', which is not declared; did you mean 'stripe'?"


def test_a_misspelled_dependency_is_named_when_a_worker_starts_and_by_the_doctor(
    redrive: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typo.py").write_text(TYPO)
    monkeypatch.syspath_prepend(tmp_path)
    App("sqlite:///work.db").store.close()
    said = redrive("doctor", "--app", "typo:app")
    assert said.code == 1 and TOLD in said.out and MEANT in said.out


def test_a_task_that_misspells_what_others_name_is_named_by_the_doctor_and_where_its_policy_is_shown(
    app: App, redrive: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.dependency("stripe", rate="100/s")
    app.task(name="refund", dependency="stripe")(lambda: None)
    app.task(name="charge", dependency="strpe")(lambda: None)
    app.task(name="mail", dependency="sendgrid")(lambda: None)
    (told,) = unmatched(app)
    assert told.startswith("task charge names dependency 'strpe', which is not declared; did you mean 'stripe'?")
    assert unmatched(app, "charge") == [told] and unmatched(app, "refund") == unmatched(app, "mail") == []
    app.dependency("strpe")
    assert unmatched(app) == []
    (tmp_path / "typo.py").write_text(TYPO)
    monkeypatch.syspath_prepend(tmp_path)
    assert MEANT in redrive("policy", "preview", "--app", "typo:app", "--task", "order.charge").err


def test_the_doctor_checks_an_app_before_its_first_message(
    redrive: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "early.py").write_text(TYPO.replace("strpe", "stripe"))
    monkeypatch.syspath_prepend(tmp_path)
    said = redrive("doctor", "--app", "early:app")
    assert said.code == 0 and "does not exist yet" in said.err and "nothing to mend about the app" in said.err
    (tmp_path / "late.py").write_text(TYPO)
    said = redrive("doctor", "--app", "late:app")
    assert said.code == 1 and MEANT in said.out
    assert not (tmp_path / "work.db").exists()


def test_dependencies_that_tasks_name_or_that_nobody_declares_are_no_matter(app: App) -> None:
    app.dependency("stripe")
    app.dependency("order.refund")
    app.task(name="order.charge", dependency="stripe")(lambda: None)
    app.task(name="order.refund")(lambda: None)
    app.task(name="mail.send", dependency="smtp")(lambda: None)
    assert unmatched(app) == []
    app.dependency("billing")
    assert unmatched(app) == advice(app, app.store) != []


def test_a_drain_says_after_a_while_what_it_waits_for_and_why(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.task(name="push", queue="crm")(lambda: None)
    app.store.put([Draft(task="gone", queue="crm", delay_ms=3_600_000)] * 2)
    said, end_s = io.StringIO(), time.monotonic() + 30  # what capsys drops while it is read would be missed
    monkeypatch.setattr(sys, "stderr", said)
    with noting_waits(app.store, app, ["crm", "idle"], after_s=0.01):
        while "\n" not in said.getvalue() and time.monotonic() < end_s:
            time.sleep(0.005)
    told = said.getvalue()
    assert "the drain waits for queue 'crm': 2 for later; " in told and "has no task 'gone'" in told
    assert "idle" not in told
