"""Which leases that ran out a worker may take over, by what it has written itself."""

from __future__ import annotations

import pytest

from redrive.errors import StoreUnavailable
from redrive.worker import outage as module
from redrive.worker.outage import BACK_WITHIN_S, HEADWAY_S, Outage

STORE_MS = 1_000_000  # the store's time when the test begins


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def lapsed_ago_s(outage: Outage, clock: Clock) -> float:
    """How long ago a lease must have run out to be taken over now; negative: in the future."""
    store_ms = STORE_MS + int(clock.now_s * 1000)
    return (store_ms - outage.lapsed_by_ms(store_ms)) / 1000


def write(outage: Outage, clock: Clock, *, every_s: float, count: int) -> None:
    for _ in range(count):
        clock.now_s += every_s
        outage.wrote(clock.now_s)


@pytest.mark.parametrize("every_s", [0.01, 0.1, 1.0])
def test_who_writes_all_the_time_takes_over_leases_as_soon_as_they_run_out(clock: Clock, every_s: float) -> None:
    outage = Outage(lambda *_: None, 30.0)
    write(outage, clock, every_s=every_s, count=100)
    assert lapsed_ago_s(outage, clock) <= 0


def test_who_has_not_written_for_long_takes_them_over_a_moment_after_it_writes_again(clock: Clock) -> None:
    outage = Outage(lambda *_: None, 30.0)
    clock.now_s += 60.0
    outage.wrote(clock.now_s)
    assert lapsed_ago_s(outage, clock) > 50
    clock.now_s += HEADWAY_S
    assert lapsed_ago_s(outage, clock) <= 0


@pytest.mark.parametrize("fails", [True, False], ids=["failed", "slow"])
def test_who_met_a_store_that_was_away_leaves_its_leases_until_others_are_back(clock: Clock, fails: bool) -> None:
    outage = Outage(lambda *_: None, 3.0)
    write(outage, clock, every_s=0.1, count=100)
    away_s = clock.now_s
    if fails:
        for _ in range(8):
            outage.failed(StoreUnavailable("it is away"))
    else:
        clock.now_s += 5.0
    assert outage.wrote(away_s)  # it was away, so renew
    back_s = clock.now_s
    while clock.now_s - back_s < BACK_WITHIN_S - 0.01:
        assert clock.now_s - lapsed_ago_s(outage, clock) < away_s + 3.0 * 2 / 3  # what was renewed just before is left
        clock.now_s += 0.05
        outage.wrote(clock.now_s)
    clock.now_s += 0.2
    assert lapsed_ago_s(outage, clock) <= 0
