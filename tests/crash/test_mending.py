"""kill -9 of who mends dead letters, at every named point of the store: an edit is both or neither, a batch whole or
not begun, and each in the audit log or not done."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.crash.children import KILLED, run, sweep_stores
from tests.support.crash.edits import fill, look
from tests.support.crash.ledger import opened
from tests.support.crash.programs import Plan

STEPS = 23  # of SQLite; servers take fewer or a few more


@pytest.mark.fault("kill -9 of who edits, discards, quarantines, readmits or imports dead messages")
@sweep_stores("step", STEPS, shares=12)
def test_killed_at_a_store_call_a_change_is_whole_and_noted_or_not_begun(place: Path, step: int) -> None:
    fill(place)
    code = run("mender", Plan(place=str(place), kill_at=step))
    store = opened(place)
    done = look(store)
    store.close()
    assert code == KILLED or all(done.values())
    assert run("mender", Plan(place=str(place))) == 0
    store = opened(place)
    assert all(look(store).values())
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_the_last_step_comes_after_all_changes(place: Path) -> None:
    fill(place)
    assert run("mender", Plan(place=str(place), kill_at=STEPS + 1)) == 0
