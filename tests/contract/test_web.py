"""Every page on every engine, as HTML and as JSON; on SQS, what is missing and the setting that brings it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.sites import JSON, Browser, address, on_a_loop, stocked
from tests.support.urls import url_of
from tests.support.workers import until

from redrive import App
from redrive.message import Draft, Filter, Lane
from redrive.testing.sqs import SqsServer
from redrive.web import live
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


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres", "redis"])
def test_what_is_put_into_an_idle_queue_is_told_by_a_wake_up(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SLOW_S", 1_000_000.0)
    app = App("memory://" if engine == "memory" else url_of(engine, request, tmp_path))
    waiting, wait = threading.Event(), live.Glance.wait

    def wait_long(glance: live.Glance, timeout_s: float) -> bool:
        waiting.set()
        try:
            return wait(glance, 3600.0)
        finally:
            waiting.clear()

    monkeypatch.setattr(live.Glance, "wait", wait_long)

    @on_a_loop
    async def told() -> None:
        app.store.put([Draft(task="push", queue="crm", due_ms=app.store.now_ms() + 3_600_000)])
        telling = live.Live(live.Glance(lambda: app.store), lambda: 0.05)
        stream = telling.events()
        await anext(stream)
        for _ in range(3):
            await until(waiting.is_set)
            for change in (put, cancel):
                before = telling.version
                await asyncio.to_thread(change, app)
                await until(lambda before=before: telling.version > before)
        await stream.aclose()  # type: ignore[attr-defined]
        await telling.close()

    told()
    app.store.close()


def put(app: App) -> None:
    app.store.put([Draft(task="push", queue="crm")])


def cancel(app: App) -> None:
    """What is due. No wait has to be ended for that: none begins while the queue is not idle."""
    found = app.store.peek(Lane.READY, where=Filter(queue="crm")).messages
    app.store.cancel([message.id for message in found if (message.due_ms or 0) <= app.store.now_ms()])


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
    assert browser.json("/queues/crm")["ready"] == 3
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
    assert browser.json("/queues/crm")["ready"] == 3
    app.store.close()
