"""Browsers are told of changes by one look at the store for all of them, and only while one listens."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator

import pytest
from tests.support.sites import Browser, on_a_loop, stocked
from tests.support.workers import until

from redrive import App, Draft
from redrive.web import live
from redrive.web.live import Glance, Live
from redrive.web.table import PAGES


class Fake(Glance):
    """Something to look at, which wakes its waiter when `due` is set."""

    def __init__(self) -> None:
        self.seen, self.looks, self.down = b"1", 0, False
        self.waits, self.waited_s = 0, 0.0
        self.due = threading.Event()

    def look(self) -> bytes:
        self.looks += 1
        if self.down:
            raise OSError("gone")
        return self.seen

    def wait(self, timeout_s: float) -> bool:
        self.waits, self.waited_s = self.waits + 1, timeout_s
        return self.due.wait(timeout_s)

    def nudge(self) -> None:
        self.due.set()


def quick() -> float:
    return 0.005


async def version(events: AsyncIterator[str]) -> int:
    """The next version that a browser is told."""
    async for line in events:
        if "data:" in line:
            return int(line.rpartition("data: ")[2])
    raise AssertionError("the stream ended")


async def closed(*streams: AsyncIterator[str]) -> None:
    for stream in streams:
        with contextlib.suppress(RuntimeError):
            await stream.aclose()  # type: ignore[attr-defined]


@on_a_loop
async def test_fifty_watchers_cost_one_look() -> None:
    store = Fake()
    telling = Live(store, lambda: 60.0)
    streams = [telling.events() for _ in range(50)]
    assert [await version(stream) for stream in streams] == [0] * 50
    await until(lambda: store.looks > 0)
    assert (telling.watchers, store.looks) == (50, 1)
    await closed(*streams)
    await telling.close()


@on_a_loop
async def test_every_watcher_hears_of_a_change() -> None:
    store = Fake()
    telling = Live(store, quick)
    streams = [telling.events() for _ in range(50)]
    for stream in streams:
        await version(stream)
    await until(lambda: store.looks > 1)
    store.seen = b"2"
    assert all([await version(stream) > 0 for stream in streams])
    await closed(*streams)
    await telling.close()


@on_a_loop
async def test_a_change_while_a_line_is_sent_is_not_lost() -> None:
    telling = Live(Fake(), lambda: 60.0)
    stream = telling.events()
    assert await version(stream) == 0
    telling.bump()
    telling.bump()
    assert await asyncio.wait_for(version(stream), 30) == 2
    await closed(stream)
    await telling.close()


@on_a_loop
async def test_nothing_looks_when_no_browser_listens_and_it_begins_again() -> None:
    store = Fake()
    telling = Live(store, quick)
    for _ in range(3):
        stream = telling.events()
        await version(stream)
        assert telling.looks
        await closed(stream)
        await until(lambda: not telling.looks)
        looks = store.looks
        await asyncio.sleep(0.03)
        assert store.looks == looks and telling.watchers == 0
    await telling.close()


@on_a_loop
async def test_watchers_hear_that_the_store_is_gone_and_that_it_is_back() -> None:
    store = Fake()
    telling = Live(store, quick)
    stream = telling.events()
    first = await version(stream)
    await until(lambda: store.looks > 1)
    store.down = True
    gone = await version(stream)
    store.down, store.seen = False, b"2"
    assert first < gone < await version(stream) and telling.looks
    await closed(stream)
    await telling.close()


@pytest.mark.parametrize("down", [False, True])
def test_a_slow_look_rests_a_while_that_is_bounded_and_one_that_fails_does_not(
    monkeypatch: pytest.MonkeyPatch, down: bool
) -> None:
    monkeypatch.setattr(live, "REST", 100_000)
    monkeypatch.setattr(live, "EVERY_S", 0.005)
    monkeypatch.setattr(live, "REST_MAX_S", 3600.0 if down else 0.005)

    class Slow(Fake):
        def look(self) -> bytes:
            time.sleep(0.01)
            return super().look()

    store = Slow()
    store.down = down

    @on_a_loop
    async def watched() -> None:
        telling = Live(store, quick)
        stream = telling.events()
        await version(stream)
        await until(lambda: store.looks >= 3)
        await closed(stream)
        await telling.close()

    watched()


@on_a_loop
async def test_a_quiet_connection_is_kept_open_by_comments_and_ends_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "PING_S", 0.01)
    monkeypatch.setattr(live, "LASTS_S", 0.05)
    telling = Live(Fake(), lambda: 60.0)
    lines = [line async for line in telling.events()]
    first_look = "event: version\ndata: 1\n\n"
    assert set(lines[1:]) - {first_look} == {": still here\n\n"} and telling.watchers == 0
    await telling.close()


@on_a_loop
async def test_what_comes_due_in_a_quiet_fleet_ends_a_rest_but_not_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BILLED_EVERY_S", 7200.0)
    store, every_s = Fake(), [0.005]
    telling = Live(store, lambda: every_s[0])
    stream = telling.events()
    await version(stream)
    await until(lambda: store.waits)
    every_s[0] = 3600.0
    await until(lambda: store.waited_s == 3600)
    looks = store.looks
    store.due.set()
    await until(lambda: store.looks > looks)
    await asyncio.sleep(0.05)
    assert store.looks == looks + 1, "one that is woken again and again would look all the time"
    await closed(stream)
    await telling.close()


@on_a_loop
async def test_a_wait_that_fails_is_a_rest_and_billed_calls_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Fake()
    failing = Live(store, lambda: 0.01)
    monkeypatch.setattr(store, "wait", lambda timeout_s: 1 / 0)
    stream = failing.events()
    await version(stream)
    await until(lambda: store.looks >= 4)
    await closed(stream)
    await failing.close()
    monkeypatch.undo()
    billed = Live(store, lambda: live.BILLED_EVERY_S)
    stream = billed.events()
    await version(stream)
    looks = store.looks
    await until(lambda: store.looks >= looks + 2)
    assert store.waits == 0
    await closed(stream)
    await billed.close()


@on_a_loop
async def test_closing_ends_every_stream() -> None:
    telling = Live(Fake(), lambda: 60.0)
    stream = telling.events()
    await version(stream)
    rest = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    await telling.close()
    assert await asyncio.wait_for(rest, 30) is None and not telling.looks


def test_a_glance_differs_after_each_change_and_not_without_one(app: App) -> None:
    run, look = stocked(app)["run"]["id"], Glance(lambda: app.store).look
    seen = {look()}
    assert look() in seen
    changes = [
        lambda: app.store.put([Draft(task="push", queue="crm")]),
        lambda: app.store.configure("crm", paused=True),
        lambda: app.dlq.run(run).pause(reason="r"),
    ]
    for change in changes:
        change()
        now = look()
        assert now not in seen
        seen.add(now)


@on_a_loop
async def test_a_page_that_fifty_ask_for_after_one_change_is_read_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = app.dashboard()
    browsers = [Browser(site) for _ in range(50)]
    page = next(page for page in PAGES if page.name == "queues")
    reading = __import__("redrive.web.read.queues", fromlist=["queues"])
    read, times = page.read, []
    monkeypatch.setattr(reading, "queues", lambda ask: (times.append(1), read(ask))[1])
    asked = {"headers": {"X-Redrive-Live": "1"}}
    answers = await asyncio.gather(*(browser.arequest("GET", "/queues", **asked) for browser in browsers))
    assert {answer.status_code for answer in answers} == {200} and len(times) == 1
    site.live.bump()
    await browsers[0].arequest("GET", "/queues", **asked)
    assert len(times) == 2, "a change is read"


@on_a_loop
async def test_what_is_shared_is_of_the_same_address_and_permissions(app: App) -> None:
    app.store.configure("a?b", paused=True)
    app.store.configure("a", paused=False)
    site = app.dashboard(authorize=lambda asked: ("ann", asked.headers["x-may"].split()))
    live_, browser = {"X-Redrive-Live": "1", "Accept": "application/json"}, Browser(site)

    async def json(path: str, may: str) -> dict[str, object]:
        found: dict[str, object] = (await browser.arequest("GET", path, headers={**live_, "X-May": may})).json()
        return found

    assert (await json("/queues/a%3Fb", "retry"))["queue"] == "a?b"
    assert (await json("/queues/a?b", "retry"))["queue"] == "a"
    assert (await json("/keys", "retry"))["permissions"] == ["retry", "view"]
    assert (await json("/keys", "pause"))["permissions"] == ["pause", "view"]
