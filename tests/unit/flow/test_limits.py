"""Rates, cool-downs and AIMD, as sequences. No clock: time is an argument."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import Aimd, Rate
from redrive.errors import ConfigError
from redrive.flow.limits import AimdState, CoolDown, ask, cool, height, share, steer, until

T0 = 1_760_000_000_000

# Rates


@pytest.mark.parametrize(
    ("rate", "slots"),
    [
        (Rate("100/s"), [0] * 10 + [10, 20, 30]),  # a tenth of a second's worth at once
        (Rate("50/s", burst=1), [0, 20, 40, 60]),
        (Rate("3/s"), [0, 334, 667, 1000, 1334, 1667, 2000]),  # exact, rounded up once and never added up
        (Rate("5000/h"), [0, 720, 1440]),
        (Rate("1/2s"), [0, 2000, 4000]),
        (Rate("5000/s", burst=1), [0, 1, 1, 1, 1, 1, 2, 2]),
    ],
)
def test_what_comes_too_early_is_given_the_exact_time_of_its_slot(rate: Rate, slots: list[int]) -> None:
    assert [at_ms - T0 for at_ms in ask(0, rate, T0, len(slots))[1]] == slots


def test_a_pause_fills_the_burst_and_no_more() -> None:
    tat_ms, _ = ask(0, Rate("10/s", burst=3), T0, 3)
    assert [at_ms - T0 for at_ms in ask(tat_ms, Rate("10/s", burst=3), T0 + 150, 2)[1]] == [150, 200]
    assert [at_ms - T0 for at_ms in ask(tat_ms, Rate("10/s", burst=3), T0 + 10**6, 4)[1]] == [10**6] * 3 + [10**6 + 100]


# ITU-T I.371, GCRA(I, L) by virtual scheduling (ATM Forum UNI 3.1, 3.6.2.4): a cell conforms unless it comes earlier
# than its theoretical arrival time less L. With I = L = 10 ms two cells may come at once: our burst is 1 + L/I. What
# deliberately differs: a cell that does not conform is not dropped, but given the time at which it would.
@pytest.mark.parametrize(
    ("arrivals", "conforming"),
    [
        ([0, 10, 20, 30], [True] * 4),
        ([0, 0, 0], [True, True, False]),
        ([0, 5, 10, 15, 20], [True, True, True, False, True]),
        ([0, 0, 20, 20, 30], [True, True, True, True, True]),
    ],
)
def test_gcra_by_virtual_scheduling_says_which_cells_conform(arrivals: list[int], conforming: list[bool]) -> None:
    rate = Rate("100/s", burst=2)  # I = 10 ms, L = 10 ms
    tat_ms, said = 0.0, []
    for arrival_ms in arrivals:
        taken_ms, (at_ms,) = ask(tat_ms, rate, T0 + arrival_ms)
        said.append(at_ms <= T0 + arrival_ms)
        tat_ms = taken_ms if said[-1] else tat_ms  # what does not conform leaves no trace there
    assert said == conforming


RATES = st.sampled_from(
    [Rate("100/s"), Rate("3/s"), Rate("7/s", burst=4), Rate("5000/h"), Rate("999/s"), Rate("1/5s"), Rate("40000/s")]
)
ASKS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 40)), min_size=1, max_size=40)


@given(RATES, ASKS)
def test_never_more_than_the_burst_and_rate_times_t_in_any_window(rate: Rate, asks: list[tuple[int, int]]) -> None:
    tat_ms, now_ms, granted = 0.0, T0, []
    for pause_ms, n in asks:
        now_ms += pause_ms
        tat_ms, slots = ask(tat_ms, rate, now_ms, n)
        assert min(slots) >= now_ms
        granted += slots
    assert granted == sorted(granted)  # in the order of asking
    for i, begin_ms in enumerate(granted):
        for j in range(i, len(granted), 7):
            assert j - i + 1 <= rate.burst + rate.per_s * (granted[j] - begin_ms + 1) / 1000 + 0.02


@given(RATES, ASKS)
def test_n_at_once_get_what_n_one_by_one_get(rate: Rate, asks: list[tuple[int, int]]) -> None:
    at_once_ms = one_by_one_ms = 0.0
    now_ms = T0
    for pause_ms, n in asks:
        now_ms += pause_ms
        at_once_ms, slots = ask(at_once_ms, rate, now_ms, n)
        singly = []
        for _ in range(n):
            one_by_one_ms, (slot_ms,) = ask(one_by_one_ms, rate, now_ms)
            singly.append(slot_ms)
        assert (at_once_ms, slots) == (one_by_one_ms, singly)


@pytest.mark.parametrize(
    ("text", "burst"), [("100/s", 10), ("1000/s", 100), ("5/s", 1), ("5000/h", 1), ("0.1/s", 1), ("70/s", 7)]
)
def test_a_tenth_of_a_second_s_worth_may_come_at_once(text: str, burst: int) -> None:
    assert Rate(text).burst == burst


# Cool-downs


def test_one_retry_after_holds_all_and_spreads_their_return_over_a_fifth() -> None:
    state = cool(CoolDown(), 30, T0)
    assert state == CoolDown(T0 + 30_000, 6000)
    assert [until(state, u) - T0 for u in (0.0, 0.5, 1.0)] == [30_000, 33_000, 36_000]


@pytest.mark.parametrize(
    ("second_s", "later_ms", "expected"),
    [
        (5, 1000, CoolDown(T0 + 10_000, 2000)),  # a shorter one does not end the longer
        (20, 1000, CoolDown(T0 + 21_000, 4000)),
        (9, 1000, CoolDown(T0 + 10_000, 2000)),
        (0, 1000, CoolDown(T0 + 10_000, 2000)),
        (-5, 1000, CoolDown(T0 + 10_000, 2000)),
        (1, 60_000, CoolDown(T0 + 61_000, 200)),
        (10**9, 0, CoolDown(T0 + 21_600_000, 4_320_000)),  # six hours: one bad header closes nothing for years
        (float("inf"), 0, CoolDown(T0 + 21_600_000, 4_320_000)),
    ],
)
def test_the_later_of_two_ends_holds(second_s: float, later_ms: int, expected: CoolDown) -> None:
    assert cool(cool(CoolDown(), 10, T0), second_s, T0 + later_ms) == expected


# AIMD


def test_a_limit_s_worth_of_successes_adds_one() -> None:
    aimd = Aimd(start=10)
    state = AimdState()
    for _ in range(10):
        state = steer(state, aimd, 10, 0, T0)
    assert height(state, aimd) == pytest.approx(17.3, abs=0.1)  # 100 successes: sqrt(100 + 200)


def test_an_overload_halves_once_per_interval() -> None:
    aimd = Aimd(start=64, interval="1s")
    limits, state = [], AimdState()
    for at_ms in (0, 10, 999, 1000, 1500, 2000, 10_000, 11_000, 12_000, 13_000):
        state = steer(state, aimd, 0, 5, T0 + at_ms)
        limits.append(state.limit)
    assert limits == [32, 32, 32, 16, 16, 8, 4, 2, 1, 1]


def test_successes_beside_an_overload_do_not_raise_the_limit() -> None:
    state = steer(AimdState(), Aimd(start=10), 1000, 1, T0)
    assert state.limit == 5
    assert steer(state, Aimd(start=10), 1000, 1, T0 + 1) == state


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 10_000), st.integers(0, 3)), max_size=60),
    st.sampled_from([Aimd(), Aimd(start=5, least=5, most=5), Aimd(start=1, most=3, up=1000), Aimd(down=0.99, up=0.01)]),
)
def test_the_limit_stays_within_its_bounds(steps: list[tuple[int, int, int]], aimd: Aimd) -> None:
    state, now_ms = AimdState(), T0
    for pause_ms, successes, overloads in steps:
        now_ms += pause_ms
        before = height(state, aimd)
        state = steer(state, aimd, successes, overloads, now_ms)
        assert aimd.least <= height(state, aimd) <= aimd.most
        assert (height(state, aimd) <= before) if overloads else (height(state, aimd) >= before)


@given(st.integers(1, 500), st.integers(1, 500))
def test_batches_of_successes_come_to_the_same_as_one(a: int, b: int) -> None:
    two = steer(steer(AimdState(), Aimd(), a, 0, T0), Aimd(), b, 0, T0)
    assert two.limit == pytest.approx(steer(AimdState(), Aimd(), a + b, 0, T0).limit)


def test_a_limit_kept_under_another_rule_is_bound_by_this_one() -> None:
    assert height(AimdState(limit=500), Aimd(most=20)) == 20
    assert steer(AimdState(limit=500), Aimd(most=20), 1, 0, T0).limit == 20


@given(st.floats(1, 5000), st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=20))
def test_shares_add_up_to_the_limit_and_nobody_has_none(limit: float, workers: set[str]) -> None:
    shares = [share(limit, list(workers), worker) for worker in workers]
    assert sum(shares) == max(int(limit), len(workers))
    assert max(shares) - min(shares) <= 1 and min(shares) >= 1


def test_a_worker_not_listed_yet_counts_itself() -> None:
    assert share(10, [], "a") == 10
    assert share(10, ["b"], "a") == 5


# The rules as values


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Rate("fast"), ConfigError, "rate 'fast' is refused: expected a number per unit of time"),
        (lambda: Rate("0/s"), ConfigError, "rate '0/s'"),
        (lambda: Rate(100), TypeError, "rate 100 is refused: expected text such as '100/s'"),
        (lambda: Rate("1/s", burst=0), ConfigError, "rate burst 0"),
        (lambda: Rate("1/s", burst=1.5), TypeError, "rate burst 1.5"),
        (lambda: Rate("1/s", per="tenant"), ConfigError, "rate per 'tenant' is refused: expected 'group' or the path"),
        (lambda: Rate("1/s", per="args."), ConfigError, "rate per"),
        (lambda: Aimd(least=0), ConfigError, "aimd least 0 is refused"),
        (lambda: Aimd(start=5, least=6), ConfigError, "aimd start 5 is refused: expected least 6"),
        (lambda: Aimd(down=1), ConfigError, "aimd down 1"),
        (lambda: Aimd(up=0), ConfigError, "aimd up 0"),
        (lambda: Aimd(interval="soon"), ValueError, "aimd interval 'soon'"),
    ],
)
def test_a_bad_rule_is_refused_where_it_is_made(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_rules_are_values() -> None:
    assert Rate("60/m") == Rate("1/s") and hash(Rate("60/m")) == hash(Rate("1/s"))
    assert Rate("1/s", per="group") != Rate("1/s", per="args.shop.id") != Rate("1/s")
    assert Aimd() == Aimd(10, 1, 1000, 1, 0.5, "1s") and hash(Aimd()) == hash(Aimd())


@pytest.mark.parametrize("state", [CoolDown(T0, 5), AimdState(12.5, T0)])
def test_a_state_reads_what_a_later_version_wrote(state: Any) -> None:
    later = msgspec.json.encode([*msgspec.json.decode(msgspec.json.encode(state)), "more"])
    assert msgspec.json.decode(later, type=type(state)) == state
