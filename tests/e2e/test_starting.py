"""Workers and schedulers that start before their server does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer, Server

PATIENCE_S = 60.0
pytestmark = pytest.mark.slow
TASKS = """from redrive import App

app = App()

@app.task(name="one")
def one() -> None:
    print("it ran", flush=True)
"""


@pytest.fixture(params=[PostgresServer, RedisServer], ids=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with PostgresServer() if request.param is PostgresServer else RedisServer(appendonly=True) as server:
        yield server


def redrive(place: Path, url: str, *argv: str) -> subprocess.Popen[str]:
    (place / "tasks.py").write_text(TASKS)
    env = {**os.environ, "REDRIVE_URL": url, "REDRIVE_STATE_DIR": str(place / "state"), "COLUMNS": "1000"}
    return subprocess.Popen(
        [sys.executable, "-m", "redrive", *argv],
        cwd=place, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def line(process: subprocess.Popen[str], words: str) -> str:
    """The first line on stderr that has these words."""
    assert process.stderr is not None
    for found in process.stderr:
        if words in found:
            return found
    raise AssertionError(f"it ended with {process.wait()} and without {words!r}")


@pytest.mark.parametrize("command", ["worker", "scheduler"])
def test_what_starts_before_its_server_waits_for_it(server: Server, command: str, tmp_path: Path) -> None:
    with redrive(tmp_path, server.url, "enqueue", "--app", "tasks:app", "one") as putting:
        assert putting.wait(PATIENCE_S) == 0
    server.stop()
    with redrive(tmp_path, server.url, command, "tasks:app", *(["--drain"] if command == "worker" else [])) as started:
        assert server.url.split("@")[-1].split("/")[0].rpartition(":")[2] in line(started, "waiting for the store")
        time.sleep(0.5)
        assert started.poll() is None
        server.start()
        line(started, "the store is there")
        if command == "scheduler":
            time.sleep(1.0)
            assert started.poll() is None
            started.kill()
        else:
            assert started.wait(PATIENCE_S) == 0
            assert started.stdout is not None and "it ran" in started.stdout.read()


def test_one_that_waits_for_its_server_ends_when_it_is_asked_to(server: Server, tmp_path: Path) -> None:
    server.stop()
    with redrive(tmp_path, server.url, "worker", "tasks:app") as started:
        line(started, "waiting for the store")
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE_S) == 0


def test_a_command_that_needs_the_store_fails_at_once_without_its_server(server: Server, tmp_path: Path) -> None:
    server.stop()
    with redrive(tmp_path, server.url, "status") as started:
        assert started.wait(PATIENCE_S) == 3


def test_a_worker_with_a_wrong_database_fails_at_once(tmp_path: Path) -> None:
    with PostgresServer() as server:
        wrong = server.url.rpartition("/")[0] + "/nowhere"
        with redrive(tmp_path, wrong, "worker", "tasks:app") as started:
            assert started.wait(PATIENCE_S) not in (0, 3)
