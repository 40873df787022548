"""A worker whose event loop is blocked, seen from outside: real processes on each engine. What it had claimed runs
elsewhere, and its log, status, an alert and the pages say so; the test prints after how many seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import free_ports
from tests.support.urls import url_of

from redrive import App

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0  # for what comes soon or never
LEASE_S = 6
CHARGES = 8
TASKS = """
import os
import time
from pathlib import Path

from redrive import App

app = App.from_env()


@app.task(name="stats.roll", queue="pay")
async def roll() -> None:
    Path("blocked").write_text(str(time.time()))
    while not Path("go").exists():
        time.sleep(0.02)


@app.task(name="charge", queue="pay")
async def charge(n: int) -> None:
    with Path("charged").open("a") as file:
        file.write(f"{n} {os.environ['WORKER']} {time.time()}\\n")


@app.on("worker_hung")
def hung(alert) -> None:
    with Path("alerts").open("a") as file:
        file.write(f"{alert.state} {time.time()} {alert.text}\\n")
"""


class Site:
    """A folder, a store, and the processes on it."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "hung_tasks.py").write_text(TASKS)
        self.folder, self.url = folder, url
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        env = {name: text for name, text in os.environ.items() if not name.startswith("REDRIVE_")}
        env |= {"REDRIVE_URL": self.url, "WORKER": name, "REDRIVE_STATE_DIR": str(self.folder / "state")}
        argv = [sys.executable, "-m", "redrive", *words]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(argv, cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def worker(self, name: str) -> None:
        self.start(name, "worker", "hung_tasks:app", "--name", name, "--lease", f"{LEASE_S}s", "--log", "text")

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def stop(self) -> None:
        (self.folder / "go").touch()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def site(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, url_of(engine, request, tmp_path))
    yield made
    made.stop()


def until(look: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + PATIENCE_S
    while not (value := look()):
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.05)
    return value


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
@pytest.mark.turns(3)
def test_what_a_hung_worker_had_claimed_runs_elsewhere_and_everybody_says_that_it_hangs(
    engine: str, site: Site
) -> None:
    app = App(site.url)
    from_env = {**os.environ, "REDRIVE_URL": site.url}
    put = "from hung_tasks import app, roll, charge; app.enqueue_many([roll.draft(), *map(charge.draft, range(8))])"
    subprocess.run([sys.executable, "-c", put], cwd=site.folder, env=from_env, check=True)
    port = next(free_ports())
    site.start("web", "web", "--app", "hung_tasks:app", "--port", str(port))
    until(lambda: "http://" in site.text("web.log"))
    site.worker("one")
    began_s = float(until(lambda: site.text("blocked")))
    site.worker("two")
    seconds: dict[str, float] = {}

    def page() -> bool:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/workers", headers={"Accept": "application/json"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
            return any(worker["hung"] for worker in json.load(answer)["workers"])
        return False

    looks: dict[str, Callable[[], bool]] = {
        "log": lambda: "worker_hung" in site.text("one.log"),
        "status": lambda: any("is hung" in need.text for need in app.status().needs),
        "page": page,
        "alert": lambda: site.text("alerts").startswith("firing"),
        "run elsewhere": lambda: len(site.text("charged").splitlines()) == CHARGES,
    }

    def look() -> bool:
        for name, is_so in looks.items():
            if name not in seconds and is_so():
                seconds[name] = time.time() - began_s
        return len(seconds) == len(looks)

    try:
        until(look)
    except AssertionError:
        print(seconds, {name: site.text(f"{name}.log") for name in ("one", "two", "web")})
        raise
    print(f"{engine}: lease {LEASE_S} s; seconds from the block until", {k: round(v, 1) for k, v in seconds.items()})
    lines = [line.split() for line in site.text("charged").splitlines()]
    assert sorted(int(n) for n, _, _ in lines) == list(range(CHARGES))
    assert {name for _, name, _ in lines} == {"two"}
    log = site.text("one.log")
    assert "it runs stats.roll (" in log and "time.sleep(0.02)" in log
    (site.folder / "go").touch()
    until(lambda: "worker_back" in site.text("one.log") and app.status().ok)
    until(lambda: "resolved" in site.text("alerts"))
    app.store.close()
