"""Test variants that are much alike in turn: some in every run, all of them in `make soak`."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

import pytest


def in_turn(n: int, of: int) -> pytest.MarkDecorator:
    """The mark of the n-th of so many: one is in every run, turning with the seed, and all are in `make soak`."""
    return pytest.mark.slow if int(os.environ.get("TEST_SEED", "0")) % of == n else pytest.mark.soak


def give_turns(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of each test that has the marker `turns(of)`: one in so many `slow`, the others `soak`.

    Tests begin at different cases, so that each run has some of every engine. A case that is asked for alone runs.
    """
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("turns") and not item.get_closest_marker("soak"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        (of,) = next(cases[0].iter_markers("turns")).args
        of = min(of, len(cases))
        first = int(os.environ.get("TEST_SEED", "0")) + crc32(name.encode())
        for n, case in enumerate(cases):
            case.add_marker(pytest.mark.slow if (n + first) % of == 0 else pytest.mark.soak)
