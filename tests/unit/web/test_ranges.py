"""Charts of a range in the address, what they are compared with, and the marks of releases."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.support.browsing.history import write_history
from tests.support.pages import Reader

from redrive import App
from redrive.triage.group_states import begin_release

HOUR_MS = 3_600_000


def at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")


@pytest.mark.parametrize("path", ["/?", "/tasks/crm.push?", "/queues/crm?", "/?queue=crm&"])
def test_range_shows_the_runs_between_its_ends(app: App, pages: Reader, path: str) -> None:
    write_history(app.store)
    app.queue("crm")
    app.task(name="crm.push", queue="crm")(lambda: None)
    end_ms = app.store.now_ms() // HOUR_MS * HOUR_MS - HOUR_MS
    whole = pages.json(f"{path}from={at(end_ms - 2 * HOUR_MS)}&to={at(end_ms)}")["past"]
    first = pages.json(f"{path}from={at(end_ms - 2 * HOUR_MS)}&to={at(end_ms - HOUR_MS)}")["past"]
    second = pages.json(f"{path}from={at(end_ms - HOUR_MS)}&to={at(end_ms)}")["past"]
    assert whole["total"]["done"] == first["total"]["done"] + second["total"]["done"] > 0
    assert sum(whole["series"]["done"]) == whole["total"]["done"], "every run has its bar"
    assert (whole["absolute"], whole["since"], whole["step_s"]) == (True, "", 120)
    html = pages.html(f"{path}from={at(end_ms - 2 * HOUR_MS)}&to={at(end_ms)}")
    assert f'data-begin="{(end_ms - 2 * HOUR_MS) // 1000}" data-end="{end_ms // 1000}"' in html


def test_range_of_long_ago_is_by_the_hour(app: App, pages: Reader) -> None:
    write_history(app.store)
    end_ms = app.store.now_ms() // HOUR_MS * HOUR_MS - 72 * HOUR_MS
    past = pages.json(f"/?from={at(end_ms - 6 * HOUR_MS)}&to={at(end_ms)}&against=week")["past"]
    assert (past["step_s"], len(past["times"])) == (3600, 6)
    assert len(past["before"]["runs"]) == 6 and past["before"]["done"] > 0


@pytest.mark.parametrize(
    "query",
    ["from=yesterday", "to=2026-01-01T00:00Z", "from=2099-01-01T00:00Z", "from=2020-01-01T00:00Z",
     "against=never", "from=9999-12-31T23:59-23:00"],
)  # fmt: skip
def test_range_that_cannot_be_shown_is_told(pages: Reader, query: str) -> None:
    assert pages.json(f"/?{query}", 422)["error"]


@pytest.mark.parametrize(("against", "word"), [("yesterday", "yesterday"), ("week", "last week")])
def test_time_is_compared_with_the_chosen_one(app: App, pages: Reader, against: str, word: str) -> None:
    write_history(app.store)
    before = pages.json(f"/?since=1h&against={against}")["past"]["before"]
    assert before["done"] > 0
    spread = sum(before["runs"])
    assert abs(spread - before["done"] - before["failed"]) <= 0.1 * spread + 60, "the line has the runs of the figures"
    assert f"- - {word}" in pages.html(f"/?since=1h&against={against}")
    assert pages.json("/?since=1h&against=none")["past"]["before"]["runs"] == []


def test_first_worker_of_a_release_is_marked(app: App, pages: Reader) -> None:
    write_history(app.store)
    begin_release(app.store, "2.7.1 <b>")
    assert [each["release"] for each in pages.json("/")["past"]["releases"]] == ["2.7.1 <b>"]
    assert "first worker of release 2.7.1 &lt;b&gt;" in pages.html("/")
    assert (
        pages.json(f"/?from={at(app.store.now_ms() - 9 * HOUR_MS)}&to={at(app.store.now_ms() - HOUR_MS)}")["past"][
            "releases"
        ]
        == []
    )


def test_rail_filters_the_overview_by_a_queue(app: App, pages: Reader) -> None:
    write_history(app.store)
    for queue in ("crm", "mail & more"):
        app.task(name=f"do.{queue[:3]}", queue=queue)(lambda: None).enqueue()
    assert {each["queue"] for each in pages.json("/")["rail"]} == {"crm", "mail & more"}
    one = pages.json("/?queue=mail %26 more")
    assert (one["counts"]["ready"], [each["queue"] for each in one["queues"]]) == (1, ["mail & more"])
    assert pages.json("/")["counts"]["ready"] == 2
    assert 'aria-current="true" title="mail &amp; more' in pages.html("/?queue=mail %26 more")
