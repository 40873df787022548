"""The deaths of the last hour by failure group, in steps of five minutes."""

from __future__ import annotations

from typing import Any

from redrive.fault import classify
from redrive.message import ClaimRequest, DeadLetter, Draft, Settlement
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage.deaths import STEP_MS, STEPS, DeathStep, recent_deaths


class Counted(MemoryStore):
    """A store that counts how often its failure groups are read."""

    reads = 0

    def failure_groups(self, **options: Any) -> Any:
        self.reads += 1
        return super().failure_groups(**options)


def die(store: MemoryStore, count: int) -> None:
    store.put([Draft(task="push") for _ in range(count)])
    taken = store.exchange([], [ClaimRequest("default", count, 30_000)]).deliveries
    store.exchange([Settlement(d.receipt, DeadLetter("permanent"), classify(ValueError("no"))) for d in taken], [])


def test_steps_that_are_over_are_read_once_and_the_present_one_each_time() -> None:
    clock = ManualClock(1_700_000_000_000 // STEP_MS * STEP_MS + 1000)
    store, known = Counted(clock), dict[int, DeathStep]()
    die(store, 3)
    (line,) = recent_deaths(store, known=known).values()
    assert (line, store.reads) == ([0] * (STEPS - 1) + [3], STEPS)
    die(store, 1)  # in the same step, which was not over when it was read
    (line,) = recent_deaths(store, known=known).values()
    assert (line, store.reads) == ([0] * (STEPS - 1) + [4], STEPS + 1)
    clock.advance(f"{STEP_MS}ms")
    die(store, 2)
    (line,) = recent_deaths(store, known=known).values()
    assert (line, store.reads) == ([0] * (STEPS - 2) + [4, 2], STEPS + 3), "the step before, now that it is over"
    assert list(recent_deaths(store).values()) == [line] and len(known) == STEPS - 1
    clock.advance(f"{STEPS * STEP_MS}ms")
    assert recent_deaths(store, known=known) == {}
