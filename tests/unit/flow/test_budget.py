"""The retry budget, as sequences: what it grants when, and what bounds it. No clock: time is an argument."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import Budget
from redrive.errors import ConfigError
from redrive.flow.budget import BudgetState, ask, deposit, earn, left

T0 = 1_760_000_000_000  # a time as a store's clock gives it, whole seconds


def ask_all(state: BudgetState, budget: Budget, now_ms: int, n: int) -> tuple[BudgetState, list[int]]:
    """Ask n times at once; the times, relative to now."""
    times = []
    for _ in range(n):
        state, at_ms = ask(state, budget, now_ms)
        times.append(at_ms - now_ms)
    return state, times


# The floor


def test_a_thousand_denied_at_once_come_back_a_hundred_now_then_ten_a_second_in_order_of_asking() -> None:
    _, times = ask_all(BudgetState(), Budget(), T0, 1000)
    assert times == [0] * 100 + [100 * n for n in range(1, 901)]


def test_what_was_reserved_is_spent_when_its_time_comes() -> None:
    state, _ = ask_all(BudgetState(), Budget(), T0, 150)  # the last of them comes at 5 s
    state, times = ask_all(state, Budget(), T0 + 2000, 2)
    assert times == [3100, 3200]
    assert left(state, Budget(), T0 + 5000) == 0


@pytest.mark.parametrize(
    ("pause_ms", "now"), [(0, 0), (100, 1), (1000, 10), (5050, 50), (10_000, 100), (60_000, 100), (10**9, 100)]
)
def test_the_reserve_fills_at_the_floor_and_no_higher(pause_ms: int, now: int) -> None:
    state, _ = ask_all(BudgetState(), Budget(), T0, 100)
    assert math.floor(left(state, Budget(), T0 + pause_ms)) == now
    _, times = ask_all(state, Budget(), T0 + pause_ms, now + 1)
    assert times.count(0) == now and 0 < times[-1] <= 100


@pytest.mark.parametrize(
    ("floor", "times"),
    [
        (1, [0, 1000, 2000, 3000]),
        (3, [0, 0, 0, 334, 667, 1000, 1334]),  # thirds of a second, rounded up once and never added up
        (0.5, [0, 2000, 4000]),  # less than one token of reserve is one
    ],
)
def test_slots_are_exact(floor: float, times: list[int]) -> None:
    assert ask_all(BudgetState(), Budget(floor=floor, life="1s"), T0, len(times))[1] == times


# Deposits


def test_five_first_dispatches_are_one_retry() -> None:
    budget = Budget(floor=0, on_exhausted="dead_letter")
    state = BudgetState()
    granted = 0
    for _ in range(1000):
        state = deposit(state, budget, 1, T0)
        state, at_ms = ask(state, budget, T0)
        granted += at_ms <= T0
    assert granted == 200


def test_deposits_are_spent_before_the_floor_and_the_oldest_first() -> None:
    budget = Budget()
    state, _ = ask_all(BudgetState(), budget, T0, 100)
    state = deposit(state, budget, 5, T0)
    state = deposit(state, budget, 5, T0 + 5000)
    assert left(state, budget, T0 + 5000) == 52
    after, at_ms = ask(state, budget, T0 + 5000)
    assert at_ms == T0 + 5000 and after.tat_ms == state.tat_ms
    assert left(after, budget, T0 + 6000) == 61  # what is left is the second one, which lives on


def test_deposits_fill_up_the_reserve_and_no_more() -> None:
    budget = Budget()
    state = deposit(BudgetState(), budget, 10_000, T0)
    assert left(state, budget, T0) == 100
    state, times = ask_all(state, budget, T0, 60)
    assert times == [0] * 60
    state = deposit(state, budget, 10_000, T0)
    assert left(state, budget, T0) == 100
    assert left(state, budget, T0 + 3000) == 100  # the floor comes back in their place


def ended(succeeded: int, failed: int, firsts: int | None = None, now_ms: int = T0) -> BudgetState:
    """After so many first dispatches in one second, which ended so."""
    state = deposit(BudgetState(), Budget(), succeeded + failed if firsts is None else firsts, now_ms)
    return earn(state, Budget(), succeeded, failed, now_ms)


def granted(state: BudgetState, now_ms: int, wanted: int = 2_000) -> int:
    """How many of so many retries go at once."""
    count = 0
    for _ in range(wanted):
        state, at_ms = ask(state, Budget(), now_ms)
        count += at_ms <= now_ms
    return count


def test_what_first_attempts_earned_serves_their_tail_once_all_else_is_spent() -> None:
    assert granted(ended(4_000, 0), T0) == 100 + 800
    assert left(ended(4_000, 0), Budget(), T0) == 900
    assert granted(ended(4_000, 0), T0 + 8_999) == 100 + 800
    assert granted(ended(4_000, 0), T0 + 10_000) == 100  # their life is over


@pytest.mark.parametrize(("failed", "tail"), [(0, 800), (999, 800), (1_000, 0), (4_000, 0)])
def test_first_attempts_that_fail_earn_nothing_and_from_a_fifth_on_there_is_no_tail(failed: int, tail: int) -> None:
    assert granted(ended(4_000, failed), T0) == 100 + tail


def test_how_they_went_is_told_by_the_last_two_sub_windows_that_any_ended_in() -> None:
    state = ended(4_000, 0)
    for second in (1, 2):
        state = earn(state, Budget(), 0, 1, T0 + second * 1_000)
    assert granted(state, T0 + 2_000) == 100  # it has just begun to fail
    state = earn(state, Budget(), 100, 0, T0 + 3_000)
    assert granted(state, T0 + 8_000) == 100 + 820


def test_a_retry_that_a_deposit_paid_for_uses_its_credit_up() -> None:
    state = deposit(BudgetState(), Budget(floor=0, on_exhausted="dead_letter"), 50, T0)
    none = Budget(floor=0, on_exhausted="dead_letter")
    state = earn(state, none, 50, 0, T0)
    went = 0
    for _ in range(30):
        state, at_ms = ask(state, none, T0)
        went += at_ms <= T0
    assert went == 10


@given(st.data())
def test_with_credit_retries_of_any_window_are_bounded_by_its_first_dispatches_and_those_of_a_life_before(
    data: st.DataObject,
) -> None:
    budget, now, state = Budget(), T0, BudgetState()
    firsts, retries = list[int](), list[int]()
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.integers(0, 3_000))
        count = data.draw(st.integers(0, 300))
        state = deposit(state, budget, count, now)
        firsts += [now] * count
        state = earn(state, budget, data.draw(st.integers(0, count)), data.draw(st.integers(0, 5)), now)
        for _ in range(data.draw(st.integers(0, 200))):
            state, at_ms = ask(state, budget, now)
            retries.append(at_ms)
    retries.sort()
    for start in sorted({now, *firsts, *retries})[:30]:
        for length in (0, 1_000, 5_000, 20_000):
            end = start + length
            went = sum(start <= at <= end for at in retries)
            paid = sum(start - 10_000 <= at <= end for at in firsts)
            assert went <= 0.2 * paid + 10 * length / 1000 + 100 + 1


def test_one_token_may_be_made_of_deposits_of_several_parts() -> None:
    budget = Budget(floor=0, on_exhausted="dead_letter")
    state = BudgetState()
    for second in range(5):
        state = deposit(state, budget, 1, T0 + second * 1000)
    state, at_ms = ask(state, budget, T0 + 4000)
    assert at_ms == T0 + 4000 and left(state, budget, T0 + 4000) == 0


def test_a_denied_retry_keeps_its_time_though_deposits_follow() -> None:
    budget = Budget(floor=1, life="1s")
    state, times = ask_all(BudgetState(), budget, T0, 3)
    assert times == [0, 1000, 2000]
    state = deposit(state, budget, 5, T0)
    state, times = ask_all(state, budget, T0, 2)
    assert times == [0, 3000]


@given(
    st.integers(1, 100_000),
    st.integers(0, 10_000),
    st.sampled_from(["1s", "10s", "7s", "100ms", "1h"]),
    st.integers(0, 10**7),
)
def test_deposits_expire_after_their_life_and_not_before_nine_tenths_of_it(
    firsts: int, offset_ms: int, life: str, later_ms: int
) -> None:
    budget = Budget(ratio=1, life=life, floor=0, on_exhausted="dead_letter")
    life_ms = budget.life * 1000
    state = deposit(BudgetState(), budget, firsts, T0 + offset_ms)
    expected = {True: firsts, False: 0}
    if later_ms <= 0.9 * life_ms or later_ms >= life_ms:
        assert left(state, budget, T0 + offset_ms + later_ms) == expected[later_ms < life_ms]
    else:
        assert left(state, budget, T0 + offset_ms + later_ms) in (0, firsts)


def test_a_clock_that_is_set_back_makes_no_deposit_live_longer() -> None:
    budget = Budget(floor=0, on_exhausted="dead_letter")
    state = deposit(BudgetState(), budget, 50, T0)
    state = deposit(state, budget, 50, T0 - 8000)
    assert left(state, budget, T0 - 8000) == 20
    assert left(state, budget, T0 + 9999) == 20
    assert left(state, budget, T0 + 10_000) == 0


# The fixed form


def test_the_fixed_form_grants_so_many_in_a_window_and_spreads_the_next_window_s_evenly() -> None:
    budget = Budget.fixed(4, per="1m")
    start_ms = T0 - T0 % 60_000
    _, times = ask_all(BudgetState(), budget, start_ms + 20_000, 10)
    assert times == [0, 0, 0, 0, 40_000, 55_000, 70_000, 85_000, 100_000, 115_000]


def test_who_asks_in_a_window_that_is_reserved_in_part_comes_behind_those_that_wait() -> None:
    budget = Budget.fixed(4, per="1m")
    start_ms = T0 - T0 % 60_000
    state, _ = ask_all(BudgetState(), budget, start_ms, 6)  # two of the next window: at its begin and 15 s later
    assert left(state, budget, start_ms + 60_000) == 0
    assert ask_all(state, budget, start_ms + 60_000, 1)[1] == [30_000]
    assert left(state, budget, start_ms + 80_000) == 2
    assert ask_all(state, budget, start_ms + 80_000, 3)[1] == [0, 0, 40_000]


def test_the_fixed_form_takes_no_deposits() -> None:
    assert deposit(BudgetState(), Budget.fixed(1, per="1m"), 100, T0) == BudgetState()


# Dead-lettering


@pytest.mark.parametrize(
    "budget",
    [
        Budget(floor=1, life="3s", on_exhausted="dead_letter"),
        Budget.fixed(3, per="10s", on_exhausted="dead_letter"),
    ],
)
def test_with_dead_letter_a_denial_reserves_nothing(budget: Budget) -> None:
    state, times = ask_all(BudgetState(), budget, T0, 3)
    assert times == [0, 0, 0]
    denied, at_ms = ask(state, budget, T0)
    assert at_ms > T0 and denied == state
    later_ms = T0 + 20_000
    assert ask_all(state, budget, later_ms, 3)[1] == [0, 0, 0]


# What others publish

# Finagle, RetryBudget and RetryBudgetTest.scala ("apply minRetriesPerSec=0", "apply with minRetries and
# maxPercentOver"): with time frozen, each of 10,000 requests deposits and then asks; percentCanRetry of them are
# retried, and ttl * minRetriesPerSec more.
FINAGLE = [
    # ttl_s, minRetriesPerSec, percentCanRetry
    (60, 0, 0.1),
    (60, 0, 0.5),
    (60, 0, 0.25),
    (60, 0, 0.75),
    (60, 0, 0.99),
    (60, 0, 0.999),
    (60, 0, 0.9999),
    (60, 0, 0.01),
    (60, 0, 0.001),
    (60, 0, 0.0001),
    (1, 10, 0.0),
    (2, 5, 0.0),
    (1, 10, 0.1),
    (2, 5, 0.5),
    (10, 10, 0.2),  # its defaults, and ours
]


@pytest.mark.parametrize(("ttl_s", "floor", "ratio"), FINAGLE)
def test_finagle_grants_percent_can_retry_of_the_requests_and_the_reserve(ttl_s: int, floor: int, ratio: float) -> None:
    budget = Budget(ratio=ratio, life=ttl_s, floor=floor, on_exhausted="dead_letter")
    state = BudgetState()
    reserve = ttl_s * floor
    assert left(state, budget, T0) == reserve  # "check initial conditions"
    granted = 0
    for _ in range(10_000):
        state = deposit(state, budget, 1, T0)
        state, at_ms = ask(state, budget, T0)
        granted += at_ms <= T0
    assert granted == pytest.approx(int(10_000 * ratio) + reserve, abs=1)


def test_finagle_keeps_a_balance_of_more_tokens_than_requests_above_one_hundred_percent() -> None:
    # RetryBudgetTest.scala, "apply minRetries=0 maxPercentOver greater than 1.0"
    budget = Budget(ratio=2.0, life="60s", floor=0, on_exhausted="dead_letter")
    assert ask(BudgetState(), budget, T0)[1] > T0
    state = BudgetState()
    for _ in range(10_000):
        state = deposit(state, budget, 1, T0)
    assert left(state, budget, T0) == 20_000


def test_finagle_s_deposits_expire_after_about_the_ttl() -> None:
    # RetryBudget.apply: "Deposits created by deposit() expire after approximately ttl time has passed."
    budget = Budget(floor=0, on_exhausted="dead_letter")
    state = deposit(BudgetState(), budget, 100, T0)
    assert [left(state, budget, T0 + ms) for ms in (0, 9000, 9999, 10_000)] == [20, 20, 20, 0]


# What deliberately differs from Finagle:
# - Its deposits lie beside the reserve, so that what traffic left before an outage adds to it. Ours fill it up.
# - Its reserve is a constant, and what was withdrawn from it comes back when the withdrawal expires: a hundred at once
#   every ten seconds. Ours fills at the floor, so that a drained reserve gives an even ten a second.
# - It answers no, and the request fails. Ours reserves the next token, and the retry comes back at its time.
def test_a_drained_reserve_comes_back_evenly_not_at_once() -> None:
    state, _ = ask_all(BudgetState(), Budget(), T0, 100)
    granted = [ask_all(state, Budget(on_exhausted="dead_letter"), T0 + s * 1000, 200)[1].count(0) for s in (1, 5, 10)]
    assert granted == [10, 50, 100]


# gRPC A6 (client retries, "Throttling Retry Attempts and Hedged RPCs"): token_count begins at maxTokens; a failed RPC
# takes 1, a successful one gives tokenRatio; at maxTokens/2 or below nothing is retried. As far as it maps: half of
# maxTokens is a reserve that retries may use up, tokenRatio is the ratio that traffic pays in. What deliberately
# differs: ours counts retries dispatched and not failures, is shared by all workers and not per client, is paid by
# first dispatches whether they succeed or not, and gives a floor: a client of gRPC that only fails stops retrying for
# ever, a queue must go on.
def test_grpc_s_half_of_max_tokens_is_what_retries_may_take_before_they_are_throttled() -> None:
    max_tokens, token_ratio = 10, 0.1
    budget = Budget(ratio=token_ratio, life="5s", floor=max_tokens / 2 / 5, on_exhausted="dead_letter")
    state, times = ask_all(BudgetState(), budget, T0, 6)
    assert times.count(0) == 5 and times[5] > 0
    state = deposit(state, budget, 10, T0)  # ten RPCs give one token back
    assert ask_all(state, budget, T0, 2)[1].count(0) == 1


# Bounds

STEPS = st.lists(
    st.tuples(st.integers(0, 3000), st.sampled_from(["first", "retry"]), st.integers(1, 60)), min_size=1, max_size=60
)


@given(STEPS, st.sampled_from([0.0, 0.1, 0.2, 1.0, 2.5]), st.sampled_from([1, 3, 10, 0.4]), st.sampled_from([1, 2, 10]))
def test_retries_in_any_window_are_at_most_ratio_of_firsts_and_the_floor_and_the_reserve(
    steps: list[tuple[int, str, int]], ratio: float, floor: float, life_s: int
) -> None:
    budget = Budget(ratio=ratio, floor=floor, life=life_s)
    state, now_ms = BudgetState(), T0
    firsts: list[int] = []
    retries: list[int] = []
    for pause_ms, what, n in steps:
        now_ms += pause_ms
        if what == "first":
            state = deposit(state, budget, n, now_ms)
            firsts += [now_ms] * n
        for _ in range(n if what == "retry" else 0):
            state, at_ms = ask(state, budget, now_ms)
            retries.append(at_ms)
    retries.sort()
    for i, begin_ms in enumerate(retries):
        for j in range(i, len(retries), 7):
            span_ms = retries[j] - begin_ms + 1
            paid = sum(begin_ms <= at_ms <= retries[j] for at_ms in firsts)
            # One more, for the token that was in the making when the window began.
            assert j - i + 1 <= ratio * paid + floor * span_ms / 1000 + budget.reserve + 1


@given(STEPS, st.sampled_from([1, 3, 10, 0.4, 999]))
def test_no_two_reserve_one_slot_and_what_is_deferred_keeps_the_order_of_asking(
    steps: list[tuple[int, str, int]], floor: float
) -> None:
    budget = Budget(floor=floor, life="1s")
    state, now_ms = BudgetState(), T0
    reserved: list[int] = []
    for pause_ms, what, n in steps:
        now_ms += pause_ms
        if what == "first":
            state = deposit(state, budget, n, now_ms)
            continue
        for _ in range(n):
            state, at_ms = ask(state, budget, now_ms)
            assert at_ms >= now_ms
            reserved += [at_ms] if at_ms > now_ms else []
    assert reserved == sorted(set(reserved))


@given(STEPS, st.integers(1, 30), st.sampled_from([100, 1000, 7000, 60_000]))
def test_the_fixed_form_grants_at_most_its_number_in_every_aligned_window_in_order(
    steps: list[tuple[int, str, int]], most: int, per_ms: int
) -> None:
    budget = Budget.fixed(most, per=per_ms / 1000)
    state, now_ms = BudgetState(), T0 + 123
    granted: list[int] = []
    for pause_ms, _, n in steps:
        now_ms += pause_ms
        free = left(state, budget, now_ms)
        before = len(granted)
        for _ in range(n):
            state, at_ms = ask(state, budget, now_ms)
            assert at_ms >= now_ms
            granted.append(at_ms)
        assert sum(at_ms == now_ms for at_ms in granted[before:]) == min(n, free)
    assert granted == sorted(granted)
    for begin_ms in {at_ms - at_ms % per_ms for at_ms in granted}:
        assert bisect_left(granted, begin_ms + per_ms) - bisect_left(granted, begin_ms) <= most


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 20_000), st.sampled_from([0.2, 1.0]))
def test_left_says_how_many_go_at_once(firsts: int, spent: int, later_ms: int, ratio: float) -> None:
    budget = Budget(ratio=ratio)
    state = deposit(BudgetState(), budget, firsts, T0)
    state, _ = ask_all(state, budget, T0, spent)
    free = left(state, budget, T0 + later_ms)
    _, times = ask_all(state, budget, T0 + later_ms, 600)
    assert abs(times.count(0) - free) <= 2  # parts of tokens of deposits and of the floor do not add up to one


# The rule and the state as values


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Budget(ratio=-0.1), ConfigError, "budget ratio -0.1 is refused: expected a number from 0 to 1000"),
        (lambda: Budget(ratio="0.2"), TypeError, "budget ratio '0.2' is refused"),
        (lambda: Budget(ratio=float("nan")), ConfigError, "budget ratio nan"),
        (lambda: Budget(life="10"), ValueError, "budget life '10' is refused"),
        (lambda: Budget(life=0), ConfigError, "budget life"),
        (lambda: Budget(floor=-1), ConfigError, "budget floor -1"),
        (lambda: Budget(floor=0), ConfigError, "no time to come back at"),
        (lambda: Budget(on_exhausted="drop"), ConfigError, "on_exhausted 'drop' is unknown; known: defer, dead_letter"),
        (lambda: Budget.fixed(0, per="1m"), ConfigError, "budget retries 0 is refused"),
        (lambda: Budget.fixed(1.5, per="1m"), TypeError, "budget retries 1.5 is refused"),
        (lambda: Budget.fixed(True, per="1m"), TypeError, "budget retries True is refused"),
        (lambda: Budget.fixed(10, per="0s"), ConfigError, "budget per"),
    ],
)
def test_a_bad_rule_is_refused_where_it_is_made(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words.replace("(", r"\(")):
        make()


def test_rules_are_values() -> None:
    assert Budget() == Budget(0.2, "10s", 10, "defer") and hash(Budget()) == hash(Budget())
    assert Budget.fixed(100, per="1m") == Budget.fixed(100, per=60) != Budget()
    assert (Budget().reserve, Budget(floor=0.01).reserve, Budget.fixed(1, per=1).reserve) == (100, 1, 0)
    with pytest.raises(AttributeError):
        Budget().ratio = 1  # type: ignore[misc]


def test_a_state_is_small_and_reads_what_a_later_version_wrote() -> None:
    state, _ = ask_all(deposit(BudgetState(), Budget(), 7, T0), Budget(), T0, 120)
    raw = msgspec.json.encode(state)
    assert len(raw) < 120 and msgspec.json.decode(raw, type=BudgetState) == state
    later = msgspec.json.encode([*msgspec.json.decode(raw), "more"])
    assert msgspec.json.decode(later, type=BudgetState) == state
    assert msgspec.json.decode(b"[]", type=BudgetState) == BudgetState()


@pytest.mark.parametrize("new", [Budget(life="1h"), Budget(life="1s"), Budget.fixed(5, per="1h"), Budget(floor=1)])
def test_a_state_kept_under_another_rule_holds_nothing_for_ever(new: Budget) -> None:
    for old in (Budget(), Budget.fixed(5, per="1s"), Budget.fixed(5, per="1d")):
        state, _ = ask_all(deposit(BudgetState(), old, 500, T0), old, T0, 3)
        _, times = ask_all(state, new, T0 + 1000, 1)
        assert 0 <= times[0] <= 86_400_000
