"""A site on a real store with dead letters: what its pages show, and what their buttons do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from redrive import App, Reject, Retry
from redrive.message import Lane, Message
from redrive.web import Site

SECRET = "hunter2-in-the-clear"
BIG = 12345678901234567890123


class Pages:
    """A browser without scripts, and a program that asks for JSON, on the same site."""

    def __init__(self, site: Site) -> None:
        self._site, self._cookies = site, httpx.Cookies()

    def html(self, path: str, **query: Any) -> httpx.Response:
        return self._send("GET", path, params=query or None)

    def json(self, path: str, **query: Any) -> Any:
        return self._send("GET", path, params=query or None, headers={"Accept": "application/json"}).json()

    def post(self, path: str, fields: dict[str, Any]) -> httpx.Response:
        """Send a form as a browser does, with the token of a page that it has seen."""
        if "redrive_csrf" not in self._cookies:
            self.html("/keys")
        form = {"csrf": self._cookies["redrive_csrf"], **fields}
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._send("POST", path, content=urlencode(form, doseq=True), headers=kind)

    def do(self, action: str, **fields: Any) -> httpx.Response:
        return self.post(f"/do/{action}", fields)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._sent(method, path, **options))

    async def _sent(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._site, client=("127.0.0.1", 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", cookies=self._cookies) as http:
            options["headers"] = {"Accept": "text/html", **options.get("headers", {})}
            answer = await http.request(method, path, **options)
            self._cookies = http.cookies
        return answer

    def followed(self, response: httpx.Response) -> str:
        """The page to which an action leads, with what it says was done."""
        assert response.status_code == 303, text_of(response)
        return text_of(self.html(response.headers["location"]))


def text_of(response: httpx.Response) -> str:
    """What a reader sees of a page."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", response.text)).split())


@contextmanager
def shop(folder: Path) -> Iterator[App]:
    """Forty orders: every fourth fails for ever, every fifth of the others is refused, and the rest are kept when done.
    Three mails wait."""
    app = App(f"sqlite:///{folder}/work.db")

    @app.task(name="order.ship", queue="crm", retry=Retry(max_attempts=1), keep_result="1h")
    def ship(number: int, city: str = "Bonn", password: str = "", note: str | None = None) -> int:
        if number % 4 == 0:
            raise ValueError(f"no stock for {number}")
        if number % 5 == 0:
            raise Reject("unknown tenant")
        return number

    @app.task(name="mail.send", queue="mail")
    def mail(to: str) -> None: ...

    for number in range(40):
        ship.using(headers={"tenant": "acme", "api-key": SECRET}).enqueue(
            number, city="Graz" if number % 4 == 0 else "Bonn", password=SECRET
        )
    for number in range(3):
        mail.using(delay="1h").enqueue(f"{number}@example.org")
    app.run_worker(["crm"], burst=True)
    try:
        yield app
    finally:
        app.store.close()


def dead(app: App, error: str = "ValueError") -> list[Message]:
    """The dead messages with this error, the longest dead first."""
    return [m for m in app.store.peek(Lane.DEAD, limit=500).messages if m.faults[-1].error.endswith(error)]


def audited(app: App, action: str) -> Any:
    """The last entry of the audit log for this action."""
    return next(entry for entry in app.audit if entry.action == action)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with shop(tmp_path) as app:
        yield app


@pytest.fixture
def pages(app: App) -> Pages:
    return Pages(app.dashboard())
