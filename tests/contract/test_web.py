"""Every page on every engine, as HTML and as JSON; on SQS, what is missing and the setting that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.sites import JSON, Browser, address, stocked
from tests.support.urls import url_of

from redrive import App
from redrive.message import Draft
from redrive.testing.sqs import SqsServer
from redrive.web.table import PAGES

FIXED = [page for page in PAGES if "{" not in page.path]  # those that need nothing to be there


@pytest.fixture(scope="module")
def sqs() -> Iterator[SqsServer]:
    with SqsServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres", "redis"])
def test_every_page_shows_what_each_engine_holds(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    app = App("memory://" if engine == "memory" else url_of(engine, request, tmp_path))
    parts = stocked(app)
    browser = Browser(app.dashboard())
    for page in PAGES:
        path = address(page, parts)
        html, json = browser.get(path), browser.get(path, headers=JSON)
        assert (html.status_code, json.status_code) == (200, 200), (page.name, html.text[:2000])
        assert "<h1>" in html.text and isinstance(json.json(), dict)
    app.store.close()


@pytest.mark.slow
@pytest.mark.xdist_group("sqs-pages")
def test_on_sqs_with_its_stores_every_page_is_shown(sqs: SqsServer, tmp_path: Path) -> None:
    beside = f"cells=sqlite:///{tmp_path}/cells.db&triage=sqlite:///{tmp_path}/triage.db"
    app = App(f"sqs://eu-central-1/kept?create=true&endpoint={sqs.url}&{beside}")
    app.store.put([Draft(task="push", queue="crm")] * 3)
    browser = Browser(app.dashboard())
    for path in [*(page.path for page in FIXED), "/queues/crm"]:
        html, json = browser.get(path), browser.get(path, headers=JSON)
        assert (html.status_code, json.status_code) == (200, 200), (path, html.text[:2000])
    assert browser.json("/queues/crm")["counts"]["ready"] == 3
    app.store.close()


@pytest.mark.slow
@pytest.mark.xdist_group("sqs-pages")
def test_on_bare_sqs_a_page_names_what_is_missing_and_the_setting(sqs: SqsServer) -> None:
    app = App(f"sqs://eu-central-1/bare?create=true&endpoint={sqs.url}")
    app.store.put([Draft(task="push", queue="crm")] * 3)
    browser = Browser(app.dashboard())
    for path in [*(page.path for page in FIXED), "/queues/crm"]:
        html = browser.get(path)
        assert html.status_code in (200, 501), (path, html.text[:2000])
        if html.status_code == 501:
            assert "cells=" in html.text or "triage=" in html.text, path
    assert browser.json("/queues/crm")["counts"]["ready"] == 3
    app.store.close()
