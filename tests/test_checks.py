"""The checks of `make check` gate a commit like any test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", ["lint", "format", "mypy", "pyright", "examples", "imports", "docs", "workflows"])
def test_the_tree_passes_its_own_check(check: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "scripts/check", check], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
