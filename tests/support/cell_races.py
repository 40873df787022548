"""Rules of cells under contention by processes, for every place that keeps cells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import combinations
from subprocess import PIPE
from typing import Any

from tests.support import contenders as contending
from tests.support.contenders import GATE, NAMES, PROCESSES
from tests.support.schemas import schema  # noqa: F401

from redrive.message import Swap
from redrive.stores import open_cells

PATIENCE_S = 60.0


def test_no_increment_is_lost(url: str, soak: bool) -> None:
    times = 1_000 if soak else 60
    counted = in_processes(url, "increment", times)
    with closing(open_cells(url)) as cells:
        (cell,) = cells.read(["n"])
        assert cell is not None and cell.value == b"%d" % (PROCESSES * times)
    versions = [version for mine in counted for version in mine]
    assert len(set(versions)) == len(versions) == PROCESSES * times  # each won by one


def test_swaps_of_one_commit_are_all_or_nothing(url: str, soak: bool) -> None:
    times = 500 if soak else 40
    with closing(open_cells(url)) as cells:
        cells.swap([Swap("a", 0, b"1000"), Swap("b", 0, b"1000")])
    moved = sum(in_processes(url, "move", times))
    with closing(open_cells(url)) as cells:
        a, b = [int(cell.value) for cell in cells.read(["a", "b"]) if cell is not None]
        assert (a, b) == (1000 - moved, 1000 + moved)
    assert moved == PROCESSES * times


def test_a_cell_that_expires_is_taken_by_one_alone(url: str) -> None:
    """Each takes it whenever it is free and lets it expire: between two takes lies its whole time."""
    ttl_ms, times = 40, 5
    takes = [take for mine in in_processes(url, "take", times, ttl_ms) for take in mine]
    assert len(takes) == PROCESSES * times
    for (since_ms, until_ms), (other_since_ms, other_until_ms) in combinations(takes, 2):
        assert max(until_ms, other_until_ms) - min(since_ms, other_since_ms) >= ttl_ms


def test_a_swap_that_is_not_durable_outlives_its_process_all_the_same(url: str) -> None:
    command = [sys.executable, contending.__file__, "one that dies", url, "lose"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=env, stdin=PIPE, timeout=PATIENCE_S).returncode == -signal.SIGKILL
    with closing(open_cells(url)) as cells:
        (cell,) = cells.read(["killed"])
        assert cell is not None and cell.value == b"2"


def in_processes(url: str, work: str, *args: int) -> list[Any]:
    """What this work gave in each of the processes, which all began together."""
    command = [sys.executable, contending.__file__, url, work, *map(str, args)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with closing(open_cells(url)) as cells:
        running = [subprocess.Popen([*command[:2], name, *command[2:]], stdout=PIPE, env=env) for name in NAMES]
        try:
            while None in cells.read(NAMES) and all(process.poll() is None for process in running):
                time.sleep(0.005)
            cells.swap([Swap(GATE, 0, b"")])
            outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in running]
        finally:
            for process in running:
                process.kill()
                process.communicate()
    assert [process.returncode for process in running] == [0] * PROCESSES
    return [json.loads(output) for output in outputs]
