"""A page that somebody watches while things happen to the store, and how long it takes until the page says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page
from tests.support.browsing import holder as holding
from tests.support.browsing.chromium import Tab, tab
from tests.support.browsing.room import Room, room
from tests.support.servers import PostgresServer, RedisServer, Server

PATIENCE_S = float(
    os.environ.get("P", 90)
)  # long, for a busy machine: what is waited for comes within seconds or never
MORE = '''

@app.task(name="stats.roll", queue="stats")
async def roll(n: int) -> None:
    """Blocks the event loop, which a hung worker does, until a file is there."""
    while not (HERE / "rolled").exists():
        time.sleep(0.02)
'''


@dataclass
class Stage:
    """The store of an engine with a worker, its pages, and one of them in a browser. `rows` has what was measured."""

    engine: str
    home: Room
    at: Tab
    site: str
    server: Server | None
    rows: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def page(self) -> Page:
        return self.at.page

    def until(self, is_so: Callable[[], object], what: str) -> float:
        """Wait until it is so; return when, by time.monotonic()."""
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end_s, f"{what} did not come\n{self.page.locator('body').inner_text()[:3000]}"
            self.page.wait_for_timeout(50)
        return time.monotonic()

    def reads(self, part: str, *words: str) -> Callable[[], bool]:
        """Whether a part of the page, by its selector, has all these words."""

        def is_so() -> bool:
            texts = self.page.locator(part).all_text_contents()
            return any(all(word in text for word in words) for text in texts)

        return is_so

    def measure(self, line: str, says: Callable[[], object], began_s: float, known: Callable[[], object]) -> str:
        """Wait until the page says it. Return a row: the seconds since it began, and since the store knew."""
        known_s = 0.0

        def both() -> bool:
            nonlocal known_s
            if not known_s and known():
                known_s = time.monotonic()
            return bool(says())

        said_s = self.until(both, line)
        self.rows.append((line, said_s - began_s, max(0.0, said_s - (known_s or said_s))))
        return f"{self.engine:9}{line:44}{self.rows[-1][1]:6.1f} s{self.rows[-1][2]:8.1f} s after the store knew"

    def needs(self, *words: str) -> Callable[[], bool]:
        """Whether the page lists something of these words under what needs a person."""
        return self.reads("[data-part=needs] li", *words)


@contextmanager
def stage(engine: str, folder: Path, browser: Browser) -> Iterator[Stage]:
    """An empty store of its own server, where the engine has one, which may be killed and stopped."""
    with ExitStack() as stack:
        server: PostgresServer | RedisServer | None = None
        if engine != "sqlite":
            server = stack.enter_context(PostgresServer() if engine == "postgres" else RedisServer(appendonly=True))
        home = stack.enter_context(room(folder, None if server is None else server.url, MORE))
        site = stack.enter_context(home.site())
        at = stack.enter_context(tab(browser, site))
        at.open("/")
        yield Stage(engine, home, at, site, server)


@contextmanager
def stopped(made: Stage) -> Iterator[None]:
    """The store stops: its server is sent SIGSTOP; of a file of SQLite, a process that holds its locks is."""
    if made.server is not None:
        made.server.pause()
        try:
            yield
        finally:
            made.server.resume()
        return
    argv = [sys.executable, "-I", "-S", holding.__file__, str(made.home.folder / "work.db-shm")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
            os.kill(holder.pid, signal.SIGSTOP)
            yield
        finally:
            holder.kill()
