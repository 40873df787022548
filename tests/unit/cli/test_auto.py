"""`redrive dlq auto`: what people and their scripts are shown of the machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Call

from redrive import App, AutoRedrive, Gates
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.auto.runner import AutoRunner


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "work.db")
    yield store
    store.close()


@pytest.fixture
def redrive(store: SqliteStore, redrive: Call) -> Call:
    """Where the store is there already."""
    return redrive


def worked(store: SqliteStore) -> None:
    app = App(store=store)
    app.queue("crm", auto_redrive=AutoRedrive("10m", gates=Gates(window="22:00-06:00")))
    AutoRunner(app).tick()


def test_machines_are_listed_with_their_phase_and_when_they_look_again(redrive: Call, store: SqliteStore) -> None:
    said = redrive("dlq", "auto")
    assert said.code == 0 and said.err.startswith("nothing drives dead messages of sqlite:///work.db back by itself")
    worked(store)
    said = redrive("dlq", "auto", "-o", "table")
    assert [line.split()[:2] for line in said.out.splitlines()] == [["scope", "phase"], ["queue/crm", "asleep"]]
    (row,) = json.loads(redrive("dlq", "auto", "-o", "json").out)
    assert (row["scope"], row["phase"], row["worked"], row["redriven"]) == ("queue/crm", "asleep", True, 0)
    assert redrive("dlq", "auto", "-o", "ids").out == "queue/crm\n"


def test_one_is_paused_and_resumed_with_a_reason_and_its_story_tells(redrive: Call, store: SqliteStore) -> None:
    worked(store)
    said = redrive("dlq", "auto", "crm", "--pause")
    assert said.code == 2 and "error: --reason is missing" in said.err
    said = redrive("dlq", "auto", "crm", "--pause", "--reason", "a fix is on its way", "--actor", "ann", "-o", "json")
    found = json.loads(said.out)
    assert (found["phase"], found["why"], found["auto"]["base"]) == ("paused", "a fix is on its way", "10m")
    said = redrive("dlq", "auto", "queue/crm", "--resume", "--reason", "fixed", "--actor", "bob", "-o", "table")
    lines = said.out.splitlines()
    assert lines[-2].endswith("  paused by ann: a fix is on its way") and lines[-1].endswith("  resumed by bob: fixed")
    assert (
        "base 10m, factor 2, cap 15m, max redrives 5, batch 10, concurrency 5, window 22:00-06:00, "
        "rate 10/s, jitter 0.2"
    ) in said.out
    assert "auto-pause" in redrive("dlq", "audit").out
    said = redrive("dlq", "auto", "cmr")
    assert said.code == 2 and "why: did you mean 'crm'?" in said.err and said.err.rstrip().endswith(" dlq auto")
