"""Auto-redrive with real workers that are killed on the way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from redrive import App
from redrive.audit.log import Audit
from redrive.message import Lane

pytestmark = pytest.mark.slow

PROGRAM = """
import os
import redrive
from redrive import App, AutoRedrive, Retry

app = App(os.environ["REDRIVE_URL"])
app.queue("crm", auto_redrive=AutoRedrive(base="300ms", cap="600ms", max_redrives=2, batch=5, concurrency=4))
journal = os.open("journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task(name="push", queue="crm", retry=Retry(max_attempts=1))
def push(n: int) -> None:
    os.write(journal, f"{n}\\n".encode())
    if n % 4 == 0 or not redrive.context().message.redrives:
        raise ValueError("the CRM says no")
"""


class Worker:
    """A worker process, killed and started again at will."""

    def __init__(self, place: Path, url: str) -> None:
        self._place = place
        self._environ = os.environ | {"REDRIVE_URL": url, "REDRIVE_STATE_DIR": str(place)}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "redrive", "worker", "tasks:app", "--lease", "5s", "--grace", "2s"]
        with (self._place / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._place, env=self._environ, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()  # SIGKILL
        self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0, (self._place / "log").read_text()


@pytest.mark.parametrize(
    "engine, count, kills",
    [("sqlite", 30, 2), *(pytest.param(e, 137, 25, marks=pytest.mark.soak) for e in ("sqlite", "postgres", "redis"))],
)
def test_all_that_died_goes_back_or_is_given_up_whatever_is_killed(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, count: int, kills: int
) -> None:
    (tmp_path / "tasks.py").write_text(PROGRAM)
    url = f"sqlite:///{tmp_path / 'work.db'}"
    if engine != "sqlite":
        server = request.getfixturevalue(f"{engine}_server")
        url = f"{server.url}?{'schema' if engine == 'postgres' else 'namespace'}=auto_{os.urandom(4).hex()}"
    app = App(url)

    @app.task(name="push", queue="crm")
    def push(n: int) -> None: ...

    refs = app.enqueue_many([push.draft(n) for n in range(count)])
    hopeless = {ref.id for ref in refs[::4]}
    worker, end_s = Worker(tmp_path, url), time.monotonic() + 110
    try:
        for n in range(kills):
            time.sleep(0.4 + 0.37 * (n % 7))
            worker.kill()
            worker.start()
        while app.counts().quarantine < len(hopeless) or _left(app):
            assert time.monotonic() < end_s, (app.counts(), app.dlq.auto(), (tmp_path / "log").read_text())
            time.sleep(0.05)
        worker.end()
        _check(app, count, hopeless, tmp_path, kills)
    finally:
        worker.kill()
        app.store.close()


def _left(app: App) -> int:
    counts = app.counts()
    return counts.dead + counts.waiting + counts.leased


def _check(app: App, count: int, hopeless: set[str], place: Path, kills: int) -> None:
    assert app.counts().quarantine == len(hopeless)
    given_up = app.store.peek(Lane.QUARANTINE, limit=1000).messages
    assert {m.id for m in given_up} == hopeless
    assert {(m.reason, m.redrives) for m in given_up} == {("poison: dead again after 2 redrives", 2)}
    ran = Counter(int(line) for line in (place / "journal").read_text().split())
    # a run that its worker's death cut off comes again; none was redriven more often than it should be
    wanted = {n: 3 if n % 4 == 0 else 2 for n in range(count)}
    assert all(ran[n] >= times for n, times in wanted.items())
    assert sum(ran.values()) - sum(wanted.values()) <= kills * 12  # what a worker holds
    (machine,) = app.dlq.auto()
    assert (machine.isolated, machine.run, machine.scope) == (len(hopeless), "", "queue/crm")
    assert machine.redriven == count - len(hopeless) + 2 * len(hopeless) == machine.done + machine.failed
    assert not machine.worked(app.store.now_ms())  # it was given back
    isolated = [id for entry in Audit(app.store) if entry.action == "isolate" for id in entry.ids]
    assert sorted(isolated) == sorted(hopeless)
