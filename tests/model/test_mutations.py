"""The test of the model suite itself: within its default budget it finds each of these bugs.

The walks of the suite take the same calls as Hypothesis does, only many more in the same time; what a bug needs to be
found is a walk. The seed is fixed here, so that what is found today is found tomorrow; `make soak` takes others.
"""

from __future__ import annotations

import pytest

from redrive.stores.memory import MemoryStore
from redrive.testing import StoreModel
from redrive.testing._model.walk import Walk, take_walk

from .bugs import FATE_BUGS, STORE_BUGS, Bug
from .test_fates import first_wrong, wrong_admission, wrong_decision

SEED = 1


@pytest.fixture
def seeds(seed: int, soak: bool) -> list[int]:
    return [seed * 10 + n for n in range(10)] if soak else [SEED]


def first_walk_that_finds(seed: int) -> int | None:
    """Of the default number of default length; None if all end well."""
    for n in range(StoreModel.walks):
        try:
            take_walk(MemoryStore, f"{seed}.{n}", StoreModel.steps)
        except AssertionError:
            return n
    return None


def fates_find_something(seed: int) -> bool:
    return any(first_wrong(look, seed) for look in (wrong_admission, wrong_decision))


def test_without_a_bug_the_walks_find_nothing() -> None:
    assert first_walk_that_finds(SEED) is None
    assert not fates_find_something(SEED)


@pytest.mark.parametrize("bug", STORE_BUGS, ids=[bug.what for bug in STORE_BUGS])
def test_a_bug_of_the_store_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch, seeds: list[int]) -> None:
    bug.put_into(monkeypatch)
    monkeypatch.setattr(Walk, "patience_ms", 50)
    found = {number: first_walk_that_finds(number) for number in seeds}
    print(f"found by the walks {found}")
    assert None not in found.values()


@pytest.mark.parametrize("bug", FATE_BUGS, ids=[bug.what for bug in FATE_BUGS])
def test_a_bug_of_admit_or_decide_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch, seeds: list[int]) -> None:
    bug.put_into(monkeypatch)
    assert all(fates_find_something(number) for number in seeds)
