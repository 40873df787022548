"""Ask a site of the control room as a browser does, without a server; and fill its store, so that each page shows
something."""

from __future__ import annotations

import asyncio
import functools
import html.parser
import re
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from redrive import App, Breaker, Draft
from redrive.batch import Batch, BatchRef
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.presence import ProcessCell, WorkerInfo
from redrive.web.table import PAGES, SitePage

HERE = ("127.0.0.1", 51000)
ORIGIN = "http://127.0.0.1:8787"
JSON = {"Accept": "application/json"}
FP = "ab" * 8


class Browser:
    """Sends requests to a site from `client`, keeps its cookies, and fills in the token of forms."""

    def __init__(self, site: Any, *, origin: str = ORIGIN, client: tuple[str, int] = HERE, **headers: str) -> None:
        self.site, self.origin, self.client = site, origin, client
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.cookies = httpx.Cookies()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self.arequest(method, path, **options))

    async def arequest(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.site, client=self.client)
        async with httpx.AsyncClient(transport=transport, base_url=self.origin, cookies=self.cookies) as http:
            options["headers"] = {"Accept": "text/html", **self.headers, **options.get("headers", {})}
            answer = await http.request(method, path, **options)
            self.cookies = http.cookies
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def json(self, path: str) -> Any:
        return self.get(path, headers=JSON).json()

    def post(self, path: str, form: Mapping[str, Any] | None = None, **options: Any) -> httpx.Response:
        """Send a form with the token of the site's cookie; ask for a page first where there is no cookie yet."""
        given = {"csrf": self.token, **(form or {})}
        headers = {"Content-Type": "application/x-www-form-urlencoded", **options.pop("headers", {})}
        return self.request("POST", path, content=urlencode(given, doseq=True), headers=headers, **options)

    @property
    def token(self) -> str:
        if "redrive_csrf" not in self.cookies:
            self.get(f"{getattr(self.site, 'base_path', '')}/keys")
        return self.cookies["redrive_csrf"]


class Tags(html.parser.HTMLParser):
    """The tags of a page with their attributes, without the attributes' values; and all of the values by attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shape: list[tuple[str, tuple[str, ...]]] = []
        self.given: list[tuple[str, str, str]] = []  # tag, attribute, value
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, tuple(sorted(name for name, _ in attrs))))
        self.given += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def links(self) -> list[str]:
        """Every address in the page."""
        return [value for _, name, value in self.given if name in ("href", "src", "action", "data-live", "data-root")]


def stocked(app: App) -> dict[str, dict[str, str]]:
    """Put something of everything into the app's store. Returns the parts of each page's address, by its name."""
    from redrive.triage.pauses import pause

    if "crm" not in app.dependencies:
        app.dependency("crm", breaker=Breaker())
    if "push" not in app.tasks:

        @app.periodic("@hourly")
        @app.task(name="push", queue="crm", dependency="crm")
        def push(record_id: int = 1) -> None: ...

    store = app.store
    dead = died(app, 3)
    store.put([Draft(task="push", queue="crm", body=b'{"record_id":2}')])
    app.dlq.quarantine([dead[2]], reason="it kills the parser")
    app.dlq.note(FP, "CRM-77")
    plan = app.dlq.select(f"id:{dead[0]}").plan()
    run = app.dlq.select(f"id:{dead[1]}").plan()
    run.start(reason="their fix is out")
    pause(store, "idle", reason="maintenance")
    at = {"started_ms": store.now_ms(), "seen_ms": store.now_ms()}
    ProcessCell(store).write(WorkerInfo(name="vm/stocked", host="vm", pid=4711, **at))
    batch = enqueued(app.batch([Draft(task="push", queue="crm")], name="sync"))
    return {
        "queue": {"queue": "crm"},
        "group": {"fingerprint": FP},
        "edit": {"id": dead[0]},
        "message": {"id": dead[0]},
        "plan": {"id": plan.id},
        "run": {"id": run.id},
        "dependency": {"dependency": "crm"},
        "task": {"task": "push"},
        "worker": {"worker": "vm/stocked"},
        "batch": {"id": batch.id},
    }


def enqueued(batch: Batch) -> BatchRef:
    """Enqueue the batch on a thread of its own, as an event loop of a test may run on this one."""
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(batch.enqueue).result()


def died(app: App, count: int, text: str = "no", **of: Any) -> list[str]:
    """Put messages that die at once, all of one fingerprint."""
    queue = of.get("queue", "crm")
    drafts = [Draft(task="push", body=b'{"record_id":1}', **{"queue": queue, **of}) for _ in range(count)]
    ids = [put.id for put in app.store.put(drafts)]
    fault, left = Fault(Kind.PERMANENT, "ValueError", text, FP, attempt=1), count
    while left:
        taken = app.store.exchange([], [ClaimRequest(queue, left, 30_000)]).deliveries
        app.store.exchange([Settlement(each.receipt, DeadLetter("permanent"), fault) for each in taken], [])
        left -= len(taken)
    return ids


def address(page: SitePage, parts: Mapping[str, Mapping[str, str]]) -> str:
    """The address of a page of a stocked app."""
    given = parts.get(page.name, {})
    return re.sub(r"\{(\w+)(?::path)?\}", lambda found: quote(given[found[1]], safe=""), page.path)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that awaits on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


NAMES = [page.name for page in PAGES]
