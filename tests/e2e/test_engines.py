"""The same commands on every engine: only the URL differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import PostgresServer, RedisServer

from redrive import App
from redrive.message import ClaimRequest
from redrive.program.main import run
from redrive.stores import open_store
from redrive.stores.upkeep import is_there
from redrive.worker.crash.ledger import hold

ENGINES = ("sqlite", "postgres", "redis")
TASKS = """
from redrive import App, Backoff, Reject, Retry

app = App.from_env()

@app.task(name="ok", queue="crm")
def ok(number: int) -> None: ...

@app.task(name="bad", queue="crm", retry=Retry(max_attempts=2, backoff=Backoff.fixed("10ms")))
async def bad(number: int) -> None:
    raise ValueError(f"no. {number} is bad")
"""
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    server: PostgresServer | RedisServer = request.getfixturevalue(f"{request.param}_server")
    own = "schema" if request.param == "postgres" else "namespace"
    return f"{server.url}?{own}=e2e_{os.urandom(4).hex()}"


@pytest.fixture
def redrive(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """`redrive WORDS` in a directory with an app, on that store; only workers take a process of their own."""
    (tmp_path / "tasks.py").write_text(TASKS)
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, value in {"REDRIVE_URL": url, "REDRIVE_APP": "tasks:app", "REDRIVE_LOG": "off"}.items():
        monkeypatch.setenv(name, value)

    def call(*words: str, url: str = url) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("REDRIVE_URL", url)
        if words[0] == "worker":
            return subprocess.run([sys.executable, "-m", "redrive", *words], capture_output=True, text=True, timeout=60)
        monkeypatch.delitem(sys.modules, "tasks", raising=False)
        code = run(words)
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return call


def good(done: subprocess.CompletedProcess[str]) -> Any:
    """What it printed, read from JSON where it is that."""
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stdout.split()


def test_from_enqueue_to_redrive_and_purge(redrive: Call) -> None:
    [ok] = good(redrive("enqueue", "ok", "[1]"))
    [bad] = good(redrive("enqueue", "bad", "[2]"))
    good(redrive("worker", "--drain"))  # --burst would not wait for the retry
    [later] = good(redrive("enqueue", "ok", "[3]", "--delay", "1h"))
    shown = good(redrive("job", "show", bad, "-o", "json"))
    assert (shown["state"], shown["attempt"], shown["body"]) == ("dead", 2, {"number": 2})
    assert [fault["error"] for fault in shown["faults"]] == ["ValueError"] * 2
    assert "state\tdone" in redrive("job", "show", ok).stdout
    assert good(redrive("dlq", "list", "-o", "ids")) == [bad]
    [group] = good(redrive("dlq", "groups", "-o", "json"))
    assert (group["count"], group["sample_id"]) == (1, bad)
    good(redrive("dlq", "retry", bad))
    good(redrive("queue", "pause", "crm", "--reason", "a look"))
    good(redrive("worker", "--burst"))
    [row] = good(redrive("queue", "list", "-o", "json"))
    assert (row["ready"], row["scheduled"], row["paused"]) == (1, 1, True)
    assert good(redrive("queue", "purge", "crm", "--reason", "spam", "--yes", "-o", "json")) == [
        {"queue": "crm", "cancelled": 2, "asked_to_stop": 0, "waiting": 0}
    ]
    good(redrive("queue", "resume", "crm", "--reason", "all is well", "--actor", "ann"))
    log = good(redrive("dlq", "audit", "-o", "json"))
    assert [entry["action"] for entry in log] == ["resume", "purge", "pause", "retry"]
    assert (log[0]["claimed"], log[0]["reason"], log[1]["count"], log[2]["about"]) == (
        "ann",
        "all is well",
        2,
        "queue/crm",
    )
    assert set(good(redrive("job", "list", "--state", "cancelled", "-o", "ids"))) == {bad, later}


def test_the_store_is_checked_doctored_and_described(redrive: Call, url: str) -> None:
    good(redrive("enqueue", "ok", "[1]"))
    assert good(redrive("store", "check", "-o", "json")) == {"ok": True, "problems": []}
    done = redrive("store", "doctor", "-o", "json")
    findings = json.loads(done.stdout)["findings"]  # of this machine, and of a server without a sync there may be some
    assert done.returncode == bool(findings) and "Traceback" not in done.stderr
    info = good(redrive("store", "info", "-o", "json"))
    assert info["engine"].lower().startswith(("sqlite", "postgresql", "redis", "valkey")) and info["ready"] == 1
    good(redrive("store", "upgrade"))
    assert "hunter2" not in url


def test_looking_makes_no_store_and_says_so(redrive: Call, url: str) -> None:
    if url.startswith("redis"):  # there is nothing to make
        assert good(redrive("queue", "list", "-o", "json"))[0]["ready"] == 0
        return
    for words in (("queue", "list"), ("job", "list"), ("store", "info")):
        done = redrive(*words)
        assert done.returncode == 3 and done.stderr.startswith("error: there is no store at ")
    assert not is_there(url)


def test_deliver_sends_every_line(redrive: Call, tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "events.jsonl").write_text('{"n":1}\n{"n":2}\n')
    rows = good(redrive("deliver", "events.jsonl", "--to", endpoint, "-o", "json"))
    assert (rows["delivered"], rows["lines"]) == (2, 2)


@pytest.fixture
def endpoint() -> Iterator[str]:
    from tests.docs.endpoint import serving

    with serving() as base:
        yield f"{base}/hook"


UNREACHABLE = ("postgresql://ann:hunter2@127.0.0.1:1/app?timeout=1s", "redis://ann:hunter2@127.0.0.1:1/0?timeout=1s")


@pytest.mark.parametrize("url", UNREACHABLE, ids=lambda url: url.partition(":")[0])
@pytest.mark.parametrize("words", [("queue", "list"), ("enqueue", "ok", "[1]"), ("worker", "--burst")])
def test_a_server_that_is_down_is_said_in_three_lines(redrive: Call, words: tuple[str, ...]) -> None:
    done = redrive(*words)
    assert done.returncode == 3 and done.stdout == "" and "Traceback" not in done.stderr
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["error", "why", "next"]
    assert "127.0.0.1:1" in done.stderr and "hunter2" not in done.stderr


@pytest.mark.parametrize(
    "url, driver, extra",
    [("redis://127.0.0.1:1/0", "redis", "redis"), ("postgresql://127.0.0.1:1/app", "psycopg", "postgres")],
)
def test_a_missing_driver_is_named_with_its_extra(tmp_path: Path, url: str, driver: str, extra: str) -> None:
    (tmp_path / f"{driver}.py").write_text(f"raise ModuleNotFoundError('not installed', name={driver!r})")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "redrive", "queue", "list", "--url", url]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and f"pip install 'redrive[{extra}]'" in done.stderr and "Traceback" not in done.stderr


def test_a_server_that_keeps_nothing_is_warned_of_once_and_one_that_evicts_is_refused(redrive: Call) -> None:
    with RedisServer() as server:
        done = redrive("worker", "--burst", "--processes", "2", "--log", "json", url=server.url)
        warnings = [line for line in map(json.loads, done.stderr.splitlines()) if line["level"] == "warning"]
        assert done.returncode == 0 and len(warnings) == 1 and "append-only file is off" in warnings[0]["text"]
    with RedisServer(maxmemory="50mb", maxmemory_policy="allkeys-lru") as server:
        done = redrive("queue", "list", url=server.url)
        assert done.returncode == 4 and "CONFIG SET maxmemory-policy noeviction" in done.stderr


def test_a_worker_takes_back_what_its_own_machine_held_and_no_other(
    redrive: Call, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines of one host name, each with a folder of its own for identities."""
    if url.startswith("sqlite"):
        return  # its folder lies beside the file, and so does its machine
    [id] = good(redrive("enqueue", "ok", "[1]"))
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "one"))
    store = open_store(url)
    assert store.state_dir is not None
    dead = hold(store.state_dir, "worker")
    dead.open(10)
    (delivery,) = store.exchange([], [ClaimRequest("crm", 1, 600_000, worker=dead.worker)]).deliveries
    dead.take([delivery.message])
    dead.close()  # as its kernel does for one that was killed
    for folder, left in (("two", 1), ("one", 0)):
        app = App(url)
        app.task(name="ok", queue="crm")(ok)
        monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / folder))
        app.run_worker(["crm" if left == 0 else "other"], burst=True)
        assert len([m for m in store.find([id]) if m is not None]) == left
        app.store.close()
    store.close()


def ok(number: int) -> None:
    """Does nothing."""


def test_moving_to_another_store_is_changing_the_url(redrive: Call, url: str, tmp_path: Path) -> None:
    """What waits is not copied: the old store's workers finish it while new messages go to the new one."""
    [old] = good(redrive("enqueue", "ok", "[1]", url="sqlite:///old.db"))
    [new] = good(redrive("enqueue", "ok", "[2]"))
    good(redrive("worker", "--burst"))
    assert "state\tdone" in redrive("job", "show", new).stdout
    old_store = open_store(f"sqlite:///{tmp_path}/old.db")
    assert old_store.find([old])[0] is not None
    old_store.close()
