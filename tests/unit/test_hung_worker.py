"""A worker that is hung is named on every surface with the task that blocks it, and each message with where it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from tests.support.commands import Call
from tests.support.sites import JSON, Browser

from redrive import App
from redrive.message import ClaimRequest, Lane
from redrive.observe.prometheus import Depths
from redrive.presence import HeldMessage, Hung, ProcessCell, QueueWork, WorkerInfo, with_claimed
from redrive.thresholds import rule
from redrive.thresholds.measure import Figures, FigureSubject
from redrive.top.screens.workers import row_of

WORKER, TEXT = (
    "web-3/worker-0",
    "worker web-3/worker-0 is hung: stats.roll blocks its event loop, at stats.py:9 in roll",
)


class Hanging:
    """A store in which a worker holds a message that blocks its loop and one that has not begun, and tells so."""

    def __init__(self, url: str, *, isolated: bool = False) -> None:
        self.app = App(url)
        self.app.task(name="stats.roll", queue="stats")(lambda: None)
        self.app.enqueue_many([self.app.tasks["stats.roll"].draft() for _ in range(3)])
        store = self.store = self.app.store
        store.exchange([], [ClaimRequest("stats", 2, 60_000, worker=WORKER)])
        taken = [m.id for m in store.peek(Lane.LEASED, limit=9).messages]
        self.blocking, self.waiting = taken
        now_ms = store.now_ms()
        self.info = WorkerInfo(
            name=WORKER, host="web-3", pid=4711, started_ms=now_ms - 60_000, seen_ms=now_ms, held=2, running=1,
            queues=(QueueWork(name="stats", concurrency=1, held=2, oldest_due_ms=now_ms - 1_500_000),),
            hung=Hung(
                since_ms=now_ms - 25_400, queues=("stats",), task="stats.roll", id=self.blocking,
                place="stats.py:9 in roll",
            ),
            messages=(
                HeldMessage(id=self.blocking, task="stats.roll", since_ms=now_ms - 25_500, isolated=isolated),
                HeldMessage(id=self.waiting, task="stats.roll"),
            ),
        )  # fmt: skip
        ProcessCell(store).write(self.info)


@pytest.fixture
def hanging(redrive: Call) -> Iterator[Hanging]:  # after the folder was entered
    made = Hanging("sqlite:///work.db")
    yield made
    made.store.close()


def test_it_is_what_needs_a_person_first_of_all(hanging: Hanging) -> None:
    need = hanging.app.status().needs[0]
    assert (need.severity, need.area, need.about, need.text) == ("page", "workers", f"worker/{WORKER}", TEXT)
    assert need.next == f"job show {hanging.blocking}" and need.line(hanging.store.now_ms()).endswith("; for 25s")


def test_status_and_doctor_name_it(hanging: Hanging, redrive: Call) -> None:
    said = redrive("status")
    assert said.code == 1
    assert "stats.roll blocks its event loop" in " ".join(said.out.split()) and "hung for 25s, 2 running" in said.out
    said = redrive("doctor")
    assert said.code == 1 and f"{TEXT}, for 25s" in said.out
    [record] = json.loads(redrive("status", "-o", "json").out)["workers"]
    assert record["state"] == "hung" and record["hung"]["task"] == "stats.roll"


def test_workers_lists_it(hanging: Hanging, redrive: Call) -> None:
    said = redrive("workers", "-v", "-o", "table")
    assert f"  {TEXT}, for 25s" in said.out.splitlines() and " hung " in said.out
    [record] = redrive("workers", "-o", "json").record
    assert record["hung"] == {
        "since": record["hung"]["since"], "text": TEXT, "queues": ["stats"], "timeouts": False, "task": "stats.roll",
        "id": hanging.blocking, "place": "stats.py:9 in roll",
    }  # fmt: skip


def test_watch_and_rules_fire_for_it(hanging: Hanging, redrive: Call) -> None:
    said = redrive("watch", "--once")
    assert said.code == 1 and f"worker_hung\t\t\t{WORKER}\t25." in said.out
    [(subject, seconds)] = Figures(hanging.store, hanging.app).of(rule("worker_hung")).items()
    assert subject == FigureSubject(about=WORKER) and 25 < seconds < 60


def test_prometheus_shows_for_how_long(hanging: Hanging) -> None:
    registry = CollectorRegistry()
    registry.register(Depths(lambda: hanging.store, hanging.app))
    assert 25 < (registry.get_sample_value("redrive_worker_hung_seconds") or 0) < 60
    assert registry.get_sample_value("redrive_workers", {"queue": "stats", "state": "hung"}) == 1


def test_pages_show_it_and_the_message_that_blocks_it(hanging: Hanging) -> None:
    browser = Browser(hanging.app.dashboard())
    html, [record] = browser.get("/workers").text, browser.get("/workers", headers=JSON).json()["workers"]
    assert TEXT in html and '<span class="state hung">' in html and record["hung"]["text"] == TEXT
    assert '<span class="bad">1 hung</span>' in browser.get("/").text
    html = browser.get(f"/messages/{hanging.blocking}").text
    assert "What ends it: its worker is hung and hears no cancel: end pid 4711 on web-3" in html


def test_top_shows_it_in_capitals() -> None:
    info = Hanging("memory://").info
    assert row_of(info)["state"] == "HUNG"


def test_a_worker_that_is_gone_is_not_hung_too(hanging: Hanging) -> None:
    assert replace(hanging.info, gone=True).state == "gone" and replace(hanging.info, draining=True).state == "hung"


# -- how old what waits is


def test_the_oldest_message_is_the_oldest_that_has_not_begun_though_a_worker_has_claimed_it(hanging: Hanging) -> None:
    assert hanging.store.counts("stats").oldest_age_s < 60
    assert with_claimed(hanging.store.counts_by_queue(), [hanging.info])["stats"].oldest_age_s == 1500
    assert hanging.app.status().queues[0].counts.oldest_age_s == 1500
    assert Figures(hanging.store, hanging.app).of(rule("age")) == {FigureSubject("stats"): 1500}


def test_queue_list_and_the_pages_show_that_age(hanging: Hanging, redrive: Call) -> None:
    [record] = redrive("queue", "list", "-o", "json").record
    assert record["oldest_age_s"] == 1500
    page = Browser(hanging.app.dashboard()).get("/queues/stats", headers=JSON).json()
    assert page["oldest_age_s"] == 1500


# -- where messages run


def test_job_list_of_what_is_leased_says_for_how_long_it_runs_and_where(hanging: Hanging, redrive: Call) -> None:
    said = redrive("job", "list", "--state", "running", "-o", "tsv")
    header, first, second = [line.split("\t") for line in said.out.splitlines()]
    assert header[-2:] == ["running_s", "worker"]
    assert first[0] == hanging.blocking and 25 <= float(first[-2]) < 60 and first[-1] == WORKER
    assert second[0] == hanging.waiting and second[-2] == "" and second[-1] == WORKER


def test_job_show_says_where_a_message_runs_and_what_ends_it(hanging: Hanging, redrive: Call) -> None:
    text = " ".join(redrive("job", "show", hanging.blocking, "-o", "table").out.split())
    assert re.search(rf"it has run for 2\ds, attempt 1; its worker is {WORKER}, in pid 4711 on web-3", text)
    assert "its worker is hung and hears no cancel: end pid 4711 on web-3" in text
    text = " ".join(redrive("job", "show", hanging.waiting, "-o", "table").out.split())
    assert f"it is claimed and has not begun; its worker is {WORKER}, pid 4711 on web-3" in text


def test_a_cancel_of_what_runs_says_what_ends_it_where_nothing_listens(hanging: Hanging, redrive: Call) -> None:
    said = redrive("job", "cancel", hanging.blocking, "--kill")
    assert said.code == 0 and "requested" in said.out and "its worker is hung and hears no cancel" in said.err


def test_job_show_of_an_isolated_run_leads_to_its_kill(redrive: Call) -> None:
    hanging = Hanging("sqlite:///work.db", isolated=True)
    try:
        assert (
            f"job cancel {hanging.blocking} --kill" not in redrive("job", "show", hanging.blocking, "-o", "table").out
        )
        redrive("job", "cancel", hanging.blocking)
        said = redrive("job", "show", hanging.blocking, "-o", "table")
        assert f"job cancel {hanging.blocking} --kill" in said.out
        assert "it runs in a child process, which can be killed" in " ".join(said.out.split())
    finally:
        hanging.store.close()
