"""A worker that is killed while it works: what it leaves in the store, and beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from declared import make_app


def work_until_killed(url: str, queue: str) -> None:
    make_app(url).run_worker([queue], lease="30s", name=f"{queue}-worker")


def kill_one(url: str, queue: str) -> None:
    """Let a worker of this queue be killed by the message that it works."""
    program = Path(__file__).with_name("__main__.py")
    ended = subprocess.run([sys.executable, program, "work-until-killed", url, queue], capture_output=True, timeout=60)
    assert ended.returncode == -9, ended
