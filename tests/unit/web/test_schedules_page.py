"""The page of schedules: words, next times with a note when the clocks change, and its actions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.support.pages import Reader

from redrive import App
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.web import User


def nightly(app: App) -> None:
    @app.periodic("30 3 * * 1-5", tz="Europe/Berlin", missed="all", jitter="1m")
    @app.task(name="nightly", queue="mail")
    def nightly() -> None: ...


def test_it_has_the_rows_of_the_command_line_in_words_and_with_the_next_times(app: App, pages: Reader) -> None:
    nightly(app)
    (found,) = pages.json("/schedules")["schedules"]
    assert (found["name"], found["cron"], found["tz"]) == ("nightly", "30 3 * * 1-5", "Europe/Berlin")
    assert (found["task"], found["queue"], found["missed"], found["jitter_s"]) == ("nightly", "mail", "all", 60)
    assert found["words"] == "at 03:30 on Monday to Friday" and found["late"] is True
    local = [at.isoformat(sep=" ") for at in app.schedules["nightly"].next(5)]
    assert [each["local"] for each in found["times"]] == local and found["next_at"] == found["times"][0]["at"]
    text = pages.text("/schedules")
    assert "At 03:30 on Monday to Friday, Europe/Berlin · 30 3 * * 1-5" in text and local[4] in text
    assert "has no scheduler" in text


def test_a_time_after_the_clocks_change_says_so() -> None:
    clock = ManualClock(round(datetime(2026, 10, 23, tzinfo=UTC).timestamp() * 1000))
    app = App(store=MemoryStore(clock))
    nightly(app)
    (found,) = Reader(app.dashboard()).json("/schedules")["schedules"]
    notes = [(each["local"][:10], each["note"]) for each in found["times"]]
    assert notes[:3] == [
        ("2026-10-23", None),
        ("2026-10-26", "the clocks go back by 1h before this one"),
        ("2026-10-27", None),
    ]


def test_it_is_paused_resumed_and_run_as_by_the_command_line(app: App, pages: Reader) -> None:
    nightly(app)
    assert pages.do("pause-schedule", schedule="nightly", reason="holiday")["paused"] is True
    state = app.schedules["nightly"].state
    assert state is not None and state.paused
    (row,) = pages.json("/schedules")["schedules"]
    assert row["paused"] and row["state"] == "paused" and "Resume" in pages.text("/schedules")
    assert pages.do("resume-schedule", schedule="nightly")["paused"] is False
    done = pages.do("run-schedule", schedule="nightly", reason="now")
    message = app.store.find([done["id"]])[0]
    assert message is not None and (message.task, message.queue) == ("nightly", "mail")
    told = [(entry.action, entry.about, entry.reason) for entry in app.audit]
    assert told == [
        ("run", "schedule/nightly", "now"),
        ("resume", "schedule/nightly", ""),
        ("pause", "schedule/nightly", "holiday"),
    ]


@pytest.mark.parametrize("action", ["run-schedule", "pause-schedule", "resume-schedule"])
def test_an_unknown_schedule_is_refused_with_the_nearest(app: App, pages: Reader, bare: Reader, action: str) -> None:
    nightly(app)
    refused = pages.do(action, 404, schedule="nightli")
    assert refused["why"] == "did you mean 'nightly'?" and [*app.audit] == []
    assert "no app is named" in bare.do(action, 404, schedule="nightly")["why"]


def test_a_button_needs_its_permission(app: App) -> None:
    nightly(app)
    pages = Reader(app.dashboard(authorize=lambda request: User("bob", frozenset(["view", "pause"]))))
    page = pages.html("/schedules")
    assert "/do/pause-schedule" in page and "/do/run-schedule" not in page
    pages.do("run-schedule", 403, schedule="nightly")
    assert app.store.counts().ready == 0


def test_the_runs_of_the_day_are_those_of_history(app: App, pages: Reader) -> None:
    nightly(app)
    app.schedules["nightly"].run()
    app.run_worker(["mail"], burst=True)
    assert app.history(None, "nightly").total.outcomes["done"] == 1
    (row,) = pages.json("/schedules")["schedules"]
    assert row["past"]["done"] == 1 and row["past"]["dead"] == 0


def test_without_an_app_it_says_how_to_name_one(bare: Reader) -> None:
    found = bare.json("/schedules")
    assert found["schedules"] == [] and found["command"] == "redrive web --app tasks:app"
    assert "declared in an app" in bare.text("/schedules")


def test_an_app_without_schedules_says_so(pages: Reader) -> None:
    assert "declares no schedules" in pages.text("/schedules")
