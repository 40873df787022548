"""Who is alive, seen from outside: real workers that are killed, and one that stops, on each engine."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer

from redrive import App, Draft
from redrive.presence import GONE_MS, WorkerInfo

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0  # for what comes at once or never
TASKS = """
import asyncio

from redrive import App

app = App.from_env()


@app.periodic(every="1h", queue="night")
@app.task(name="push", queue="crm")
async def push() -> None:
    await asyncio.Event().wait()
"""


class Site:
    """A store, and the processes on it."""

    def __init__(self, folder: Path, engine: str, url: str) -> None:
        folder.mkdir()
        (folder / "fleet_tasks.py").write_text(TASKS)
        self.folder, self.engine, self.app = folder, engine, App(url)
        self._env = {name: text for name, text in os.environ.items() if not name.startswith("REDRIVE_")}
        self._env |= {"REDRIVE_URL": url, "REDRIVE_LOG": "off", "REDRIVE_OUTPUT": "table", "COLUMNS": "140"}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.killed_ms = 0

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "redrive", *words]
        self.processes.append(subprocess.Popen(argv, cwd=self.folder, env=self._env, start_new_session=True))
        return self.processes[-1]

    def said(self, *words: str) -> str:
        argv = [sys.executable, "-m", "redrive", *words]
        done = subprocess.run(argv, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=PATIENCE_S)
        return done.stdout + done.stderr

    def named(self, name: str) -> list[WorkerInfo]:
        return [info for info in self.app.workers() if info.kind == "worker" and info.name.endswith(f"/{name}-0")]

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, f"it did not come: {self.app.workers()}"
            time.sleep(0.05)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.killed_ms = self.app.store.now_ms()
        os.killpg(process.pid, signal.SIGKILL)  # the parent too: nothing takes its place
        process.wait()

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.app.store.close()


@pytest.fixture
def sites(tmp_path: Path, postgres_server: PostgresServer, redis_server: RedisServer) -> Iterator[list[Site]]:
    own = f"fleet_{secrets.token_hex(4)}"
    urls = {
        "sqlite": f"sqlite:///{tmp_path}/work.db",
        "postgres": f"{postgres_server.url}?schema={own}",
        "redis": f"{redis_server.url}?namespace={own}",
    }
    with contextlib.ExitStack() as ending:
        sites = [Site(tmp_path / engine, engine, url) for engine, url in urls.items()]
        for site in sites:
            ending.callback(site.end)
        yield sites


def test_a_killed_worker_is_gone_within_15_s_with_what_it_held_and_one_that_stops_is_not_listed(
    sites: list[Site],
) -> None:
    for site in sites:  # at once, so that they wait together
        ids = {put.id for put in site.app.store.put([Draft(task="push", queue="crm")] * 3)}
        killed = site.start("worker", "fleet_tasks:app", "--name", "killed", "-q", "crm:2", "--scheduler")
        site.until(lambda site=site: [info.held for info in site.named("killed")] == [3])
        (info,) = site.named("killed")
        assert not info.gone and info.running == 2 and {message.id for message in info.messages} == ids
        assert [(queue.name, queue.concurrency, queue.held) for queue in info.queues] == [("crm", 2, 3)]
        assert [each.schedules for each in site.app.workers() if each.kind == "scheduler"] == [("push",)]

        stopped = site.start("worker", "fleet_tasks:app", "--name", "stopped", "-q", "mail")
        site.until(lambda site=site: site.named("stopped"))
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(PATIENCE_S) == 0
        assert site.named("stopped") == []
        site.kill(killed)

    for site in sites:
        site.until(lambda site=site: site.app.store.now_ms() - site.killed_ms >= GONE_MS)
        found = site.app.workers()  # the first look after 15 s
        assert {(info.kind, info.gone) for info in found} == {("worker", True), ("scheduler", True)}
        (info,) = site.named("killed")
        assert info.held == 3 and info.running == 2 and len(info.messages) == 3
        print(f"\n{site.engine}: redrive workers -v\n{site.said('workers', '-v')}")
        assert "gone" in site.said("workers", "-v")


def test_a_worker_that_is_asked_to_drain_ends_by_itself_with_its_supervisor(sites: list[Site]) -> None:
    asked = []
    for site in sites:
        site.app.store.put([Draft(task="push", queue="crm")])
        process = site.start("worker", "fleet_tasks:app", "--name", "asked", "-q", "crm", "--grace", "100ms")
        other = site.start("worker", "fleet_tasks:app", "--name", "other", "-q", "mail")
        site.until(lambda site=site: [info.running for info in site.named("asked")] == [1] and site.named("other"))
        (info,) = site.named("asked")
        assert "is asked to drain" in site.said("workers", "drain", info.name, "--reason", "it leaks memory")
        asked.append((site, info, process, other))
    for site, info, process, other in asked:
        assert process.wait(PATIENCE_S) == 0
        assert site.named("asked") == [] and site.named("other") and other.poll() is None
        assert site.app.store.counts("crm").ready == 1, "what ran past the grace was released"
        (entry,) = site.app.audit
        assert (entry.action, entry.about, entry.reason) == ("drain", f"worker/{info.name}", "it leaks memory")
