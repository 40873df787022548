"""`redrive worker --notify`: several processes tell a webhook once between them, and nobody sees its URL."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.crash.children import until
from tests.support.webhooks import Hook, hook
from tests.support.workers import PATIENCE_S

from redrive import Draft
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.dlq import DeadLetters

TASKS = """
import time
from pathlib import Path
from redrive import App, Quarantine

app = App("sqlite:///work.db")

@app.task(name="bad")
def bad(n: int) -> None:
    Path("seen").mkdir(exist_ok=True)
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:
            continue
        if Path("secret").read_bytes() in words:
            Path("seen/leaked").write_bytes(words)
    time.sleep(0.02)
    raise Quarantine("it smells")
"""

__all__ = ["hook"]


@pytest.mark.linux
@pytest.mark.slow
def test_two_processes_tell_a_webhook_once_and_its_url_is_never_shown(tmp_path: Path, hook: Hook) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "secret").write_text(hook.secret)
    env = {name: text for name, text in os.environ.items() if not name.startswith("REDRIVE_")}
    env |= {"REDRIVE_NOTIFY": hook.url, "REDRIVE_APP": "tasks:app"}

    def redrive(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "redrive", *words],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        assert "s3cret" not in done.stdout + done.stderr
        return done.stdout

    store = SqliteStore(tmp_path / "work.db")
    store.put([Draft(task="bad", body=b'{"n": %d}' % n) for n in range(6)])
    store.close()
    redrive("worker", "--burst", "--processes", "2", "--concurrency", "1", "--prefetch", "0")
    assert "http://127.0.0.1" in redrive("config", "show")
    (body,) = hook.bodies
    assert body["name"] == "quarantined" and body["app"] == "tasks:app"
    assert not (tmp_path / "seen/leaked").exists()


FAILING = """
from pathlib import Path
from redrive import App, Reject

app = App("sqlite:///work.db")
app.on("dead", print, above=2, for_=0)

@app.task(name="bad")
def bad(n: int) -> None:
    raise Reject("no")
"""


@pytest.mark.slow
def test_a_webhook_hears_that_a_threshold_fires_and_that_it_is_resolved(tmp_path: Path, hook: Hook) -> None:
    (tmp_path / "tasks.py").write_text(FAILING)
    env = {name: text for name, text in os.environ.items() if not name.startswith("REDRIVE_")}
    env |= {"REDRIVE_NOTIFY": hook.url, "REDRIVE_APP": "tasks:app"}
    store = SqliteStore(tmp_path / "work.db")
    store.put([Draft(task="bad", body=b'{"n": %d}' % n) for n in range(3)])
    words = [sys.executable, "-m", "redrive", "worker", "--processes", "2", "--log", "off"]
    worker = subprocess.Popen(words, cwd=tmp_path, env=env)
    try:
        until("it fires", lambda: len(told(hook)) == 1)
        (fired,) = told(hook)
        assert (fired["state"], fired["queue"], fired["value"], fired["above"]) == ("firing", "default", 3, 2)
        assert fired["runbook"] == "dead-letters" and "dlq groups" in fired["command"]
        DeadLetters(store).discard(select="queue:default", reason="seen")
        until("it is resolved", lambda: len(told(hook)) == 2)
        assert told(hook)[1]["state"] == "resolved" and told(hook)[1]["queue"] == "default"
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)
        store.close()


@pytest.mark.slow
def test_watch_says_that_its_webhook_refused_an_alert(tmp_path: Path, hook: Hook) -> None:
    hook.answers = [404]
    env = {name: text for name, text in os.environ.items() if not name.startswith("REDRIVE_")}
    store = SqliteStore(tmp_path / "work.db")
    store.put([Draft(task="bad") for _ in range(3)])
    store.close()
    words = ["watch", "--url", "sqlite:///work.db", "--waiting", "2", "--for", "0s", "--notify", hook.url]
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        command = [sys.executable, "-m", "redrive", *words]
        watch = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        until("it says so", lambda: "alert depth could not be sent" in said.read_text())
    finally:
        watch.terminate()
        watch.wait(PATIENCE_S)
    assert "answered 404" in said.read_text() and "s3cret" not in said.read_text()


def told(hook: Hook) -> list[dict[str, object]]:
    return [body for body in hook.bodies if body["name"] == "dead"]
