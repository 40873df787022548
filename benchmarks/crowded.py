"""What a visitor of the pages waits beside those who hold connections, send slowly, send much, or watch."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from redrive.stores import open_store

from .dead import fill
from .harness import ROOT, Child, Options, Place, Reading, fresh, percentile

DESCRIPTORS = 1_024  # that the site begins with, as a shell's child does
PATIENCE_S, PAUSE_S = 10.0, 0.05  # after which a visitor gives up; between two visits
FORM = b"token=" + b"x" * (15 * 1024 * 1024)
CROWDS = {"alone": 0, "half-open": 1_100, "slow bodies": 10_000, "forms of 15 MiB": 20, "streams": 500}
HEADS = {
    "half-open": "GET /queues HT",
    "slow bodies": "POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000\r\n\r\ntoken=",
    "forms of 15 MiB": f"POST /login HTTP/1.1\r\nHost: {{host}}\r\nContent-Length: {len(FORM)}\r\n\r\n",
    "streams": "GET /live HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n",
}


def crowded(options: Options) -> list[Reading]:
    """A visitor's wait for the overview, alone and beside each crowd; with --before, of that checkout too."""
    place = fresh(options, "crowded")
    with closing(open_store(place.url)) as store:
        fill(store, min(options.dead, 1_000))
    roots = {"": ROOT} | ({", before": options.before} if options.before else {})
    short = options.dead < 10_000  # a test's run
    found: list[Reading] = []
    for name, count in CROWDS.items():
        for which, root in roots.items():
            found += _beside(
                place, root, name, min(count, 20) if short else count, f"{name}{which}", 5 if short else 60
            )
    return found


def _beside(place: Place, root: Path, crowd: str, count: int, named: str, visits: int) -> list[Reading]:
    port, ready = place.folder / "port", place.folder / "ready"
    for each in (port, ready):
        each.unlink(missing_ok=True)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, limits[1]), limits[1]))
    site = Child(place.folder, "site", place.url, place.folder / "calls", port, root=root)
    try:
        site.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    try:
        at = site.written(port)
        if not count:
            return _visits(at, named, visits)
        with Child(place.folder, "crowd", at, crowd, count, ready) as others:
            others.written(ready)
            return _visits(at, named, visits)
    finally:
        site.kill()
        site.__exit__(None, None, None)


def _visits(at: str, named: str, count: int) -> list[Reading]:
    """Each over a new connection. One that gets no page has waited for as long as a visitor's patience."""
    took: list[float] = []
    failed = 0
    for _ in range(count):
        begun = time.perf_counter()
        try:
            with closing(HTTPConnection(urlsplit(at).netloc, timeout=PATIENCE_S)) as connection:
                connection.request("GET", "/", headers={"Accept": "text/html"})
                answer = connection.getresponse()
                answer.read()
            if answer.status != 200:
                raise HTTPException(str(answer.status))
            took.append((time.perf_counter() - begun) * 1000)
        except (OSError, HTTPException):
            failed += 1
            took.append(PATIENCE_S * 1000)
            if failed == 5:
                break  # shut out: more visits would say the same
        time.sleep(PAUSE_S)
    p95 = percentile(took, 0.95)
    print(f"  {named:28} p50 {percentile(took, 0.5):7.1f}  p95 {p95:8.1f} ms  {failed} without a page", file=sys.stderr)
    return [
        Reading(f"{named}, p95", "ms", [p95], None if named.endswith("before") else "≤ 1000"),
        Reading(f"{named}, visits without a page", "visits", [failed], None if named.endswith("before") else "≤ 0"),
    ]


def crowd(at: str, kind: str, count: str, ready: str) -> None:
    """Keep up so many connections of a kind until SIGTERM: one that the site closes is opened again."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_crowd(at, kind, int(count), Path(ready)))


async def _crowd(at: str, kind: str, count: int, ready: Path) -> None:
    place = urlsplit(at)
    head = HEADS[kind].format(host=place.netloc).encode()
    begun = asyncio.Semaphore(0)  # a place for each whose first try was made

    async def hold() -> None:
        first = True
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.wait_for(asyncio.open_connection(place.hostname, place.port), PATIENCE_S)
                try:
                    writer.write(head + (FORM if kind.startswith("forms") else b""))
                    if first:
                        begun.release()
                    first = False
                    while await reader.read(65_536):
                        pass
                finally:
                    writer.close()
            if first:
                begun.release()
            first = False
            await asyncio.sleep(0.2)

    held = [asyncio.create_task(hold()) for _ in range(count)]
    for _ in range(count * 9 // 10):
        await begun.acquire()
    ready.write_text("ready")
    await asyncio.gather(*held)
