"""The pages of an app on a SQLite store, visited as a browser without scripts does: follow links, send forms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx

import redrive
from redrive.stores.sqlite.store import SqliteStore
from redrive.web import ALL, Permission, Site, User

Form = tuple[str, dict[str, str]]  # where it is sent, and its fields as they are filled in


class Pages:
    """An app whose tasks fail while `broken`, its site, and a visitor, who is ann."""

    def __init__(self, folder: Path) -> None:
        self.app = redrive.App(store=SqliteStore(folder / "work.db"))
        self.broken = True
        self.user = User("ann", ALL)
        once = redrive.Retry(max_attempts=1)

        @self.app.task(name="crm.push", queue="crm", retry=once)
        def push(record: int) -> None:
            self._work(f"no record {record}")

        @self.app.task(name="mail.send", queue="mail", retry=once, dependency="smtp")
        def send(to: str) -> None:
            self._work("mailbox is full")

        self.push, self.send = push, send
        self.app.dependency("smtp", rate="1000/s", breaker=redrive.Breaker(min_calls=1000))
        self._loop = asyncio.Runner()
        self.show(Site(self.app, registry=self.app, authorize=lambda request: self.user))

    def show(self, site: Site) -> None:
        """Visit this site from now on."""
        reached = httpx.ASGITransport(site, client=("127.0.0.1", 50000))
        self._browser = httpx.AsyncClient(transport=reached, base_url="http://127.0.0.1", follow_redirects=True)

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._browser.aclose())
        self._loop.close()
        self.app.store.close()

    def _work(self, why: str) -> None:
        if self.broken:
            raise ValueError(why)

    def bury(self, pushes: int = 0, sends: int = 0) -> None:
        """Let so many messages die."""
        for n in range(pushes):
            self.push.enqueue(n)
        for n in range(sends):
            self.send.enqueue(f"{n}@example.com")
        self.work()

    def work(self, *queues: str) -> None:
        """Let a worker run until it has nothing left to do, and its redrive runs get no further: a burst ends once its
        queues are empty, also between two steps of a run."""
        before = None
        while (now := [(run.id, run.phase, run.counts) for run in self.app.dlq.runs()]) != before:
            before = now
            self.app.run_worker(list(queues) or ["crm", "mail"], burst=True)

    def may(self, *permissions: Permission) -> None:
        self.user = User("ann", frozenset({Permission.VIEW, *permissions}))

    # -- as a browser

    def ask(self, method: str, path: str, *, accept: str = "text/html", **sent: Any) -> httpx.Response:
        """One request, and where it is redirected to."""
        headers = {"Accept": accept}
        return self._loop.run(self._browser.request(method, path, headers=headers, **sent))

    def status(self, path: str) -> int:
        return self.ask("GET", path).status_code

    def get(self, path: str) -> str:
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def json(self, path: str) -> dict[str, Any]:
        answer = self.ask("GET", path, accept="application/json")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def post(self, action: str, **fields: object) -> httpx.Response:
        """What a program sends."""
        return self.ask("POST", f"/do/{action}", accept="application/json", json=fields)

    def send_form(self, page: str, action: str, **typed: str) -> httpx.Response:
        """Send the form of the page that leads to this action, with what is typed into it; follows to the next page."""
        ((to, fields),) = [form for form in forms(page) if form[0].endswith(f"/do/{action}")]
        assert typed.keys() <= fields.keys(), f"{action} has no field for {typed.keys() - fields.keys()}"
        return self.ask("POST", to, data=fields | typed)

    # -- what the store says

    def audited(self, *actions: str) -> list[tuple[str, str, str]]:
        """Action, actor and reason of the audit log, oldest first."""
        found = [(e.action, e.claimed or e.actor, e.reason) for e in self.app.audit if e.action in actions]
        return found[::-1]


def text_of(page: str) -> str:
    """What a reader sees of a page."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def actions(page: str) -> set[str]:
    """The actions whose forms a page has, without the one that the head of each page has."""
    return {to.rpartition("/")[2] for to, _ in forms(page) if "/do/" in to} - {"save-view"}


def forms(page: str) -> Iterable[Form]:
    found = _Forms()
    found.feed(page)
    return found.found


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append((given.get("action", ""), {}))
        elif tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            self.found[-1][1][given["name"]] = given.get("value", "on")
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and ("selected" in given or self._select not in self.found[-1][1]):
            self.found[-1][1][self._select] = given["value"]
