"""The test of the model suite itself: within its default budget it finds each of these bugs.

The walks of the suite take the same calls as Hypothesis does, only many more in the same time; what a bug needs to be
found is a walk. The seed is fixed here, so that what is found today is found tomorrow; `make soak` takes others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.support.fate_cases import CASES, first_wrong, wrong_admission, wrong_decision
from tests.support.model import batch_bugs as bugs_batches
from tests.support.model import exchange_bugs as bugs_exchange
from tests.support.model import fate_bugs as bugs_fate
from tests.support.model import group_bugs as bugs_groups
from tests.support.model import store_bugs as bugs_store
from tests.support.model.bug import Bug
from tests.support.store_model import StoreModel
from tests.support.store_model.walk import Walk, take_walk
from tests.support.turns import in_turn

from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock

pytestmark = pytest.mark.slow
SEED = 1
OF_STORES = [*bugs_exchange.BUGS, *bugs_store.BUGS, *bugs_groups.BUGS, *bugs_batches.BUGS]
OF_FATES = [*bugs_fate.BUGS]


@dataclass(frozen=True)
class Budget:
    seed: int
    walks: int
    cases: int


@pytest.fixture
def budget(seed: int, soak: bool) -> Budget:
    return Budget(seed, StoreModel.walks * 10, CASES * 10) if soak else Budget(SEED, 2 * StoreModel.walks, CASES)


def a_third_of(bugs: list[Bug]) -> list[Any]:
    """In turn, as each takes its time."""
    return [pytest.param(bug, id=bug.what, marks=in_turn(n % 3, of=3)) for n, bug in enumerate(bugs)]


def first_walk_that_finds(budget: Budget) -> int | None:
    """None if all end well. Only what the model asserts counts: any error would show that something was changed."""
    for n in range(2 * budget.walks):  # of two seeds, as a rare bug may hide from one of them
        seed, step = budget.seed + n // budget.walks, n % budget.walks
        try:
            take_walk(MemoryStore, f"{seed}.{step}", StoreModel.steps)
        except AssertionError:
            return n
    return None


def fates_find_something(budget: Budget) -> bool:
    return any(first_wrong(look, budget.seed, budget.cases) for look in (wrong_admission, wrong_decision))


def test_without_a_bug_nothing_is_found(budget: Budget) -> None:
    assert first_walk_that_finds(budget) is None
    assert not fates_find_something(budget)


@pytest.mark.parametrize("bug", a_third_of(OF_STORES))
def test_a_bug_of_the_store_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch, budget: Budget) -> None:
    bug.put_into(monkeypatch)
    monkeypatch.setattr(Walk, "patience_ms", 50)
    found = first_walk_that_finds(budget)
    print(f"found by walk {found}")
    assert found is not None


@pytest.mark.parametrize("bug", a_third_of(OF_FATES))
def test_a_bug_of_admit_or_decide_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch, budget: Budget) -> None:
    bug.put_into(monkeypatch)
    assert fates_find_something(budget)


class MemoryModel(StoreModel):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return MemoryStore(clock)


FREQUENT = [
    bug
    for bug in OF_STORES
    if bug.name in ("later", "given_back", "free_places") and "deferral" not in bug.what  # few messages have one
]


@pytest.mark.parametrize("bug", FREQUENT, ids=[bug.what for bug in FREQUENT])
def test_hypothesis_finds_it_too_and_says_by_which_calls(
    bug: Bug, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bug.put_into(monkeypatch)
    model = MemoryModel()
    quick = settings(model.settings(), database=None, phases=(Phase.generate,), report_multiple_bugs=False)
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(seed(SEED)(model.machine(tmp_path)), settings=quick)
    assert "put(" in "\n".join(caught.value.__notes__)
