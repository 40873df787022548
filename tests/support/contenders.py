"""What a process does to cells beside others: run as `python contending.py NAME URL WORK ARGUMENT...`.

Apart from the tests, so that a process imports the cells and nothing that only tests need.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from redrive.errors import Conflict
from redrive.message import Swap
from redrive.store import OpenCells
from redrive.stores import open_cells

PROCESSES = 4
NAMES = [f"process {n} is ready" for n in range(PROCESSES)]
GATE = "all begin once this cell is there"


def lose(cells: OpenCells) -> None:
    """Nothing but the system knows afterwards what it wrote."""
    assert cells.swap([Swap("killed", 0, b"1")], durable=False) == [True]
    (cell,) = cells.read(["killed"])
    assert cell is not None and cells.swap([Swap("killed", cell.version, b"2")], durable=False) == [True]
    os.kill(os.getpid(), signal.SIGKILL)


def increment(cells: OpenCells, times: int) -> list[int]:
    """The versions this process replaced."""
    won: list[int] = []
    while len(won) < times:
        (cell,) = cells.read(["n"])
        version, value = (cell.version, int(cell.value)) if cell else (0, 0)
        if cells.swap([Swap("n", version, b"%d" % (value + 1))]) == [True]:
            won.append(version)
    return won


def move(cells: OpenCells, times: int) -> int:
    """How many were moved from `a` to `b`."""
    moved = 0
    while moved < times:
        a, b = [(cell.version, int(cell.value)) for cell in cells.read(["a", "b"]) if cell is not None]
        swaps = [Swap("a", a[0], b"%d" % (a[1] - 1)), Swap("b", b[0], b"%d" % (b[1] + 1))]
        try:
            cells.swap_all(swaps if moved % 2 else swaps[::-1])
        except Conflict:
            continue
        moved += 1
    return moved


def take(cells: OpenCells, times: int, ttl_ms: int) -> list[tuple[int, int]]:
    """Between which times each take was made, by this machine's clock, as the servers go: what a store knows of theirs
    may lag by as long as a reply takes."""
    takes: list[tuple[int, int]] = []
    while len(takes) < times:
        since_ms = time.time_ns() // 1_000_000
        if cells.swap([Swap("lock", 0, b"mine", ttl_ms)]) == [True]:
            takes.append((since_ms, time.time_ns() // 1_000_000))
        else:
            time.sleep(0.002)
    return takes


def main(name: str, url: str, work: str, *args: str) -> None:
    with closing(open_cells(url)) as cells:
        works: dict[str, Callable[..., Any]] = {"increment": increment, "move": move, "take": take, "lose": lose}
        if name in NAMES:
            cells.swap([Swap(name, 0, b"")])
            while cells.read([GATE]) == [None]:
                time.sleep(0.005)
        print(json.dumps(works[work](cells, *map(int, args))))


if __name__ == "__main__":
    main(*sys.argv[1:])
