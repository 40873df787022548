"""A store that is down makes each page a diagnosis, and no page stays one when it is back."""

from __future__ import annotations

import logging
import random
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import PostgresServer, RedisServer, Server, memory_disk
from tests.support.sites import JSON, NAMES, Browser, address, on_a_loop, stocked

from redrive import App, Breaker
from redrive.errors import StoreUnavailable
from redrive.stores.sqlite.store import SqliteStore
from redrive.web import sums
from redrive.web.live import Glance, Live
from redrive.web.table import PAGES, SitePage

NEED_NONE = {"keys", "policies"}  # these show the app's declarations
READING = [page for page in PAGES if page.name not in NEED_NONE]
each_page = pytest.mark.parametrize("page", READING, ids=[page.name for page in READING])


def states(browser: Browser, path: str) -> tuple[int, int]:
    html, json = browser.get(path), browser.get(path, headers=JSON)
    for answer in (html, json):
        assert "Traceback" not in answer.text and answer.headers["cache-control"] == "no-store"
        if answer.status_code == 503:
            assert "cannot be read" in answer.text
    return html.status_code, json.status_code


# -- SQLite


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "work.db"


@each_page
def test_a_file_that_is_spoilt_and_brought_back(page: SitePage, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(App(f"sqlite:///{file}").store) as store:
        path = address(page, stocked(App(store=store)))
    good = file.read_bytes()
    file.write_bytes(b"this is no database" * 500)
    app = App(f"sqlite:///{file}")
    app.dependency("crm", breaker=Breaker())
    browser = Browser(app.dashboard())
    with caplog.at_level(logging.ERROR, "redrive.web"):
        assert states(browser, path) == (503, 503)
    assert caplog.records == [], "a store that is down is no failure of the page"
    file.write_bytes(good)
    assert states(browser, path) == (200, 200)
    app.store.close()


def test_a_folder_that_is_gone_is_said_with_what_to_look_at(file: Path) -> None:
    browser = Browser(App(f"sqlite:///{file}").dashboard())
    shutil.rmtree(file.parent)
    file.parent.write_text("in the way")
    answer = browser.get("/queues")
    assert answer.status_code == 503 and "redrive store check --url" in answer.text
    assert '<meta http-equiv="refresh" content="5">' in answer.text, "it tries again without a script"
    assert browser.get("/keys").status_code == 200, "what needs no store is shown"


def test_an_action_on_a_file_that_is_locked_is_refused_and_done_later(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.file.BUSY_TIMEOUT_S", 0.1)
    app = App(f"sqlite:///{file}")
    browser = Browser(app.dashboard())
    stocked(app)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answer = browser.post("/do/pause-queue", {"queue": "crm", "reason": "r"})
        assert answer.status_code == 503 and "cannot be read" in answer.text
        assert browser.get("/queues").status_code == 200, "readers are not held up"
    assert browser.post("/do/pause-queue", {"queue": "crm", "reason": "r"}).status_code == 303
    assert "crm" in app.store.paused()
    app.store.close()


def test_no_password_of_the_store_is_shown() -> None:
    app = App("postgresql://ann:hunter2hunter2@127.0.0.1:1/app?connect_timeout=1")
    answer = Browser(app.dashboard()).get("/queues")
    assert answer.status_code == 503 and "hunter2" not in answer.text and "127.0.0.1:1" in answer.text


# -- servers


@pytest.fixture(params=[PostgresServer, RedisServer], ids=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    kept = {"appendonly": True} if request.param is RedisServer else {}
    with request.param(folder=memory_disk(), **kept) as server:
        yield server


@pytest.mark.slow
def test_pages_of_a_server_that_is_killed_say_so_and_are_back_with_it(
    server: Server, seed: int, soak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FRESH_S": 0.0, "SHARE": 0, "QUICK_S": 3600.0}.items():  # no page shows sums of just before
        monkeypatch.setattr(sums, name, value)
    app = App(f"{server.url}?{'schema' if isinstance(server, PostgresServer) else 'namespace'}=w{secrets.token_hex(4)}")
    parts, browser = stocked(app), Browser(app.dashboard())
    paths = {page.name: address(page, parts) for page in READING}
    assert {name: browser.get(path).status_code for name, path in paths.items()} == dict.fromkeys(paths, 200)
    server.kill()
    chosen = random.Random(seed).sample(
        sorted(paths), len(paths) if soak else 2
    )  # a pool waits for a server, each time
    assert {name: states(browser, paths[name]) for name in chosen} == dict.fromkeys(chosen, (503, 503))
    assert browser.post("/do/pause-queue", {"queue": "crm", "reason": "r"}).status_code == 503
    server.start()
    assert {name: states(browser, path) for name, path in paths.items()} == dict.fromkeys(paths, (200, 200))
    assert browser.post("/do/pause-queue", {"queue": "crm", "reason": "r"}).status_code == 303
    app.store.close()


@on_a_loop
async def test_watchers_hear_that_the_file_is_gone_and_that_it_is_back(file: Path) -> None:
    app = App(f"sqlite:///{file}")
    stocked(app)
    app.store.close()
    app = App(f"sqlite:///{file}")
    good = file.read_bytes()
    telling = Live(Glance(lambda: app.store), lambda: 0.01)
    stream: Any = telling.events()
    assert "data: 0" in await anext(stream)
    file.write_bytes(b"no database" * 500)
    assert "data:" in await anext(stream)
    file.write_bytes(good)
    assert "data:" in await anext(stream)
    await stream.aclose()
    await telling.close()
    app.store.close()


def test_the_table_names_the_pages_that_need_no_store() -> None:
    assert {*NAMES} >= NEED_NONE


def test_file_that_was_removed_or_replaced_is_said_and_is_well_when_it_is_back(tmp_path: Path) -> None:
    path, aside = tmp_path / "work.db", tmp_path / "aside.db"
    store, other = SqliteStore(path), SqliteStore(tmp_path / "other.db")
    other.close()
    try:
        assert store.paused() == frozenset()
        path.rename(aside)
        with pytest.raises(StoreUnavailable, match="is gone"):
            store.paused()
        (tmp_path / "other.db").rename(path)
        with pytest.raises(StoreUnavailable, match="was replaced by another file"):
            store.paused()
        aside.rename(path)
        assert store.paused() == frozenset()
    finally:
        store.close()
