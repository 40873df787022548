"""Where claims begin in the due index, on made-up times: what raises a floor, what lowers it, and what is looked at."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import pairwise

import pytest

from redrive.stores.postgres.floor import (
    BEHIND_EVERY_S,
    FIRST,
    FREE_MS,
    FRONT_EVERY_S,
    LATE_MS,
    LOOKS_MAX,
    NEVER_MS,
    OPEN_EVERY_S,
    PIECE_MS,
    PIECES_MAX,
    SAVED_MS,
    SHARE,
    SPOTS_MAX,
    WORTH_MS,
    Aim,
    Floor,
    FloorLook,
    IndexPlace,
    LookAllowance,
    Pieces,
    Range,
)
from redrive.stores.postgres.notifications import clustered

NOW = 1_000_000_000
Index = list[IndexPlace]  # messages, sorted


def place(due_ms: int, seq: int = 1, lane: str = "ready") -> IndexPlace:
    return due_ms, lane, seq


class Process:
    """A floor, what a process does with it, and an index to look at. Looking costs `cost` ms for each second of it."""

    def __init__(self, index: Index | None = None, *, scattered: bool = True, cost: float = 1.0) -> None:
        self.floor, self.allowance = Floor(scattered=scattered), LookAllowance()
        self.index: Index = sorted(index or [])
        self.at_s, self.now_ms, self.cost, self.spent_ms = 100.0, NOW, cost, 0.0

    def wait(self, s: float) -> None:
        self.at_s += s
        self.now_ms += round(s * 1000)

    def look(self) -> list[FloorLook]:
        """What is due, looked at as the server would."""
        looks = self.floor.looks(self.at_s, self.allowance)
        for look in looks:
            first = next(iter(self.index[bisect_left(self.index, look.low) :]), None)
            if first is not None and first[0] > look.until_ms:
                first = None
            end_ms = min(look.until_ms, self.now_ms) if first is None else first[0]
            cost_ms = max(0, end_ms - max(look.low[0], NOW - 100_000)) / 1000 * self.cost
            self.spent_ms += cost_ms if look.aim is Aim.BEHIND else 0
            self.floor.saw(look, first, cost_ms, self.now_ms, self.at_s, self.allowance)
        return looks

    def claimable(self) -> Index:
        """What a claim would find, in its order."""
        found = []
        for low, until_ms in self.floor.ranges(self.now_ms):
            found += [p for p in self.index if p >= low and p[0] <= min(until_ms, self.now_ms)]
        return found


def kept(index: Index | None = None, **how: object) -> Process:
    """A process with a floor, raised just now. The way there cost much."""
    process = Process(index, **how)  # type: ignore[arg-type]
    (look,) = process.floor.looks(process.at_s, process.allowance)
    first = process.index[0] if process.index else None
    process.floor.saw(look, first, 2 * WORTH_MS, process.now_ms, process.at_s, process.allowance)
    assert process.floor.kept
    return process


# -- the front


def test_without_a_floor_claims_read_all() -> None:
    assert Process().floor.ranges(NOW) == [Range(FIRST, NEVER_MS)]


def test_a_cheap_way_to_the_first_message_needs_no_floor() -> None:
    process = Process()
    for _ in range(5):
        (look,) = process.floor.looks(process.at_s, process.allowance)
        assert look[:3] == (Aim.FRONT, FIRST, NEVER_MS)
        process.floor.saw(look, None, WORTH_MS * 0.99, process.now_ms, process.at_s, process.allowance)
        assert process.floor.looks(process.at_s + OPEN_EVERY_S * 0.99, process.allowance) == []
        process.wait(OPEN_EVERY_S)
    assert not process.floor.kept


@pytest.mark.parametrize("behind_ms", [LATE_MS, LATE_MS + 1, 3_600_000])
def test_a_floor_lies_at_the_first_message(behind_ms: int) -> None:
    first = place(NOW - behind_ms, 7, "leased")
    process = kept([first, place(NOW)])
    assert process.floor.ranges(NOW) == [Range(min(first, (NOW - LATE_MS, "", 0)), NEVER_MS)]


@pytest.mark.parametrize("first", [None, place(NOW - LATE_MS + 1), place(NOW), place(NOW + 3_600_000)])
def test_a_floor_lies_half_a_second_back_at_the_latest(first: IndexPlace | None) -> None:
    process = kept([] if first is None else [first])
    assert process.floor.ranges(NOW) == [Range((NOW - LATE_MS, "", 0), NEVER_MS)]


def test_a_floor_rises_with_what_was_claimed() -> None:
    process = kept([place(NOW - 9000 + n) for n in range(100)])
    assert process.floor.place == place(NOW - 9000)
    del process.index[:60]
    assert [look.aim for look in process.look()] == [Aim.BEHIND]
    process.wait(FRONT_EVERY_S)
    process.look()
    assert process.floor.place == place(NOW - 9000 + 60)
    process.index.clear()
    process.wait(FRONT_EVERY_S)
    process.look()
    assert process.floor.place == (process.now_ms - LATE_MS, "", 0)


def test_a_look_at_a_floor_that_was_moved_meanwhile_is_worth_nothing() -> None:
    process = kept([place(NOW - 9000)])
    process.wait(FRONT_EVERY_S)
    *_, look = process.floor.looks(process.at_s, process.allowance)
    process.floor.expect(NOW - 9000, NOW - 9000)
    process.floor.saw(look, None, 0.1, process.now_ms, process.at_s, process.allowance)
    assert process.floor.place == (NOW - 9000, "", 0)


def test_a_clock_that_is_set_back_lowers_the_floor() -> None:
    process = kept()
    process.now_ms -= 60_000
    assert process.floor.ranges(process.now_ms) == [Range((process.now_ms - LATE_MS, "", 0), NEVER_MS)]
    process.index = [place(process.now_ms)]
    assert process.claimable() == process.index
    process.at_s += FRONT_EVERY_S
    process.look()
    assert process.floor.place == (process.now_ms - LATE_MS, "", 0)


def test_a_clock_that_is_set_back_leaves_no_place_in_two_ranges() -> None:
    process = kept()
    for back_ms in (100_000, 50_000, 7_000):
        process.floor.expect(NOW - back_ms, NOW - back_ms + 2000)
    for now_ms in (NOW, NOW - 6000, NOW - 49_000, NOW - 200_000):
        ranges = process.floor.ranges(now_ms)
        assert all(one.until_ms < other.low[0] for one, other in pairwise(ranges))


# -- spots


def test_without_a_floor_nothing_is_expected() -> None:
    process = Process()
    process.floor.expect(0, NOW)
    assert process.floor.spots == []


def test_what_is_expected_below_the_floor_is_claimed_until_it_is_gone() -> None:
    process = kept()
    process.index = [place(NOW - 60_000, n) for n in range(3)]
    assert process.claimable() == []
    process.floor.expect(NOW - 60_000, NOW - 60_000)
    assert process.claimable() == process.index
    process.look()
    del process.index[:2]
    assert process.claimable() == process.index
    process.look()
    assert process.floor.spots != []
    process.index.clear()
    process.look()
    assert process.floor.spots == [] and len(process.floor.ranges(NOW)) == 1


def test_a_spot_is_narrowed_to_the_first_message_in_it() -> None:
    process = kept()
    process.floor.expect(NOW - 60_000, NOW - 10_000)
    look, *_ = process.floor.looks(process.at_s, process.allowance)
    assert look[:3] == (Aim.SPOT, (NOW - 60_000, "", 0), NOW - 10_000)
    process.floor.saw(look, place(NOW - 20_000), 0.1, NOW, process.at_s, process.allowance)
    assert process.floor.spots == [(NOW - 20_000, NOW - 10_000)]
    process.floor.saw(look, None, 0.1, NOW, process.at_s, process.allowance)  # another thread's, from before
    assert process.floor.spots == [(NOW - 20_000, NOW - 10_000)]


def test_behind_one_that_nobody_claims_the_next_is_found() -> None:
    """As of a task whose claims are skipped for now."""
    process = kept()
    process.index = [place(NOW - 60_000), place(NOW - 50_000)]
    process.floor.expect(NOW - 60_000, NOW - 60_000)
    assert process.claimable() == process.index[:1]
    process.wait(BEHIND_EVERY_S)
    process.look()
    assert process.claimable() == process.index


def test_what_is_expected_above_the_floor_changes_nothing() -> None:
    process = kept()
    process.floor.expect(NOW - LATE_MS + 1, NOW + 5000)
    assert process.floor.spots == [] and process.floor.place == (NOW - LATE_MS, "", 0)


@pytest.mark.parametrize(("low", "until"), [(0, 0), (-5, 0), (-5, 5000)])
def test_what_is_expected_at_the_floors_own_time_lowers_it_to_the_begin_of_that(low: int, until: int) -> None:
    process = kept([place(NOW - 9000, 50)])
    process.floor.expect(NOW - 9000 + low, NOW - 9000 + until)
    assert process.floor.place == (NOW - 9000, "", 0)
    assert process.floor.spots == ([(NOW - 9005, NOW - 9001)] if low else [])


def test_spots_that_touch_become_one_and_no_more_than_a_few_are_kept() -> None:
    process = kept()
    process.floor.expect(NOW - 5000, NOW - 4000)
    process.floor.expect(NOW - 3999, NOW - 3000)
    process.floor.expect(NOW - 4500, NOW - 3500)
    assert process.floor.spots == [(NOW - 5000, NOW - 3000)]
    for n in range(50):
        process.floor.expect(NOW - 100_000 - n * n * 1000, NOW - 100_000 - n * n * 1000)
    spots = process.floor.spots
    assert len(spots) == SPOTS_MAX
    assert all(any(low <= NOW - 100_000 - n * n * 1000 <= until for low, until in spots) for n in range(50))
    assert all(one[1] < other[0] for one, other in pairwise(spots))


def test_where_claims_read_one_range_a_spot_lowers_the_floor() -> None:
    process = kept(scattered=False)
    process.floor.expect(NOW - 60_000, NOW - 50_000)
    assert process.floor.ranges(NOW) == [Range((NOW - 60_000, "", 0), NEVER_MS)]
    process.wait(FRONT_EVERY_S)
    process.look()
    assert process.floor.place == (process.now_ms - LATE_MS, "", 0)


# -- told of while a look is under way, which may have been sent too early to see it


@pytest.mark.parametrize("back_ms", [60_000, LATE_MS + 1])
def test_a_first_floor_lies_no_higher_than_what_was_told_of_meanwhile(back_ms: int) -> None:
    process = Process()
    (look,) = process.floor.looks(process.at_s, process.allowance)
    process.index = [place(NOW - back_ms)]
    process.floor.expect(NOW - back_ms, NOW)
    process.floor.saw(look, None, 2 * WORTH_MS, NOW, process.at_s, process.allowance)
    assert process.floor.kept and process.claimable() == process.index


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("back_ms", [9000, 8000, LATE_MS + 1])
def test_no_floor_rises_over_what_was_told_of_meanwhile(back_ms: int, scattered: bool) -> None:
    process = kept([place(NOW - 8500)], scattered=scattered)
    process.wait(FRONT_EVERY_S)
    looks = process.floor.looks(process.at_s, process.allowance)
    process.index = [place(NOW - back_ms)]
    process.floor.expect(NOW - back_ms, NOW)
    for look in looks:
        process.floor.saw(look, None, 0.1, process.now_ms, process.at_s, process.allowance)
    assert process.claimable() == process.index


def test_a_floor_rises_to_what_was_told_of_meanwhile_and_then_over_it() -> None:
    process = kept([place(NOW - 9000)])
    process.wait(FRONT_EVERY_S)
    *_, look = process.floor.looks(process.at_s, process.allowance)
    process.floor.expect(NOW - 4000, NOW)
    process.floor.saw(look, None, 0.1, process.now_ms, process.at_s, process.allowance)
    assert process.floor.place == (NOW - 4000, "", 0)
    process.index.clear()
    process.wait(FRONT_EVERY_S)
    process.look()
    assert process.floor.place == (process.now_ms - LATE_MS, "", 0)


def test_a_spot_that_is_told_of_again_meanwhile_is_kept() -> None:
    process = kept()
    process.floor.expect(NOW - 60_000, NOW - 60_000)
    look, *_ = process.floor.looks(process.at_s, process.allowance)
    process.floor.expect(NOW - 60_000, NOW - 60_000)
    process.floor.saw(look, None, 0.1, NOW, process.at_s, process.allowance)
    assert process.floor.spots == [(NOW - 60_000, NOW - 60_000)]
    process.look()
    assert process.floor.spots == []


def test_a_floor_that_is_assumed_knows_of_what_was_told_of_meanwhile() -> None:
    process = Process([place(NOW - 60_000)], cost=1.0)
    process.floor.looks(process.at_s, process.allowance)
    process.floor.expect(NOW - 60_000, NOW - 59_000)
    process.floor.assume(NOW, 9000.0, process.at_s)
    assert process.claimable() == process.index


def test_looks_that_never_come_back_are_forgotten() -> None:
    process = kept()
    for _ in range(3 * LOOKS_MAX):
        process.wait(FRONT_EVERY_S)
        process.floor.looks(process.at_s, process.allowance)
    assert len(process.floor._expected_ms) == LOOKS_MAX
    process.wait(FRONT_EVERY_S)
    process.look()
    assert process.floor.place == (process.now_ms - LATE_MS, "", 0)


# -- looking behind


def test_what_nobody_told_of_is_found_within_a_second_where_that_is_cheap() -> None:
    for back_ms in (LATE_MS, 1000, 60_000, NOW):
        process = kept(cost=0.01)
        process.wait(BEHIND_EVERY_S)
        process.look()
        late = place(process.floor.place[0] - back_ms + LATE_MS - 1, 5)
        process.index = [late]
        assert process.claimable() == []
        process.wait(BEHIND_EVERY_S)
        process.look()
        assert process.claimable() == [late]


def test_one_that_comes_late_in_the_floors_own_millisecond_is_found() -> None:
    process = kept([place(NOW - 9000, 50)])
    process.index.insert(0, place(NOW - 9000, 7, "leased"))
    process.wait(BEHIND_EVERY_S)
    process.look()
    assert process.floor.place == (NOW - 9000, "leased", 7)
    assert process.claimable() == process.index


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("seed_at", range(3))
def test_whatever_appears_below_is_found_in_one_pass(scattered: bool, seed_at: int, seed: int) -> None:
    """However the pieces lie by then."""
    draw = random.Random(seed + seed_at)
    process = kept(cost=draw.choice([0.1, 3.0, 40.0]), scattered=scattered)
    for _ in range(draw.randrange(2, 300)):
        process.wait(draw.random())
        process.look()
    top_ms = process.floor.place[0]
    late = sorted(place(top_ms - draw.choice([1, 300, 40_000, 5_000_000, NOW - 1]) - n, n) for n in range(20))
    process.index = list(late)
    for _ in range(2_000):
        process.wait(0.5)
        process.look()
        found = process.claimable()
        process.index = [p for p in process.index if p not in found]
    assert process.index == []


def test_looking_behind_takes_its_share_of_the_time_and_no_more() -> None:
    process = kept(cost=100.0)  # 10 s of server time for all of it
    begin_s, most_ms = process.at_s, 0.0
    for _ in range(2_000):
        process.wait(0.05)
        before_ms = process.spent_ms
        process.look()
        most_ms = max(most_ms, process.spent_ms - before_ms)
    assert process.spent_ms <= (process.at_s - begin_s) * 1000 * SHARE * 1.2 + SAVED_MS + most_ms
    assert process.spent_ms >= (process.at_s - begin_s) * 1000 * SHARE * 0.5


def test_a_process_that_comes_by_once_a_second_looks_through_as_much() -> None:
    often, rarely = kept(cost=1.0), kept(cost=1.0)
    for process, every_s in ((often, 0.05), (rarely, 1.0)):
        while process.at_s < 400:
            process.wait(every_s)
            process.look()
    assert rarely.spent_ms >= 0.6 * often.spent_ms


def test_no_look_is_long_once_the_pieces_are_cut() -> None:
    process = kept(cost=10.0)
    looked: list[float] = []
    for _ in range(20_000):
        process.wait(0.1)
        before_ms = process.spent_ms
        if sum(look.aim is Aim.BEHIND for look in process.look()):
            looked.append(process.spent_ms - before_ms)
    assert max(looked[len(looked) // 2 :]) <= SAVED_MS + 2 * PIECE_MS


def test_a_floor_is_given_up_once_all_that_lies_below_is_cheap() -> None:
    process = kept(cost=10.0)
    for _ in range(100):
        process.wait(0.2)
        process.look()
    assert process.floor.kept
    process.cost = 0.0  # as after a vacuum
    for _ in range(200):
        process.wait(0.2)
        process.look()
    assert not process.floor.kept and process.floor.ranges(process.now_ms) == [Range(FIRST, NEVER_MS)]


def test_a_floor_is_not_given_up_while_something_below_it_is_expected() -> None:
    process = kept(cost=0.0)
    process.index = [place(NOW - 60_000)]
    process.floor.expect(NOW - 60_000, NOW - 60_000)
    for _ in range(20):
        process.wait(BEHIND_EVERY_S)
        process.look()
    assert process.floor.kept and process.claimable() == process.index
    process.index.clear()
    for _ in range(3):
        process.wait(BEHIND_EVERY_S)
        process.look()
    assert not process.floor.kept


def test_a_floor_that_is_assumed_lies_half_a_second_back_and_all_below_is_looked_through() -> None:
    process = Process([place(NOW - 40_000_000), place(NOW - 20)], cost=1.0)
    process.floor.assume(NOW, 9000.0, process.at_s)
    assert process.claimable() == process.index[1:]
    looked: list[float] = []
    while process.claimable() != process.index:
        process.wait(0.1)
        before_ms = process.spent_ms
        process.look()
        looked.append(process.spent_ms - before_ms)
    assert max(looked) <= SAVED_MS + PIECE_MS


# -- pieces


def test_pieces_lie_side_by_side_from_the_first_place_to_the_floor(seed: int) -> None:
    draw = random.Random(seed)
    top_ms, at_s, allowance = NOW, 10.0, LookAllowance()
    pieces = Pieces(top_ms, draw.choice([1.0, 900.0]), at_s)
    for _ in range(400):
        at_s += draw.random()
        due = pieces.due(top_ms, at_s, allowance)
        for one, other in pairwise(due):
            assert other[0] == one[1] + 1
        for low_ms, until_ms in due:
            pieces.measured(low_ms, until_ms, draw.choice([0.01, 1.0, 20.0, 200.0]), at_s, allowance)
        top_ms += draw.choice([0, 1, 300, 5000, -40_000])
        pieces.end_at(top_ms, at_s)
        assert pieces._bounds == sorted(set(pieces._bounds)) and len(pieces._costs) == len(pieces._bounds) + 1
        assert all(bound <= top_ms for bound in pieces._bounds)
        assert 0 <= pieces._next <= len(pieces._costs)


def test_a_piece_that_two_threads_looked_through_counts_once() -> None:
    pieces, allowance = Pieces(NOW, 1.0, 0.0), LookAllowance()
    ((low_ms, until_ms),) = pieces.due(NOW, 5.0, allowance)
    assert pieces.measured(low_ms, until_ms, FREE_MS, 5.0, allowance) == FREE_MS
    pieces.end_at(NOW + 9000, 6.0)
    assert pieces.measured(low_ms, until_ms, 50.0, 6.0, allowance) is None
    assert pieces._costs == [FREE_MS, PIECE_MS / 2]


def test_there_are_never_more_than_so_many_pieces() -> None:
    pieces = Pieces(NOW, 1.0, 0.0)
    for n in range(3 * PIECES_MAX):
        pieces.end_at(NOW + n * 1000, float(n))
    assert PIECES_MAX / 2 <= len(pieces._bounds) <= PIECES_MAX


# -- ranges of times


@pytest.mark.parametrize(
    ("dues", "most", "found"),
    [
        ([], 4, []),
        ([5], 4, [(5, 5)]),
        ([5, 5, 6, 7], 4, [(5, 7)]),
        ([1, 100, 101, 300], 2, [(1, 101), (300, 300)]),
        ([1, 100, 101, 300], 1, [(1, 300)]),
        ([300, 1, 101, 100], 9, [(1, 1), (100, 101), (300, 300)]),
    ],
)
def test_times_are_told_as_few_ranges_with_little_between_them(
    dues: list[int], most: int, found: list[tuple[int, int]]
) -> None:
    assert clustered(dues, most) == found


def test_all_times_are_in_the_ranges_and_the_ranges_end_at_times(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        dues = [draw.randrange(10 ** draw.randrange(1, 7)) for _ in range(draw.randrange(1, 60))]
        found = clustered(dues, 8)
        assert len(found) <= 8 and {ms for spot in found for ms in spot} <= set(dues)
        assert all(any(low <= due <= until for low, until in found) for due in dues)
        assert all(one[1] < other[0] for one, other in pairwise(found))
