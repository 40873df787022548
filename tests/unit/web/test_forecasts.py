"""The pages show the forecasts that the command line shows, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.redrive_pages import Pages, text_of

from redrive.present.forecasts import breaker_forecast_record, plan_forecast_record, score_record
from redrive.simulate import forecast_breaker, foretold, read_score
from redrive.triage.redrive.run import Run


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with Pages(tmp_path) as made:
        yield made


def test_a_plan_that_a_page_draws_up_keeps_its_forecast_and_shows_it(pages: Pages) -> None:
    pages.bury(sends=3)
    pages.post("plan", q="queue:mail", rate="20/s")
    id = pages.json("/plans")["plans"][0]["id"]
    made = plan_forecast_record(foretold(pages.app.store, id))
    assert made is not None and pages.json(f"/plans/{id}")["forecast"] == made
    page = text_of(pages.get(f"/plans/{id}"))
    assert all(words in page for words in made["words"])
    assert "no forecast can be scored yet" in page


def test_a_plan_without_a_kept_forecast_gets_one_that_is_not_kept(pages: Pages) -> None:
    pages.bury(sends=3)
    id = pages.app.dlq.select("queue:mail").plan().id
    assert pages.json(f"/plans/{id}")["forecast"]["peak_per_s"] > 0
    assert foretold(pages.app.store, id) is None


def test_an_open_breaker_shows_what_comes_back(pages: Pages) -> None:
    assert pages.json("/flow/smtp")["forecast"] is None
    pages.app.flow.open("smtp", reason="maintenance")
    for n in range(3):
        pages.send.enqueue(f"waits-{n}@example.com")
    record = pages.json("/flow/smtp")["forecast"]
    made = breaker_forecast_record(forecast_breaker(pages.app.store, pages.app, pages.app.flow.show("smtp")))
    assert made is not None and record["waiting"] == made["waiting"] == 3
    assert "if the next probes succeed, 3 that wait come back" in text_of(pages.get("/flow/smtp"))


def test_a_queue_shows_when_its_backlog_is_gone(pages: Pages) -> None:
    assert pages.json("/queues/crm")["forecast"]["gone_s"] == 0
    assert "Backlog: nothing waits" in text_of(pages.get("/queues/crm"))


def test_forecasts_stand_beside_what_came(pages: Pages) -> None:
    assert "no forecast can be scored yet" in text_of(pages.get("/forecasts")).lower()
    pages.bury(sends=3)
    pages.post("plan", q="queue:mail", rate="20/s")
    id = pages.json("/plans")["plans"][0]["id"]
    pages.post("apply", id=id, reason="their server is back")
    record = pages.json("/forecasts")
    assert [(each["run"], each["state"], each["came_s"]) for each in record["pending"]] == [(id, "running", None)]
    assert (record["count"], record["forecasts"]) == (0, [])
    assert f'href="/runs/{id}"' in pages.get("/forecasts")
    assert 'href="/forecasts"' in pages.get("/runs") and 'href="/forecasts"' in pages.get(f"/plans/{id}")
    Run(pages.app.store, id, pages.app).cancel(reason="enough")
    assert pages.json("/forecasts")["pending"] == []


def test_page_and_command_have_the_same_score(pages: Pages) -> None:
    record = pages.json("/forecasts?last=7")
    assert score_record(read_score(pages.app.store, 7)).items() <= record.items()
    assert record["command"].startswith("redrive forecast score --last 7 --")
