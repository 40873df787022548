"""The command line as a user calls it: a home with an app, and what a call printed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from redrive import Draft, Reject
from redrive.fault import classify
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.stores.sqlite.store import SqliteStore

COMMAND = [sys.executable, "-m", "redrive"]


TASKS = """
import os, time
from redrive import App, Backoff, Reject, Retry, Snooze

app = App("sqlite:///work.db")
other = App("memory://")

@app.task(name="ok", queue="crm")
def ok(number: int, *, dry: bool = False) -> None: ...

@app.task(name="bad", queue="crm", retry=Retry(max_attempts=2, backoff=Backoff.fixed("10ms")))
async def bad(number: int) -> None:
    raise ValueError(f"no. {number} is bad")

@app.task(name="no", queue="bulk")
def no() -> None:
    raise Reject("never")

@app.task(name="nap", queue="naps")
def nap(s: float) -> None:
    print("napping", flush=True)
    time.sleep(s)

@app.task(name="die", queue="crm")
def die() -> None:
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)
"""


Call = Callable[..., subprocess.CompletedProcess[str]]


def environment(**extra: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("REDRIVE_") and name != "COLUMNS"}
    return kept | {"PYTHONUNBUFFERED": "1"} | extra


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def redrive(home: Path) -> Call:
    """Run `redrive WORDS` in the home, or in `cwd`, with more variables."""

    def call(
        *words: str, cwd: Path | None = None, stdin: bytes | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=cwd or home,
            env=environment(**extra),
            input=stdin or b"",
            capture_output=True,
            timeout=60,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def failed(done: subprocess.CompletedProcess[str], code: int) -> tuple[str, str, str]:
    """What the three lines say, once the code and their form are as they shall be."""
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    lines = done.stderr.splitlines()[-3:]
    assert [line.partition(": ")[0] for line in lines] == ["error", "why", "next"], done.stderr
    what, why, next = (line.partition(": ")[2] for line in lines)
    assert what and why and next
    return what, why, next


def dead(home: Path, count: int = 1) -> list[str]:
    """Put that many messages of task `no` into the store and let them die there, as a worker would."""
    store = SqliteStore(home / "work.db")
    ids = [put.id for put in store.put([Draft(task="no", queue="bulk") for _ in range(count)])]
    fault = classify(Reject("never"))
    deliveries = store.exchange([], [ClaimRequest("bulk", count, 1000)]).deliveries
    store.exchange([Settlement(d.receipt, DeadLetter("rejected"), fault) for d in deliveries], [])
    store.close()
    return ids


def on_terminal(words: Sequence[str], cwd: Path, columns: int = 80, answer: str = "", **extra: str) -> str:
    """What a command writes to a terminal that wide, where `answer` is typed."""
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    env = environment(COLUMNS=str(columns), TERM="xterm", **extra)
    with subprocess.Popen([*COMMAND, *words], cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            text += part
        process.wait()
    os.close(ours)
    return text.decode().replace("\r\n", "\n")
