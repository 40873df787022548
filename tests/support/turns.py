"""Tests in turn: some in every run, all of them in `make soak`.

Three kinds take turns: the cases of a test marked `turns(of)`, one in so many; the tests that `tests/data/dear.txt`
names, one in fifteen of each folder's; and, of the other tests whose cases differ by engine, the cases of one engine.
Which it is turns with the seed, and each test begins elsewhere, so that each run has some of every engine. Nothing
takes turns in `tests/stores`, where an engine is the subject, nor in a run that asks for a file by its name.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

DEAR = Path(__file__).parents[1] / "data" / "dear.txt"  # `--cpu` prints which others cost more than these
DEAR_S = 0.1  # of the processor, a case
DEAR_ALL_S = 2.0  # all cases of a run
DEAR_OF = 15
ENGINES = {"memory", "sqlite", "postgres", "redis"}
WHOLE = ("tests/stores/",)


def in_turn(n: int, of: int) -> pytest.MarkDecorator:
    """The mark of the n-th of so many: one is in every run, turning with the seed, and all are in `make soak`."""
    return pytest.mark.slow if int(os.environ.get("TEST_SEED", "0")) % of == n else pytest.mark.soak


def give_turns(items: Iterable[pytest.Item]) -> None:
    """Mark what has its turn `slow`, and what takes turns and has it not, `soak`."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if not item.get_closest_marker("soak"):
            tests[test_of(item.nodeid)].append(item)
    pools = defaultdict[str, list[pytest.Item]](list)
    for name, cases in tests.items():
        of = _turns_of(name, cases)
        if of > len(cases):  # a folder's tests of few cases stand in one row
            pools[Path(name.partition("::")[0]).parent.as_posix()] += cases
        elif of > 1:
            _mark(name, cases, of, {case.nodeid: n for n, case in enumerate(cases)})
        elif of == 0:
            engines = {case.nodeid: _engine(case) for case in cases}
            names = sorted({*engines.values()})
            _mark(name, cases, len(names), {id: names.index(engine) for id, engine in engines.items()})
    for name, cases in pools.items():
        _mark(name, cases, min(DEAR_OF, len(cases)), {case.nodeid: n for n, case in enumerate(cases)})


def test_of(nodeid: str) -> str:
    """The test without its case."""
    return nodeid.partition("[")[0].partition("@")[0]


@cache
def dear() -> frozenset[str]:
    """The tests that `tests/data/dear.txt` names."""
    return frozenset(DEAR.read_text().split())


def _turns_of(name: str, cases: list[pytest.Item]) -> int:
    """One in how many; 0 for the cases of one engine, 1 for all."""
    mark = cases[0].get_closest_marker("turns")
    of: int = mark.args[0] if mark else 1
    if name in dear():
        return max(of, DEAR_OF)
    if mark:
        return min(of, len(cases))
    if name.startswith(WHOLE):
        return 1
    return 0 if len({engine for case in cases if (engine := _engine(case))}) > 1 and all(map(_engine, cases)) else 1


def _engine(case: pytest.Item) -> str:
    known = ENGINES.intersection(getattr(getattr(case, "callspec", None), "id", "").split("-"))
    return min(known, default="")


def _mark(name: str, cases: list[pytest.Item], of: int, places: Mapping[str, int]) -> None:
    first = int(os.environ.get("TEST_SEED", "0")) + crc32(name.encode())
    for case in cases:
        case.add_marker(pytest.mark.slow if (places[case.nodeid] + first) % of == 0 else pytest.mark.soak)
