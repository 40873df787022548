"""The pages work wherever they are mounted: each address in them leads below the mount and answers, and so do files,
live updates and forms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from tests.support.mounts import MOUNTS, Mount, mounted
from tests.support.sites import JSON, NAMES, Browser, Tags, address, stocked

from redrive import App
from redrive.stores.sqlite.store import SqliteStore
from redrive.web.table import PAGES, SitePage


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, dict[str, dict[str, str]]]]:
    app = App(store=SqliteStore(tmp_path_factory.mktemp("stock") / "work.db"))
    yield app, stocked(app)
    app.store.close()


@pytest.fixture(scope="module", params=MOUNTS)
def mount(request: pytest.FixtureRequest, stock: tuple[App, Any]) -> Mount:
    return mounted(request.param, stock[0])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_address_of_a_page_is_below_the_mount_and_answers(mount: Mount, page: SitePage, stock: Any) -> None:
    at = mount.root + address(page, stock[1])
    browser = Browser(mount.app)
    answer = browser.get(at)
    assert answer.status_code == 200, answer.text[-2000:]
    links = {urljoin(at, link) for link in Tags(answer.text).links() if not link.startswith("#")}
    assert len(links) > 10
    for link in sorted(links):
        path = urlsplit(link).path
        assert link.startswith(f"{mount.root}/") and not urlsplit(link).netloc
        if "/do/" in path or path.endswith("/live") or link in mount.answered:
            continue
        assert browser.get(link).status_code == 200, link
        mount.answered.add(link)  # most are in every page


def test_files_are_served_below_the_mount_with_their_types(mount: Mount) -> None:
    for name, kind in (("redrive.css", "text/css"), ("redrive.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        answer = Browser(mount.app).get(f"{mount.root}/static/{name}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)


def test_json_is_answered_below_the_mount(mount: Mount) -> None:
    assert Browser(mount.app).json(f"{mount.root}/queues/crm")["queue"] == "crm"


def test_a_form_acts_leads_back_below_the_mount_and_says_what_it_did(mount: Mount, stock: Any) -> None:
    browser = Browser(mount.app)
    page = browser.get(f"{mount.root}/queues/idle")
    to = next(link for link in Tags(page.text).links() if link.endswith("/do/resume-queue"))
    given = {"csrf": browser.cookies["redrive_csrf"], "queue": "idle"}
    answer = browser.request("POST", to, data=given)
    assert (answer.status_code, urlsplit(answer.headers["location"]).path) == (303, f"{mount.root}/queues/idle")
    assert all(f"path={mount.root or '/'};" in f"{cookie.lower()};" for cookie in answer.headers.get_list("set-cookie"))
    assert "Queue idle is worked again." in browser.get(f"{mount.root}/queues/idle").text
    to = to.replace("resume", "pause")
    assert browser.request("POST", to, data={"queue": "idle", "csrf": "no"}).status_code == 403
    answer = browser.request("POST", to, json={"queue": "idle", "reason": "r"}, headers=JSON)
    assert answer.json()["at"] == f"{mount.root}/queues/idle"


def test_live_updates_are_streamed_below_the_mount_and_left_out_under_wsgi(mount: Mount) -> None:
    page = Browser(mount.app).get(f"{mount.root}/queues")
    live = [value for _, name, value in Tags(page.text).given if name == "data-live"]
    if mount.is_wsgi:
        assert live == [] and "this server cannot push" in page.text
        assert Browser(mount.app).get(f"{mount.root}/live").status_code == 204
        return
    assert live == [f"{mount.root}/live"]
    kind, first = asyncio.run(first_event(mount, live[0]))
    assert kind.startswith("text/event-stream") and "event: version" in first


def test_what_is_not_there_says_so_below_the_mount(mount: Mount) -> None:
    answer = Browser(mount.app).get(f"{mount.root}/nowhere/at/all")
    assert answer.status_code == 404
    links = [link for link in Tags(answer.text).links() if not link.startswith("#")]
    assert links and all(link.startswith(f"{mount.root}/") for link in links)


def test_a_login_leads_back_below_the_mount(stock: Any) -> None:
    token = "correct-horse-battery-staple"
    for name in MOUNTS:
        mount = mounted(name, stock[0], token=token)
        browser = Browser(mount.app)
        to = browser.get(f"{mount.root}/queues").headers["location"]
        assert urlsplit(to).path == f"{mount.root}/login"
        browser.get(to)
        answer = browser.request("POST", to, data={"token": token, "csrf": browser.cookies["redrive_csrf"]})
        assert urlsplit(answer.headers["location"]).path == f"{mount.root}/queues"
        assert browser.get(f"{mount.root}/queues").status_code == 200


async def first_event(mount: Mount, path: str) -> tuple[str, str]:
    """The type of a stream, and what it begins with; then the browser is gone."""
    said: list[dict[str, Any]] = []
    enough = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not said:
            return {"type": "http.request", "body": b"", "more_body": False}
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)
        if message.get("body"):
            enough.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    serving = asyncio.ensure_future(mount.app(scope, receive, send))
    await asyncio.wait_for(enough.wait(), 30)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return dict(said[0]["headers"])[b"content-type"].decode(), said[1]["body"].decode()
