"""The soak balances its books: a moment of it in every run, two minutes on each engine in `make soak`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.support.crash.children import ENGINES, ROOT


def soaked(store: str, minutes: float, seed: int) -> str:
    words = ["--store", store, "--minutes", str(minutes), "--seed", str(seed)]
    command = [sys.executable, "-m", "benchmarks.soak", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_moment_of_the_soak_loses_and_repeats_nothing(seed: int) -> None:
    assert "lost                         0" in soaked("sqlite", 0.15, seed)


@pytest.mark.soak
@pytest.mark.parametrize("store", ENGINES)
def test_two_minutes_of_the_soak_lose_and_repeat_nothing(store: str, seed: int) -> None:
    assert "lost                         0" in soaked(store, 2, seed)
