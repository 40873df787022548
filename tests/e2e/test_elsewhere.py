"""A producer runs where workers cannot, as on Windows: it enqueues, reads and redrives. `tests.support.elsewhere` hides
from redrive what such a system lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCER = ROOT / "examples/producer_anywhere.py"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT), str(PRODUCER.parent)]),
    "REDRIVE_URL": "sqlite:///producer.db",
    "REDRIVE_OUTPUT": "json",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.elsewhere", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=100)


def test_a_producer_without_posix_enqueues_what_a_worker_with_it_runs(tmp_path: Path) -> None:
    produced = run(tmp_path, str(PRODUCER))
    assert produced.returncode == 0, produced.stderr
    assert "waits for a worker" in produced.stdout
    enqueued = run(tmp_path, "-m", "redrive", "enqueue", "invoices.send", "[43]", "--app", "producer_anywhere:app")
    assert enqueued.returncode == 0, enqueued.stderr
    status = run(tmp_path, "-m", "redrive", "status")
    assert '"ready":2' in status.stdout.replace(" ", "") or "ready 2" in status.stdout, status.stdout + status.stderr
    worker = [sys.executable, "-m", "redrive", "worker", "producer_anywhere:app", "--drain", "--log", "off"]
    done = subprocess.run(worker, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    left = run(tmp_path, "-m", "redrive", "queue", "list")
    assert '"ready":0' in left.stdout.replace(" ", ""), left.stdout + left.stderr


@pytest.mark.parametrize(
    "command", ["job list", "dlq list", "dlq groups", "workers", "history", "doctor", "upcoming", "config show"]
)
def test_a_command_that_reads_needs_no_posix(command: str, tmp_path: Path) -> None:
    assert run(tmp_path, str(PRODUCER)).returncode == 0
    done = run(tmp_path, "-m", "redrive", *command.split())
    assert done.returncode == 0 and "ModuleNotFoundError" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("worker producer_anywhere:app", "a worker"),
        ("deliver events.jsonl --to https://example.com/hook", "redrive deliver"),
        ("demo", "redrive demo"),
    ],
)
def test_what_needs_posix_says_so_in_one_line(command: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("{}\n")
    done = run(tmp_path, "-m", "redrive", *command.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"error: {what} needs Linux or macOS\n" in done.stderr


def test_an_embedded_worker_needs_posix_and_says_so(tmp_path: Path) -> None:
    program = (
        "from producer_anywhere import app\ntry:\n    app.worker()\nexcept Exception as error:\n    print(error)\n"
    )
    (tmp_path / "embedded.py").write_text(program)
    assert run(tmp_path, "embedded.py").stdout == (
        "a worker needs Linux or macOS; from here you can enqueue, read and redrive\n"
    )
