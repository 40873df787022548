"""`redrive web` as a process: it serves pages, says in three lines why it cannot, and stops while browsers watch."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.support.command_line import COMMAND, Call, environment, failed, home, redrive  # noqa: F401

from redrive.stores.sqlite.store import SqliteStore

PATIENCE_S = 60.0
TOKEN = "correct-horse-battery-staple"


@contextmanager
def running(home: Path, *words: str, **extra: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`redrive web WORDS` in the home on a free port, and the address that it prints."""
    SqliteStore(home / "work.db").close()
    argv = [*COMMAND, "web", "--port", "0", *words]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=home, env=environment(**extra), stdout=log, stderr=log)
    try:
        yield process, address(home, process)
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def address(home: Path, process: subprocess.Popen[bytes]) -> str:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s and process.poll() is None:
        if found := re.search(r"open (http://\S+)", (home / "log").read_text()):
            return found[1]
        time.sleep(0.02)
    raise AssertionError((home / "log").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_pages_and_stops_at_once_while_a_browser_watches(home: Path, stop: signal.Signals) -> None:
    with running(home, "--app", "tasks:app") as (process, url):
        assert "<h1>Queues</h1>" in httpx.get(f"{url}queues").text
        with httpx.stream("GET", f"{url}live", timeout=PATIENCE_S) as events:
            lines = events.iter_lines()
            assert "event: version" in (next(lines), next(lines))
            process.send_signal(stop)
            assert process.wait(PATIENCE_S) == 0
            list(lines)  # the stream ended, and was not cut off
    assert "Traceback" not in (home / "log").read_text()


@pytest.mark.slow
def test_it_is_mounted_below_a_path_asks_for_its_token_and_answers_under_names(home: Path) -> None:
    words = ("--url", "sqlite:///work.db", "--base-path", "/jobs", "--allowed-host", "jobs.example.com", "--read-only")
    with running(home, *words, REDRIVE_WEB_TOKEN=TOKEN) as (_, url):
        assert url.endswith("/jobs/")
        assert httpx.get(url).headers["location"] == "/jobs/login?next=%2Fjobs%2F"
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        for host, status in (("jobs.example.com", 200), ("localhost", 200), ("evil.example", 403)):
            assert httpx.get(f"{url}queues", headers={**bearer, "Host": host}).status_code == status
        assert httpx.post(f"{url}do/pause-queue", headers=bearer, json={"queue": "crm"}).status_code == 405
        assert TOKEN not in (home / "log").read_text()


def test_a_port_in_use_is_said_in_three_lines(redrive: Call, home: Path) -> None:
    SqliteStore(home / "work.db").close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        what, why, next = failed(redrive("web", "--url", "sqlite:///work.db", "--port", str(port)), 1)
    assert (what, why) == (f"127.0.0.1:{port} cannot be listened on", "address already in use")
    assert next.endswith("redrive web --port 0")


def test_a_host_that_others_reach_needs_a_token(redrive: Call, home: Path) -> None:
    SqliteStore(home / "work.db").close()
    for host in ("0.0.0.0", "::", "192.0.2.7", "jobs.example.com"):
        what, _, next = failed(redrive("web", "--url", "sqlite:///work.db", "--host", host), 2)
        assert what == f"{host} can be reached from other machines"
        assert next.endswith(f"redrive web --host {host}") and "export REDRIVE_WEB_TOKEN" in next


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--token", "short"), "the token has 5 characters"),
        (("--base-path", "jobs"), "base_path='jobs'"),
        (("--base-path", "/queues"), "begins as the page /queues does"),
    ],
)
def test_what_cannot_be_served_is_said_before_it_is_served(
    redrive: Call, home: Path, words: tuple[str, ...], said: str
) -> None:
    SqliteStore(home / "work.db").close()
    assert said in failed(redrive("web", "--url", "sqlite:///work.db", "--port", "0", *words), 2)[0]


@pytest.mark.parametrize("package", ["starlette", "jinja2", "uvicorn"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(home: Path, package: str) -> None:
    SqliteStore(home / "work.db").close()
    main = f"import sys; sys.modules[{package!r}] = None; from redrive.program.main import main; main()"
    argv = [sys.executable, "-c", main, "web", "--url", "sqlite:///work.db", "--port", "0"]
    done = subprocess.run(argv, cwd=home, env=environment(), capture_output=True, text=True, timeout=60)
    what, _, next = failed(done, 1)
    assert what == f"this command needs {package}" and next.endswith("pip install 'redrive[web]'")
