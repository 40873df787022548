"""A worker that is killed while it works: what it leaves in the store, and beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from declared import make_app


def work_until_killed(url: str) -> None:
    make_app(url).run_worker(["charges"], lease="30s")


def kill_one(url: str) -> None:
    """Let a worker be killed by the message that it works."""
    program = Path(__file__).with_name("__main__.py")
    ended = subprocess.run([sys.executable, program, "work-until-killed", url], capture_output=True, timeout=60)
    assert ended.returncode == -9, ended
