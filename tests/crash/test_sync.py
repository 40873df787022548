"""kill -9 does not test what a power cut does: the page cache survives it. So look at the order of system calls."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.linux

PROGRAM = """
import os, sys
from redrive import App
app = App("sqlite:///" + sys.argv[1])
@app.task(name="t")
def t(n: int) -> None: ...
t.enqueue(0)
for n in range(5):
    os.write(2, b"<begin>")
    t.enqueue(n)
    os.write(2, b"<acknowledged>")
app.run_worker(burst=True)
"""


def traced(tmp_path: Path, options: str = "") -> list[str]:
    """The calls between each <begin> and its <acknowledged>, as words."""
    log = tmp_path / "strace"
    command = ["strace", "-f", "-y", "-e", "trace=pwrite64,write,fdatasync,fsync", "-o", str(log)]
    program = [sys.executable, "-c", PROGRAM, f"{tmp_path / 'q.db'}{options}"]
    subprocess.run([*command, *program], check=True, capture_output=True, timeout=60)
    words = []
    for line in log.read_text().splitlines():
        if '"<begin>"' in line:
            words.append("begin")
        elif '"<acknowledged>"' in line:
            words.append("acknowledged")
        elif found := re.search(r"(pwrite64|fdatasync|fsync)\(\d+<[^>]*q\.db-wal>", line):
            words.append("write" if found[1] == "pwrite64" else "sync")
    return words


def between(words: list[str]) -> list[list[str]]:
    text = " ".join(words)
    return [part.split() for part in re.findall(r"begin ((?:write |sync )*)acknowledged", text)]


def test_an_enqueue_is_acknowledged_only_after_what_it_wrote_was_synced(tmp_path: Path) -> None:
    calls = between(traced(tmp_path))
    assert len(calls) == 5
    for sequence in calls:
        assert "write" in sequence
        assert sequence[-1] == "sync"


def test_synchronous_normal_gives_exactly_that_up(tmp_path: Path) -> None:
    calls = between(traced(tmp_path, "?synchronous=normal"))
    assert len(calls) == 5
    assert all("write" in sequence and "sync" not in sequence for sequence in calls)
