"""How many may run together with a suspect: what its crashes and their evidence say, and where the search for a poison
ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive.decide import RUN, Policy, Signals, admit, decide
from redrive.fault import Crash, Fault, crash_fault
from redrive.message import Lane, Message, RetryAt
from redrive.policy.policies import CRASHES_MAX
from redrive.worker.crash.company import ALONE_FROM, ANY, company_of, escapes, smaller

LIFE_MS = 1000
MOST = 40


def died(started: int = 0, *, at_ms: int = LIFE_MS, **of: Any) -> Fault:
    return crash_fault(Crash(started_count=started, **of), at_ms)


def message(*faults: Fault, **fields: Any) -> Message:
    counts = {"suspect": True, "crashes": len(faults), "life_ms": LIFE_MS, "faults": faults}
    return Message("i", "t", "q", b"{}", "i", lane=Lane.LEASED, **{**counts, **fields})


ROWS = [
    ("no suspect", message(died(9), died(9), suspect=False), ANY),
    ("the first crash", message(died(9)), ANY),
    ("the second: half", message(died(100), died(20)), 10),
    ("an odd number: two groups", message(died(5), died(5)), 3),
    ("the third: less than half, where halves would not do", message(died(500), died(500), died(250)), 63),
    ("the third: half, where that will do", message(died(8), died(8), died(4)), 2),
    ("it was the only one", message(died(1), died(1)), 1),
    ("too many", message(*[died(1000)] * ALONE_FROM), 1),
    ("it died alone once", message(died(9), died(1, alone=True), crashes_alone=1), 1),
    ("nothing is known: as many as can have been", message(crashes=2), MOST // 2),
    ("nothing is known of three", message(crashes=3), smaller(MOST // 2, 3)),
    ("a lease that ran out says nothing", message(died(30), died(0, cause="lease")), 15),
    ("of an earlier life", message(died(30, at_ms=5), died(30, at_ms=6), crashes=2), MOST // 2),
]


@pytest.mark.parametrize(("suspect", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_company_of_a_suspect(suspect: Message, expected: int) -> None:
    assert company_of(suspect, MOST) == expected


@pytest.mark.parametrize(("crashes", "expected"), [(1, ANY), (2, 10), (3, 1)])
def test_it_is_alone_sooner_where_crashes_are_dear(crashes: int, expected: int) -> None:
    assert company_of(message(*[died(20)] * crashes), MOST, alone_from=3) == expected


def test_what_brought_down_workers_too_often_escapes_and_what_brought_down_children_does_not() -> None:
    assert not escapes(message(died(9), died(9))) and escapes(message(died(9), died(9), died(9)))
    assert not escapes(message(died(9), died(9), *[died(9, child=True)] * 5))
    assert escapes(message(crashes=3)), "as far as is known these were workers"
    assert not escapes(message(died(9, at_ms=5), died(9, child=True), crashes=1))


@given(st.integers(2, 100_000), st.sampled_from([True, False]))
def test_a_bystander_of_the_worst_luck_is_never_convicted_and_the_poison_is_alone_in_time(
    started: int, child: bool
) -> None:
    """It is in the same group as the poison each time, as large as that may be."""
    bystander, deaths, together = message(crashes=0, attempt=1), 0, started
    while (company := company_of(bystander, MOST)) > 1:
        together = min(company, together) if deaths > 1 else started
        fault = died(together, child=child)
        verdict = decide(bystander, fault, Policy(), LIFE_MS)
        assert isinstance(verdict, RetryAt) and verdict.in_company
        deaths += 1
        bystander = replace(bystander, suspect=True, crashes=deaths, faults=(*bystander.faults, fault))
        assert admit(bystander, Policy(), Signals(), LIFE_MS) == RUN
    assert 2 <= deaths <= ALONE_FROM and deaths + Policy().crashes_alone_max < CRASHES_MAX


@given(st.integers(1, 100_000), st.integers(0, 4))
def test_a_smaller_group_is_smaller_and_at_least_one(together: int, left: int) -> None:
    size = smaller(together, left)
    assert 1 <= size <= (together + 1) // 2 and (size < together or together == 1)
