"""The examples, run in a process of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.command_line import environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(home: Path, *argv: str, path: Path = EXAMPLES, **extra: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        argv, cwd=home, env=environment(PYTHONPATH=_path(path), **extra), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


def _path(first: Path) -> str:
    import redrive

    return f"{first}:{Path(redrive.__file__).parents[1]}"
