"""`redrive schedule …` and `redrive scheduler`, by output, errors and exit codes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.message import Message
from redrive.program.main import run
from redrive.schedule.presence import SchedulerPresence
from redrive.stores.sqlite.store import SqliteStore

PATIENCE_S = 60.0
TASKS = """
from datetime import datetime
from redrive import App

app = App("sqlite:///work.db")
alone = App("memory://")
bare = App("sqlite:///work.db")

@app.periodic("30 2 * * *", tz="Europe/Zurich", queue="night", missed="all")
@app.task(name="nightly")
def nightly(tick: datetime) -> None: ...

@app.periodic(every="200ms", name="beat", missed="all")
def beat() -> None: ...
"""
_modules = itertools.count()
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def redrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `redrive WORDS` here, on an app of its own module; gives code, stdout and stderr."""
    module = f"schedule_tasks_{next(_modules)}"  # one name each: a module is imported once
    (tmp_path / f"{module}.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDRIVE_APP", f"{module}:app")

    def call(*words: str) -> tuple[int, str, str]:
        sys.modules.pop(module, None)  # each command closes its app's store
        code = run(words)
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def rows(answer: tuple[int, str, str]) -> Any:
    code, out, err = answer
    assert (code, err) == (0, ""), err
    return json.loads(out)


def stored(place: Path) -> list[Message]:
    store = SqliteStore(place / "work.db")
    try:
        return store.peek(None, limit=10_000).messages
    finally:
        store.close()


def test_next_shows_utc_and_the_zones_clocks_and_needs_no_store(redrive: Call, tmp_path: Path) -> None:
    found = rows(redrive("schedule", "next", "nightly", "-n", "2", "--after", "2026-03-28T12:00:00Z", "-o", "json"))
    assert found == [
        {"at": "2026-03-29T01:00:00.000Z", "local": "2026-03-29 03:00:00+02:00", "tz": "Europe/Zurich"},
        {"at": "2026-03-30T00:30:00.000Z", "local": "2026-03-30 02:30:00+02:00", "tz": "Europe/Zurich"},
    ]
    assert not (tmp_path / "work.db").exists()


def test_list_of_a_store_that_is_not_there_makes_none(redrive: Call, tmp_path: Path) -> None:
    code, out, err = redrive("schedule", "list", "-o", "ids")
    assert (code, err) == (0, "sqlite:///work.db does not exist yet: nothing was ever enqueued in it\n")
    assert "nightly" in out.split()
    assert not (tmp_path / "work.db").exists()


def test_run_enqueues_one_now(redrive: Call, tmp_path: Path) -> None:
    record = rows(redrive("schedule", "run", "nightly", "-o", "json"))
    (message,) = stored(tmp_path)
    assert (record["id"], record["task"], record["queue"]) == (message.id, "nightly", "night")
    assert message.headers == {"redrive-schedule": "nightly"}


def test_pause_and_resume_by_name_and_list_shows_it(redrive: Call) -> None:
    assert rows(redrive("schedule", "pause", "nightly", "beat", "-o", "json"))[0] == {"name": "nightly", "paused": True}
    assert rows(redrive("schedule", "resume", "beat", "-o", "json")) == [{"name": "beat", "paused": False}]
    nightly, beat = listed(redrive)
    known = {"name": "nightly", "cron": "30 2 * * *", "tz": "Europe/Zurich", "task": "nightly", "queue": "night"}
    assert known.items() <= nightly.items()
    assert (nightly["paused"], nightly["missed"], nightly["last_at"]) == (True, "all", None)
    assert nightly["next_at"].endswith((":30:00.000Z", ":00:00.000Z"))
    assert (beat["paused"], beat["cron"]) == (False, "every 200ms")


def test_list_puts_late_schedules_first_and_says_how_late_they_are(redrive: Call) -> None:
    redrive("schedule", "pause", "beat")
    redrive("schedule", "resume", "beat")
    time.sleep(0.25)  # a tick goes by
    nightly, beat = listed(redrive)
    assert nightly["late_s"] is None
    assert beat["late_s"] > 0
    code, out, err = redrive("schedule", "list", "-o", "table")
    heading, first, second = out.splitlines()
    assert heading.startswith("state") and "beat" in first and "nightly" in second
    assert first.startswith("late ") and ", no scheduler yet" in first
    assert (code, "2 schedules (nightly, beat) have no scheduler" in err) == (0, True)


def test_a_worker_doctor_and_status_warn_of_schedules_until_a_scheduler_was_seen(redrive: Call, tmp_path: Path) -> None:
    redrive("schedule", "run", "nightly")
    assert "warning: 2 schedules (nightly, beat) have no scheduler" in redrive("worker", "--burst", "-q", "no")[2]
    code, out, _ = redrive("doctor")
    assert code == 1 and "2 schedules (nightly, beat) have no scheduler" in out
    code, out, _ = redrive("status", "-o", "json")
    assert code == 1 and "no scheduler runs schedule nightly" in out
    store = SqliteStore(tmp_path / "work.db")
    SchedulerPresence(store).write(["nightly", "beat"], store.now_ms())
    store.close()
    assert "no scheduler" not in redrive("worker", "--burst", "-q", "no")[2]
    code, out, _ = redrive("doctor")
    assert "no scheduler" not in out
    assert "no scheduler" not in redrive("status", "-o", "json")[1]


def listed(redrive: Call) -> tuple[Any, Any]:
    """The rows of nightly and beat."""
    found = {row["name"]: row for row in rows(redrive("schedule", "list", "-o", "json"))}
    return found["nightly"], found["beat"]


@pytest.mark.parametrize("words", [("next",), ("run",), ("pause", "nightly"), ("resume",)])
def test_an_unknown_name_is_told_with_the_near_miss_and_nothing_is_changed(redrive: Call, words: list[str]) -> None:
    code, out, err = redrive("schedule", *words, "beet")
    assert (code, out) == (2, "")
    assert "no schedule 'beet'" in err
    assert "did you mean 'beat'?" in err
    redrive("schedule", "resume", "beat")  # makes the store
    assert not any(row["paused"] for row in rows(redrive("schedule", "list", "-o", "json")))


def test_a_store_alone_has_no_schedules(redrive: Call, tmp_path: Path) -> None:
    redrive("schedule", "run", "beat")
    code, _, err = redrive("schedule", "list", "--url", f"sqlite:///{tmp_path}/work.db")
    assert code == 2
    assert "which app has the schedules?" in err


def test_a_scheduler_needs_a_store_that_others_share(redrive: Call) -> None:
    app = os.environ["REDRIVE_APP"].replace(":app", ":alone")
    code, _, err = redrive("scheduler", app)
    assert code == 4
    assert f"worker {app} --scheduler" in err


def test_a_scheduler_names_what_is_missing(redrive: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    module = os.environ["REDRIVE_APP"].partition(":")[0]
    assert "there is no module" in redrive("scheduler", "nothing_there:app")[2]
    assert "differ" in redrive("scheduler", f"{module}:app", "--app", f"{module}:bare")[2]
    monkeypatch.delenv("REDRIVE_APP")
    code, _, err = redrive("scheduler")
    assert code == 2
    assert "which app has the schedules?" in err


@pytest.mark.parametrize("words", [["scheduler"], ["worker", "--scheduler", "-q", "none"]])
def test_it_enqueues_until_sigterm_and_ends_well(redrive: Call, tmp_path: Path, words: list[str]) -> None:
    argv = [sys.executable, "-m", "redrive", *words, "--log", "json"]
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if '"notice":"tick"' in line:
                    break
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    found = sorted(m.headers["redrive-tick"] for m in stored(tmp_path) if m.task == "beat")
    assert found
    assert len(set(found)) == len(found)


def test_an_app_without_schedules_is_probably_a_slip(redrive: Call, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "redrive", "scheduler", os.environ["REDRIVE_APP"].replace(":app", ":bare")]
    with subprocess.Popen([*argv, "--log", "json"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "has no schedules" in process.stderr.readline()
            assert '"started"' in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
