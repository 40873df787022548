"""The clock of the machine is set by an hour, or a day, while messages wait and run in an SQLite file: no lease runs
out early, nothing waits for the clock, and the store's time finds back to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import StoreError
from redrive.message import Ack, ClaimRequest, Draft, LeaseStatus, RetryAt, Settlement, Swap
from redrive.stores.sqlite.clock import (
    AWAY_MS,
    KEY,
    QUIET_EVERY_MS,
    SAVE_EVERY_MS,
    SLOWER,
    STEP_MS,
    WAIT_MS,
    ClockMark,
    next_mark,
    read,
)
from redrive.stores.sqlite.store import SqliteStore

NOON = 1_700_000_000_000
HOUR, MINUTE, SECOND = 3_600_000, 60_000, 1000
LEASE_MS = 30 * SECOND
BOUND = 1 / (1 - SLOWER)  # by how much a delay may be longer than it should


class Set:
    """A machine's clocks, which the test sets."""

    def __init__(self) -> None:
        self.start = "first"
        self.wall, self.steady = float(NOON), 5_000.0

    def wall_s(self) -> float:
        return self.wall / 1000

    def steady_s(self) -> float:
        return self.steady / 1000

    def passes(self, ms: float) -> None:
        self.wall, self.steady = self.wall + ms, self.steady + ms

    def set_by(self, ms: float) -> None:
        self.wall += ms

    def starts_anew(self, away_ms: float, wrong_by_ms: float = 0) -> None:
        self.start, self.steady = f"after {self.start}", 900.0
        self.wall += away_ms + wrong_by_ms


@pytest.fixture
def host() -> Set:
    return Set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


Opener = Callable[[], SqliteStore]


@pytest.fixture
def opened(path: Path, host: Set) -> Iterator[Opener]:
    stores: list[SqliteStore] = []

    def opened() -> SqliteStore:
        stores.append(SqliteStore(path, host=host))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def claim(store: SqliteStore, queue: str = "default") -> list[str]:
    return [one.message.body.decode() for one in claims(store, queue)]


def claims(store: SqliteStore, queue: str = "default") -> list:  # type: ignore[type-arg]
    return store.exchange([], [ClaimRequest(queue, 10, LEASE_MS, worker="w")]).deliveries


def put(store: SqliteStore, body: str, **parts: object) -> None:
    store.put([Draft(task="t", body=body.encode(), **parts)])  # type: ignore[arg-type]


# -- leases


@pytest.mark.parametrize("by", [HOUR, -HOUR, 25 * HOUR, 9_000 * HOUR, 2 * SECOND])
def test_lease_lasts_as_long_as_it_should_whatever_the_clock_is_set_to(opened: Opener, host: Set, by: int) -> None:
    mine, other = opened(), opened()
    put(mine, "x")
    [held] = claims(mine)
    host.set_by(by)
    for _ in range(29):
        host.passes(SECOND)
        assert claim(other) == []
    assert mine.extend([held.receipt], lease_ms=LEASE_MS) == [LeaseStatus.HELD]
    host.passes(LEASE_MS * BOUND)
    assert claim(other) == ["x"]  # it was not renewed: it has run out


def test_renewed_lease_is_kept_through_jumps_to_and_fro(opened: Opener, host: Set) -> None:
    mine, other = opened(), opened()
    put(mine, "x")
    [held] = claims(mine)
    for by in (HOUR, HOUR, -3 * HOUR, 7 * HOUR, -HOUR, 100 * HOUR, -100 * HOUR) * 20:
        host.set_by(by)
        host.passes(10 * SECOND)
        assert claim(other) == [] and mine.extend([held.receipt], lease_ms=LEASE_MS) == [LeaseStatus.HELD]
    assert mine.exchange([Settlement(held.receipt, Ack())], []).settled == ["ok"]


# -- what is due


@pytest.mark.parametrize("by", [-HOUR, HOUR, -25 * HOUR, 25 * HOUR])
@pytest.mark.parametrize("delay", [5 * SECOND, 5 * MINUTE])
def test_delay_is_neither_cut_short_nor_longer_than_its_bound(opened: Opener, host: Set, by: int, delay: int) -> None:
    store = opened()
    put(store, "x", delay_ms=delay)
    host.set_by(by)
    host.passes(delay - 1)
    assert claim(store) == []
    host.passes(delay * BOUND - delay + 2)
    assert claim(store) == ["x"]


def test_retry_waits_as_long_as_it_was_told(opened: Opener, host: Set) -> None:
    store = opened()
    put(store, "x")
    [held] = claims(store)
    store.exchange([Settlement(held.receipt, RetryAt(store.now_ms() + MINUTE))], [])
    host.set_by(-HOUR)
    host.passes(MINUTE - 1)
    assert claim(store) == []
    host.passes(MINUTE * BOUND - MINUTE + 2)
    assert claim(store) == ["x"]


def test_waiter_wakes_for_what_comes_due_though_the_clock_was_set_back(opened: Opener, host: Set) -> None:
    store = opened()
    put(store, "x", delay_ms=1)
    host.set_by(-HOUR)
    host.passes(3)
    store.wait([ClaimRequest("default", 1, LEASE_MS)], timeout_ms=60_000)  # it would outlast the test
    assert claim(store) == ["x"]


def test_cells_expire_by_the_same_time(opened: Opener, host: Set) -> None:
    store, other = opened(), opened()
    store.cells.swap([Swap("k", 0, b"v", ttl_ms=MINUTE)])
    host.set_by(HOUR)
    host.passes(MINUTE - 1)
    assert other.cells.read(["k"]) != [None]
    host.passes(2)
    assert other.cells.read(["k"]) == [None]


# -- times of day


@pytest.mark.parametrize("by", [-HOUR, HOUR])
@pytest.mark.parametrize("left", [MINUTE, 30 * MINUTE])
def test_time_of_day_given_after_a_jump_is_that_of_the_machine(opened: Opener, host: Set, by: int, left: int) -> None:
    store = opened()
    put(store, "first")
    assert claim(store) == ["first"]
    host.set_by(by)
    put(store, "x", due_ms=int(host.wall) + left)
    put(store, "late", queue="other", due_ms=int(host.wall) - 1)
    assert claim(store, "other") == ["late"]
    while host.wall < NOON + by + left - SECOND:
        host.passes(SECOND)
        assert "x" not in claim(store)
    settle_all(store)
    host.passes(2 * SECOND)
    assert "x" in claim(store)


def settle_all(store: SqliteStore) -> None:
    """End what was claimed at the beginning."""
    c = sqlite3.connect(store.path)
    c.execute("delete from message where lane = 'leased'")
    c.commit()
    c.close()


def test_deadline_given_after_a_jump_is_that_of_the_machine(opened: Opener, host: Set) -> None:
    store = opened()
    put(store, "first")
    host.set_by(-HOUR)
    put(store, "x", deadline_ms=int(host.wall) + MINUTE)
    [found] = [one.message for one in claims(store) if one.message.body == b"x"]
    assert found.deadline_ms is not None and MINUTE * 0.9 <= found.deadline_ms - store.now_ms() <= MINUTE


# -- back to the machine's time


def test_clock_that_was_set_forward_is_followed_after_ten_minutes_once_no_lease_runs(opened: Opener, host: Set) -> None:
    store, other = opened(), opened()
    put(store, "runs")
    put(store, "waits", queue="later", due_ms=NOON + HOUR)
    [held] = claims(store)
    host.set_by(2 * HOUR)
    for _ in range(90):  # fifteen minutes
        host.passes(10 * SECOND)
        assert store.extend([held.receipt], lease_ms=LEASE_MS) == [LeaseStatus.HELD]
        assert claim(other, "later") == []
    store.exchange([Settlement(held.receipt, Ack())], [])
    host.passes(QUIET_EVERY_MS)
    assert claim(other, "later") == ["waits"]
    assert abs(other.now_ms() - host.wall) <= 1 >= abs(store.now_ms() - host.wall)


def test_lease_that_has_run_out_does_not_keep_the_store_behind(opened: Opener, host: Set) -> None:
    store = opened()
    put(store, "left", queue="retired")
    assert claim(store, "retired") == ["left"]  # its worker is killed, and no other works that queue
    put(store, "waits", queue="later", due_ms=NOON + HOUR)
    host.passes(LEASE_MS - SECOND)
    host.set_by(2 * HOUR)
    assert claim(store, "later") == []
    host.passes(WAIT_MS + SECOND)
    assert claim(store, "later") == ["waits"]
    assert abs(store.now_ms() - host.wall) <= 1


def test_clock_that_is_set_right_within_ten_minutes_changes_nothing(opened: Opener, host: Set) -> None:
    store = opened()
    put(store, "x", delay_ms=2 * HOUR)
    for by in (HOUR, -HOUR):
        assert claim(store) == []
        host.set_by(by)
        host.passes(9 * MINUTE)
    assert claim(store) == []
    host.passes(20 * MINUTE)
    assert claim(store) == [] and abs(store.now_ms() - host.wall) <= 1


def test_clock_that_was_set_back_is_caught_up_with_by_running_slower(opened: Opener, host: Set) -> None:
    store = opened()
    put(store, "x")
    host.set_by(-HOUR)
    before = store.now_ms()
    for _ in range(60 * 10 + 1):
        host.passes(MINUTE)
        claim(store)
        assert before + MINUTE * (1 - SLOWER) - 2 <= store.now_ms() <= before + MINUTE + 1
        before = store.now_ms()
    assert abs(store.now_ms() - host.wall) <= 1


def test_difference_of_less_than_a_second_is_nobodys_doing(opened: Opener, host: Set) -> None:
    store = opened()
    put(store, "x")
    host.set_by(-STEP_MS + 1)
    assert store.now_ms() == NOON and store.doctor() == [line for line in store.doctor() if "clock" not in line]


def test_doctor_says_how_far_the_two_are_apart(opened: Opener, host: Set) -> None:
    store = opened()
    put(store, "x")
    host.set_by(-HOUR)
    assert [line for line in store.doctor() if "was set back" in line and "is 1h ahead of it" in line]
    host.set_by(3 * HOUR)
    assert [line for line in store.doctor() if "was set forward" in line and "is 2h behind it" in line]


# -- processes, and starts of the machine


def test_process_that_slept_through_jumps_goes_by_what_the_others_made_of_them(opened: Opener, host: Set) -> None:
    """Set forward, followed, set back: to who saw nothing of it the clock looks as it always did."""
    sleeper, awake = opened(), opened()
    put(sleeper, "x")
    assert claim(sleeper) == ["x"]
    settle_all(sleeper)
    host.set_by(HOUR)
    claim(awake)
    host.passes(WAIT_MS + SECOND)
    claim(awake)
    host.passes(SECOND)
    assert abs(awake.now_ms() - host.wall) <= 1
    host.set_by(-HOUR)
    claim(awake)
    host.passes(SECOND)
    put(sleeper, "y", delay_ms=MINUTE)
    assert abs(sleeper.now_ms() - awake.now_ms()) <= 1 and sleeper.now_ms() > host.wall + HOUR - MINUTE
    assert claim(awake) == []
    put(sleeper, "z")
    [held] = [one for one in claims(sleeper) if one.message.body == b"z"]
    assert claim(awake) == []  # its lease is as long for both
    assert awake.extend([held.receipt], lease_ms=LEASE_MS) == [LeaseStatus.HELD]


def test_who_only_looks_sees_the_store_s_time_and_writes_none(opened: Opener, host: Set, path: Path) -> None:
    store = opened()
    put(store, "x")
    host.set_by(-HOUR)
    claim(store)
    mark = kept(path)
    host.passes(5 * SECOND)
    looking = opened()
    assert abs(looking.now_ms() - store.now_ms()) <= 1
    assert looking.counts().leased == 1 and kept(path) == mark


def kept(path: Path) -> ClockMark | None:
    with closing(sqlite3.connect(path)) as c:
        row = c.execute("select value from cell where key = ?", (KEY,)).fetchone()
    return None if row is None else read(row[0])


def test_time_goes_on_when_the_machine_starts_anew(opened: Opener, host: Set, path: Path) -> None:
    store = opened()
    put(store, "x", delay_ms=HOUR)
    host.passes(SAVE_EVERY_MS)
    claim(store)
    store.close()
    host.starts_anew(10 * MINUTE)
    again = opened()
    assert abs(again.now_ms() - host.wall) <= 1
    claim(again)
    again.close()
    host.starts_anew(MINUTE, wrong_by_ms=-HOUR)  # its battery is empty
    third = opened()
    saved = kept(path)
    assert saved is not None and saved.time_ms - 1 <= third.now_ms() <= saved.time_ms + MINUTE
    put(third, "y")
    assert claim(third) == ["y"]  # though by the wall clock it is an hour before the other one was put
    host.set_by(HOUR)  # and is set right
    host.passes(WAIT_MS)
    assert third.now_ms() >= saved.time_ms


def test_store_that_was_far_ahead_comes_back_when_the_machine_starts_anew(opened: Opener, host: Set) -> None:
    host.set_by(AWAY_MS * 100)
    store = opened()
    put(store, "x")
    store.close()
    host.starts_anew(MINUTE, wrong_by_ms=-AWAY_MS * 100)
    again = opened()
    put(again, "y")
    assert abs(again.now_ms() - host.wall) <= 1


def test_mark_that_cannot_be_read_counts_as_none(opened: Opener, host: Set, path: Path) -> None:
    store = opened()
    put(store, "x")
    store.close()
    with closing(sqlite3.connect(path)) as c:
        c.execute("update cell set value = x'ff00' where key = ?", (KEY,))
        c.commit()
    again = opened()
    assert again.now_ms() == NOON and claim(again) == ["x"]
    assert kept(path) is not None


def test_commit_that_fails_leaves_the_mark_as_it_was(opened: Opener, host: Set, path: Path) -> None:
    store, other = opened(), opened()
    put(store, "x", delay_ms=HOUR // 2)
    host.set_by(HOUR)
    assert claim(store) == []
    host.passes(WAIT_MS + SECOND)
    mark = kept(path)

    def fail(point: str) -> None:
        if point == "put":
            raise StoreError("it fails")

    store.failpoint = fail
    with pytest.raises(StoreError, match="it fails"):
        put(store, "y")
    store.failpoint = lambda point: None
    assert kept(path) == mark
    assert claim(store) == ["x"] and abs(other.now_ms() - store.now_ms()) <= 1


def test_where_starts_cannot_be_told_apart_the_wall_clock_is_the_stores(path: Path, host: Set) -> None:
    host.start = ""
    with closing(SqliteStore(path, host=host)) as store:
        put(store, "x")
        host.set_by(HOUR)
        assert store.now_ms() == NOON + HOUR and kept(path) is None


# -- the rule itself


PASSES = st.floats(0, 2 * HOUR) | st.floats(0, 100)
SET_BY = st.sampled_from([0.0, HOUR, -HOUR, 30 * HOUR, -2000.0, 900.0])


@given(st.lists(st.tuples(PASSES, SET_BY, st.booleans()), max_size=60))
def test_time_never_goes_back_nor_faster_and_jumps_only_to_the_machines_when_no_lease_runs(
    steps: list[tuple[float, float, bool]],
) -> None:
    host = Set()
    mark = next_mark(None, host.start, host.wall, host.steady)
    for passes, by, quiet in steps:
        before = mark.time_at(host.steady)
        host.passes(passes)
        host.set_by(by)
        at = mark.time_at(host.steady)
        assert before + passes * (1 - SLOWER) - 1e-3 <= at <= before + passes + 1e-3
        new = next_mark(mark, host.start, host.wall, host.steady, lambda _, quiet=quiet: quiet)  # type: ignore[misc]
        after = new.time_at(host.steady)
        if after != pytest.approx(at, abs=1e-3):
            assert quiet and after == host.wall > at
            assert mark.behind_since_ms is not None and host.steady - mark.behind_since_ms >= WAIT_MS
        mark = new
