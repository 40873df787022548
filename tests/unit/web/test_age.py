"""No page and no JSON shows what is not of now without saying so: old sums, a dead store, one that hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.sites import JSON, Browser, stocked

from redrive import App, Draft, status
from redrive.web import Site, vigil
from redrive.web import sums as summing
from redrive.web.ask import PageRequest
from redrive.web.vigil import Readings

MINUTES_S = 300.0


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = App(f"sqlite:///{tmp_path}/work.db")
    stocked(made)
    yield made
    made.store.close()


@pytest.fixture
def site(app: App) -> Site:
    return Site(app, registry=app)


def slowed(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
    """Let the sum of the overview take so long."""
    read = status.read_status

    def slowly(*given: Any) -> Any:
        time.sleep(seconds[0])
        return read(*given)

    monkeypatch.setattr("redrive.status.read_status", slowly)


def age(site: Site, seconds: float) -> None:
    """Let so much time pass for all sums."""
    real = site.sums._clock
    site.sums._clock = lambda: real() + seconds


def test_who_polls_each_five_minutes_gets_figures_of_now(site: Site, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    slowed(monkeypatch, seconds := [0.1])
    browser = Browser(site)
    before = browser.get("/", headers=JSON).json()
    app.store.put([Draft(task="crm.push", queue="crm") for _ in range(5)])
    age(site, MINUTES_S)
    after = browser.get("/", headers=JSON).json()
    assert after["counts"]["ready"] == before["counts"]["ready"] + 5
    assert after["age_s"] < summing.OLD_S and "stale" not in after
    seconds[0] = 0.6  # longer than a page waits; JSON waits for it
    age(site, MINUTES_S)
    assert browser.get("/", headers=JSON).json()["age_s"] < summing.OLD_S


def test_a_page_with_old_figures_says_so_on_top_and_is_new_the_next_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed(monkeypatch, seconds := [0.1])
    browser = Browser(site)
    assert 'class="bar ' not in browser.get("/").text
    age(site, MINUTES_S)
    assert 'class="bar ' not in browser.get("/").text, "the new sum was there within 300 ms"
    seconds[0] = 1.0
    age(site, MINUTES_S)
    old = browser.get("/").text
    assert 'class="bar old"' in old and "Figures of " in old and "5m old; new ones are being made" in old
    end_s = time.monotonic() + 30
    while 'class="bar ' in browser.get("/").text:
        assert time.monotonic() < end_s
        time.sleep(0.2)


def test_a_sum_that_takes_a_second_is_made_again_each_four() -> None:
    assert [summing._rest_s(cost_s) for cost_s in (0.001, 0.1, 1.0, 3.0)] == [1.0, 3.0, 4.0, 12.0]


def hang(app: App, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let every question to the store hang until the event is set."""
    goes_on, kind = threading.Event(), type(app.store)
    for name in ("paused", "counts_by_queue", "counts", "peek", "failure_groups", "now_ms", "groups"):
        real = getattr(kind, name)

        def waits(self: Any, *given: Any, _real: Any = real, **named: Any) -> Any:
            goes_on.wait(60)
            return _real(self, *given, **named)

        monkeypatch.setattr(kind, name, waits)
    return goes_on


def test_a_store_that_hangs_is_said_on_top_within_5_s_and_the_page_is_as_it_was(
    site: Site, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(site)

    async def story() -> None:
        assert (await browser.arequest("GET", "/queues")).status_code == 200
        await asyncio.sleep(1.1)
        goes_on = hang(app, monkeypatch)
        try:
            for _ in range(2):
                began_s = time.monotonic()
                during = await browser.arequest("GET", "/queues")
                assert time.monotonic() - began_s < 5
                assert during.status_code == 503
                assert 'class="bar lost"' in during.text and "has not answered since" in during.text
                assert "<title>⚠ " in during.text and ">crm<" in during.text
                assert (await browser.arequest("GET", "/queues", headers=JSON)).status_code == 503
            assert (await browser.arequest("GET", "/groups")).status_code == 503, "it was never shown"
        finally:
            goes_on.set()
        end_s = time.monotonic() + 30
        while (found := await browser.arequest("GET", "/queues")).status_code != 200:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.1)
        assert 'class="bar ' not in found.text

    asyncio.run(story())


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The keys of the pages whose reads were begun or joined."""
    keys: list[Any] = []
    begin = Readings._begin

    def noting(self: Readings, key: Any, read: Any) -> Any:
        keys.append(key)
        return begin(self, key, read)

    monkeypatch.setattr(Readings, "_begin", noting)
    return keys


PAGES_ASKED = ("/", "/queues", "/messages", "/groups", "/runs", "/workers", "/batches", "/flow")


def test_a_store_that_hangs_takes_no_thread_of_the_event_loop(
    site: Site, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(site)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))  # of the application in which the site is mounted
        for path in PAGES_ASKED:
            assert (await browser.arequest("GET", path)).status_code == 200
        goes_on = hang(app, monkeypatch)
        try:
            asked = [asyncio.create_task(browser.arequest("GET", path)) for path in PAGES_ASKED]
            for answer in await asyncio.wait_for(asyncio.gather(*asked), 30):
                assert answer.status_code == 503 and 'class="bar lost"' in answer.text
            await asyncio.wait_for(loop.getaddrinfo("127.0.0.1", 80), 30)
        finally:
            goes_on.set()

    asyncio.run(story())


def test_while_the_store_does_not_answer_no_page_is_read(site: Site, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, begun = Browser(site), noted(monkeypatch)

    async def story() -> None:
        assert (await browser.arequest("GET", "/queues")).status_code == 200
        goes_on = hang(app, monkeypatch)
        try:
            while not site.lost:
                await browser.arequest("GET", "/queues")
            begun.clear()
            for headers in ({}, JSON, {"X-Redrive-Live": "1"}):
                assert (await browser.arequest("GET", "/queues", headers=headers)).status_code == 503
                site.live.bump()
            assert begun == []
            assert (await browser.arequest("GET", "/keys")).status_code == 200, "it needs no store"
        finally:
            goes_on.set()
        end_s = time.monotonic() + 30
        while (await browser.arequest("GET", "/queues")).status_code != 200:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.1)

    asyncio.run(story())


@pytest.mark.parametrize("acts", [False, True])
def test_a_page_that_hangs_is_read_once_for_all_who_ask_until_an_action_changed_it(
    acts: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vigil, "JOINED_S", 0.0)
    browser, goes_on, begun = Browser(site), threading.Event(), noted(monkeypatch)
    reads: list[PageRequest] = []
    reading = import_module("redrive.web.read.queues")
    read = reading.queues

    def slowly(ask: PageRequest) -> Any:
        reads.append(ask)
        goes_on.wait(60)
        return read(ask)

    monkeypatch.setattr(reading, "queues", slowly)

    async def story() -> None:
        async def come(things: list[Any], count: int) -> None:
            end_s = time.monotonic() + 30
            while len(things) < count:
                assert time.monotonic() < end_s
                await asyncio.sleep(0.01)

        asked = [asyncio.create_task(browser.arequest("GET", "/queues"))]
        try:
            await come(reads, 1)
            if acts:
                pause = {"queue": "crm", "reason": "maintenance"}
                done = await browser.arequest("POST", "/do/pause-queue", json=pause, headers=JSON)
                assert done.status_code == 200, done.text
            asked += [asyncio.create_task(browser.arequest("GET", "/queues")) for _ in range(5)]
            await come(begun, 6)
        finally:
            goes_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}

    asyncio.run(story())
    assert len(reads) == (2 if acts else 1)


def test_closing_waits_for_what_is_read(site: Site) -> None:
    goes_on = threading.Event()

    async def story() -> None:
        reading = asyncio.create_task(site.readings.call(goes_on.wait, 60))
        await asyncio.sleep(0)
        closing = asyncio.create_task(site.readings.close())
        assert not (await asyncio.wait({closing}, timeout=0.1))[0]
        goes_on.set()
        await closing
        assert await reading

    asyncio.run(story())


def test_a_store_that_is_gone_is_said_on_top_of_what_was_shown(tmp_path: Path, site: Site, app: App) -> None:
    browser = Browser(site)
    assert browser.get("/").status_code == browser.get("/queues").status_code == 200
    app.store.close()
    time.sleep(1.1)
    for path in ("/", "/queues"):
        gone = browser.get(path)
        assert gone.status_code == 503 and 'class="bar lost"' in gone.text and "cannot be read" in gone.text
        assert browser.get(path, headers=JSON).status_code == 503
