"""What asks for pages as browsers do: one request after another, many that watch, and Chromium."""

from __future__ import annotations

import asyncio
import gzip
import re
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from .harness import Broken

ASSETS = re.compile(r'(?:href|src)="([^"]*/static/[^"]+)"')
CHROMIUM = Path("/usr/bin/chromium")
_HTML = {"Accept": "text/html"}


class Client:
    """One connection that is kept, and asks for HTML."""

    def __init__(self, at: str) -> None:
        self._connection = HTTPConnection(urlsplit(at).netloc, timeout=300)

    def get(self, path: str, headers: Mapping[str, str] = _HTML) -> tuple[bytes, Mapping[str, str]]:
        """The body as it was sent, and the headers. Raises Broken for what is no page."""
        self._connection.request("GET", path, headers=dict(headers))
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise Broken(f"{path} answered {answer.status}: {body[:2000].decode(errors='replace')}")
        return body, {name.lower(): value for name, value in answer.getheaders()}

    def close(self) -> None:
        self._connection.close()

    def took_ms(self, path: str) -> float:
        """From the request to the last byte."""
        begun = time.perf_counter()
        self.get(path)
        return (time.perf_counter() - begun) * 1000

    def first_load(self, path: str) -> tuple[int, int]:
        """Bytes of a page with all that it names: as they are, and as a browser that takes gzip gets them."""
        page, _ = self.get(path)
        plain = sent = 0
        for each in [path, *dict.fromkeys(ASSETS.findall(page.decode()))]:
            body, headers = self.get(each.replace("&amp;", "&"), {**_HTML, "Accept-Encoding": "gzip"})
            sent += len(body)
            plain += len(gzip.decompress(body)) if headers.get("content-encoding") == "gzip" else len(body)
        return plain, sent


class Watched:
    """What browsers saw that have a page open: how many changes, and how many pages they fetched."""

    def __init__(self) -> None:
        self.changes = self.pages = 0


def watch(at: str, browsers: int, seconds: float) -> Watched:
    """So many browsers have the overview open, and fetch it again after each change, one request at a time each."""
    return asyncio.run(_watch(at, browsers, seconds))


async def _watch(at: str, browsers: int, seconds: float) -> Watched:
    seen = Watched()
    tasks = [asyncio.create_task(_browse(at, seen)) for _ in range(browsers)]
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return seen


async def _browse(at: str, seen: Watched) -> None:
    place = urlsplit(at)
    events, to_events = await asyncio.open_connection(place.hostname, place.port)
    try:
        to_events.write(f"GET /live HTTP/1.1\r\nHost: {place.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode())
        shown, changed, wanted = None, asyncio.Event(), ""

        async def read_events() -> None:
            nonlocal wanted
            while line := await events.readline():
                if line.startswith(b"data: "):
                    wanted = line[6:].decode().strip()
                    changed.set()

        reading = asyncio.create_task(read_events())
        try:
            while True:
                await changed.wait()
                changed.clear()
                if shown is not None and wanted != shown:
                    seen.changes += 1
                    await _refetch(place.hostname or "", place.port or 0, wanted)
                    seen.pages += 1
                shown = wanted
        finally:
            reading.cancel()
    finally:
        to_events.close()


async def _refetch(host: str, port: int, version: str) -> None:
    """By a connection of its own: a server ends those that are idle for seconds."""
    page, to_page = await asyncio.open_connection(host, port)
    try:
        asked = f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/html\r\nX-Redrive-Live: {version}\r\n"
        to_page.write(f"{asked}Connection: close\r\n\r\n".encode())
        answer = await page.read()
    finally:
        to_page.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise Broken(f"the overview answered a watcher with {answer[:100]!r}")


def reacts_ms(at: str, times: int) -> list[float]:
    """From the start of the navigation until the overview's script runs, in Chromium with nothing cached; empty where
    there is no Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return []
    if not CHROMIUM.exists():
        return []
    took: list[float] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        for _ in range(times):
            context = browser.new_context()  # whose cache is empty
            page = context.new_page()
            page.goto(at, wait_until="load")
            took.append(float(page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")))
            context.close()
        browser.close()
    return took
