"""Which ticks are due: a table, and what holds of every history."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.schedule.cron import times
from redrive.schedule.turn import (
    AHEAD_MAX_MS,
    MISSED_MAX,
    ON_TIME_MS,
    TAKE_OVER_MS,
    Missed,
    ScheduleState,
    Turn,
    cut,
    resumed,
    turn,
)

M = 60_000  # a minute
EVERY_MINUTE = times("* * * * *", None, "UTC")
SPEC = EVERY_MINUTE.spec
T = 1_750_000_020_000  # a full minute
LAST, ALL, SKIP = Missed.LAST, Missed.ALL, Missed.SKIP


def at(seen: int, last: int | None = None, **more: object) -> ScheduleState:
    return ScheduleState(SPEC, seen, last, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("missed", "state", "now", "expected"),
    [
        # A new schedule starts from now, also where now is a tick.
        (ALL, None, T, Turn(at(T))),
        # Nothing is due before its time; what comes back is what is there.
        (LAST, at(T), T, Turn(at(T))),
        (LAST, at(T, T), T + M - 1, Turn(at(T, T))),
        # At its time, and late, but before the next one.
        (LAST, at(T), T + M, Turn(at(T + M, T + M), (T + M,))),
        (LAST, at(T), T + 2 * M - 1, Turn(at(T + M, T + M), (T + M,))),
        (SKIP, at(T), T + M + ON_TIME_MS, Turn(at(T + M, T + M), (T + M,))),
        # Later than that a tick is missed: `skip` leaves it out, and goes on from there.
        (SKIP, at(T), T + M + ON_TIME_MS + 1, Turn(at(T + M), (), (T, T + M + 1))),
        # Three missed.
        (LAST, at(T), T + 3 * M + 9, Turn(at(T + 3 * M, T + 3 * M), (T + 3 * M,), (T, T + 3 * M))),
        (ALL, at(T), T + 3 * M + 9, Turn(at(T + 3 * M, T + 3 * M), (T + M, T + 2 * M, T + 3 * M))),
        (SKIP, at(T), T + 3 * M + 9, Turn(at(T + 3 * M, T + 3 * M), (T + 3 * M,), (T, T + 3 * M))),
        (SKIP, at(T), T + 4 * M - 1, Turn(at(T + 3 * M), (), (T, T + 3 * M + 1))),
        # Paused: nothing, however much is due.
        (ALL, at(T, paused=True), T + 3 * M, Turn(at(T, paused=True))),
        # Another spec: from now; what was enqueued last and that it is paused stays known.
        (ALL, ScheduleState("@old", T - 9 * M, T - 9 * M, True), T, Turn(at(T, T - 9 * M, paused=True, changed_ms=T))),
        # The clock went back a little: what was enqueued is not enqueued again.
        (ALL, at(T, T), T - 9 * M, Turn(at(T, T))),
        # It was wrong by more than a day: from now.
        (ALL, at(T + AHEAD_MAX_MS + 1, T), T, Turn(at(T))),
    ],
)  # fmt: skip
def test_what_is_due(missed: Missed, state: ScheduleState | None, now: int, expected: Turn) -> None:
    assert turn(EVERY_MINUTE, missed, state, now) == expected


def test_of_more_than_the_bound_all_drops_the_oldest_and_says_so() -> None:
    now = T + (MISSED_MAX + 5) * M
    found = turn(EVERY_MINUTE, ALL, at(T), now)
    assert len(found.ticks) == MISSED_MAX
    assert found.ticks == tuple(range(T + 6 * M, now + 1, M))
    assert found.left_out == (T, T + 6 * M)
    assert turn(EVERY_MINUTE, ALL, at(T), T + MISSED_MAX * M).left_out is None


def test_a_scheduler_that_looked_before_leaves_a_spec_alone_that_has_just_changed() -> None:
    other = ScheduleState("@new", T, None, changed_ms=T)
    assert turn(EVERY_MINUTE, ALL, other, T + TAKE_OVER_MS - 1, first=False) == Turn(other)
    assert turn(EVERY_MINUTE, ALL, other, T + 1, first=True).state.spec == SPEC  # one that just started is the news
    assert turn(EVERY_MINUTE, ALL, other, T + TAKE_OVER_MS, first=False).state.spec == SPEC
    assert turn(EVERY_MINUTE, ALL, other, T - 1, first=False).state.spec == SPEC  # from a clock that was ahead


def test_what_is_cut_stays_due() -> None:
    whole = turn(EVERY_MINUTE, ALL, at(T), T + 5 * M)
    part = cut(whole, 2)
    assert part.ticks == whole.ticks[:2]
    rest = turn(EVERY_MINUTE, ALL, part.state, T + 5 * M)
    assert part.ticks + rest.ticks == whole.ticks
    assert rest.state == whole.state
    assert cut(whole, 5) is whole


def test_a_resumed_schedule_that_skips_starts_from_now() -> None:
    paused = at(T, T, paused=True)
    now = T + 3 * M + 1000  # well within the time in which a tick counts as on time
    assert turn(EVERY_MINUTE, SKIP, resumed(paused, SKIP, False, now), now).ticks == ()
    assert turn(EVERY_MINUTE, LAST, resumed(paused, LAST, False, now), now).ticks == (T + 3 * M,)
    assert len(turn(EVERY_MINUTE, ALL, resumed(paused, ALL, False, now), now).ticks) == 3
    assert resumed(at(T), SKIP, False, now) == at(T)  # it was not paused: nothing is skipped


looks = st.lists(st.integers(0, 5 * M), min_size=1, max_size=30)


@given(looks, st.sampled_from(list(Missed)))
def test_ticks_rise_and_each_comes_at_most_once(pauses: list[int], missed: Missed) -> None:
    enqueued, state, now = [], None, T
    for pause in pauses:
        now += pause
        found = turn(EVERY_MINUTE, missed, state, now)
        state = found.state
        enqueued += found.ticks
        assert all(tick <= now for tick in found.ticks)
        assert turn(EVERY_MINUTE, missed, state, now) == Turn(state)  # nothing is left to do at once
    assert enqueued == sorted(set(enqueued))


@given(looks)
def test_with_all_none_is_missing(pauses: list[int]) -> None:
    enqueued: list[int] = []
    state, now = turn(EVERY_MINUTE, ALL, None, T).state, T
    for pause in pauses:
        now += pause
        found = turn(EVERY_MINUTE, ALL, state, now)
        state = found.state
        enqueued += found.ticks
    assert enqueued == list(takewhile(lambda tick: tick <= now, EVERY_MINUTE.after(T)))


@given(looks)
def test_with_last_the_latest_tick_is_always_done(pauses: list[int]) -> None:
    state, now = turn(EVERY_MINUTE, LAST, None, T).state, T
    for pause in pauses:
        now += pause
        state = turn(EVERY_MINUTE, LAST, state, now).state
        assert state.seen_ms == now - now % M


@given(looks)
def test_with_skip_none_is_late(pauses: list[int]) -> None:
    state, now = turn(EVERY_MINUTE, SKIP, None, T).state, T
    for pause in pauses:
        now += pause
        found = turn(EVERY_MINUTE, SKIP, state, now)
        state = found.state
        assert all(now - tick <= ON_TIME_MS for tick in found.ticks)
