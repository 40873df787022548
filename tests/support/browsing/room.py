"""A folder with an app, its store, its pages and its workers: each of the last two a process of its own."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.support.command_line import COMMAND, environment

from redrive import App

PATIENCE_S = 60.0  # long, for a busy machine: what is waited for comes at once or never
TASKS = '''
"""A shop's work. Its tasks fail until somebody mends what they call: until a file of that name is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from redrive import SLO, App, Backoff, Breaker, Retry

HERE = Path(__file__).parent
app = App(os.environ.get("SHOP_STORE") or (HERE / "store-url").read_text())
app.dependency("crm-api", rate="200/s", breaker=Breaker(open_for="10m", max_open="10m"))
app.queue("reports", group_width=1)
SOON = Retry(max_attempts=2, backoff=Backoff.fixed("50ms"))
PATIENT = Retry(max_attempts=8)


@app.task(name="crm.push", queue="crm", dependency="crm-api", retry=PATIENT)
def push(record: int, fields: dict[str, str] | None = None) -> None:
    if not (HERE / "crm-is-up").exists():
        raise ConnectionError(f"record {record}: the CRM does not answer")


@app.task(name="billing.charge", queue="billing", retry=SOON, slo=SLO("99% within 30s"))
def charge(order: int, cents: int = 990, currency: str = "EUR") -> None:
    if not (HERE / "bank-is-up").exists():
        raise TimeoutError(f"order {order}: the bank did not answer within 10 s")


@app.task(name="mail.send", queue="mail", retry=Retry(max_attempts=1))
def send(to: str, subject: str = "Your order") -> None:
    if "@" not in to:
        raise ValueError(f"{to!r} is not an address")


@app.task(name="image.resize", queue="media")
def resize(path: str, width: int = 1200) -> None:
    raise MemoryError(f"{path} has 900 million pixels")


@app.task(name="report.build", queue="reports", retry=PATIENT)
def build(month: int) -> None:
    time.sleep(0.01)


@app.task(name="data.take_in", queue="data", retry=Retry(max_attempts=1))
def take_in(rows: list[dict[str, object]]) -> None:
    raise KeyError("customer_id")


@app.periodic("30 2 * * *", tz="Europe/Zurich", name="nightly-report", queue="reports")
def nightly() -> None: ...


@app.periodic(every="1m", name="heartbeat", queue="mail")
def beat() -> None: ...
'''
_numbers = count()


class Room:
    """The app of `TASKS` on a store, with `more` tasks. A file in `folder` mends what its tasks call: `crm-is-up`,
    `bank-is-up`."""

    def __init__(self, folder: Path, url: str, more: str = "") -> None:
        self.folder, self.url = folder, url
        (folder / "tasks.py").write_text(TASKS.lstrip() + more)
        (folder / "store-url").write_text(url)
        self._logs = count()
        self.app = self._imported()
        self.app.counts()  # makes the store, which commands want to find

    def _imported(self) -> App:
        """The app in this process, under a name of its own: a test has several."""
        name = f"browsing_tasks_{next(_numbers)}"
        spec = importlib.util.spec_from_file_location(name, self.folder / "tasks.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        app: App = module.app
        return app

    def mend(self, name: str) -> None:
        """Let what the tasks call answer from now on."""
        (self.folder / name).touch()

    def spoil(self, name: str) -> None:
        """The contrary."""
        (self.folder / name).unlink()

    @contextmanager
    def site(self, *options: str) -> Iterator[str]:
        """`redrive web`: the address of its pages, without the last slash."""
        with self._process("web", "--app", "tasks:app", "--port", "0", *options) as (_, log):
            yield said(log, r"open (http://\S+)/")[1]

    @contextmanager
    def site_beside_a_worker(self) -> Iterator[str]:
        """The address of its pages, while a worker of two of its queues runs."""
        with self.worker("--queues", "media,data", "--name", "web-1"), self.site() as url:
            yield url

    @contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """`redrive worker` with the app's schedules, once it is there."""
        known = len(self.app.workers())
        with self._process("worker", "--app", "tasks:app", "--scheduler", *options) as (process, log):
            until(lambda: len(self.app.workers()) > known or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield process

    def work(self, queue: str, *options: str) -> None:
        """Run a worker of this queue until it ends by itself: with `--burst`, or with `--drain`."""
        with self._process("worker", "--app", "tasks:app", "--queues", queue, *options) as (process, log):
            assert process.wait(PATIENCE_S) == 0, log.read_text()

    @contextmanager
    def _process(self, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        log = self.folder / f"{words[0]}-{next(self._logs)}.log"
        env = environment(REDRIVE_STATE_DIR=str(self.folder / "state"))
        if self.url.startswith("sqlite"):
            env["SHOP_STORE"] = "sqlite:///work.db"  # as short as a user would write it
        with log.open("wb") as file:
            process = subprocess.Popen([*COMMAND, *words], cwd=self.folder, env=env, stdout=file, stderr=file)
        try:
            yield process, log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Close the app's store."""
        self.app.store.close()


@contextmanager
def room(folder: Path, url: str | None = None, more: str = "") -> Iterator[Room]:
    """A room on this store; by default on SQLite in the folder."""
    made = Room(folder, url or f"sqlite:///{folder / 'work.db'}", more)
    try:
        yield made
    finally:
        made.close()


def until(condition: Callable[[], object], what: Callable[[], str] | str = "what was waited for") -> None:
    """Return once the condition holds; fail where it never does."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"{what() if callable(what) else what} did not come"
        time.sleep(0.02)


def said(log: Path, pattern: str) -> re.Match[str]:
    """What a process wrote that has this pattern."""
    found: list[re.Match[str]] = []

    def read() -> bool:
        found.extend(re.finditer(pattern, log.read_text()))
        return bool(found)

    until(read, lambda: f"{pattern} in {log.read_text()}")
    return found[0]
