"""The circuit breaker: its rules as tables, what others document as sequences, and what always holds by properties."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive import Breaker
from redrive.flow import ramp as ramps
from redrive.flow import window as windows
from redrive.flow.breaker import (
    Call,
    CallCounts,
    CallPermit,
    State,
    ask,
    closed_until_ms,
    force,
    give_back,
    look,
    record,
    record_many,
    valid,
)
from redrive.flow.window import CallWindow

NOW = 1_700_000_000_000
FIVE = Breaker(min_calls=5, open_for="1s", max_open="4s", probes=2, probe_lease="3s")


def fail(breaker: Breaker, now_ms: int = NOW, state: State | None = None) -> State:
    """As many failures as open it."""
    return record_many(state or State(), breaker, CallCounts(failure=breaker.min_calls), now_ms)


def half_open(breaker: Breaker, now_ms: int = NOW) -> State:
    state = fail(breaker, now_ms)
    return look(state, breaker, state.until_ms)


def closed_again(breaker: Breaker, now_ms: int = NOW) -> State:
    """Closed by its probes: with a ramp."""
    state = half_open(breaker, now_ms)
    at_ms = state.since_ms
    for _ in range(breaker.probes):
        state = record(state, breaker, "success", at_ms)
    assert state.status == "closed"
    return state


# Sequences that others document. Each step: when (s), what (a call's word, "ask", or a word for `force`), and the
# status after it or, for an ask, whether it may go. Openings last up to a fifth longer than they are set to.

Step = tuple[float, str, "str | bool"]

RESILIENCE4J = "https://resilience4j.readme.io/docs/circuitbreaker"
POLLY = "https://www.pollydocs.org/strategies/circuit-breaker"
POLLY_SIMPLE = Breaker(window="2s", min_calls=2, probes=1)
POLLY_COMPLEX = Breaker(window="2s", min_calls=2, open_for="1s", probes=1)
TEN = Breaker(min_calls=10)

SAME: list[tuple[str, str, Breaker, list[Step]]] = [
    (
        RESILIENCE4J,
        "9 calls of a minimum of 10 do not open it, even if all failed; the 10th does",
        TEN,
        [*((i / 10, "failure", "closed") for i in range(9)), (1, "failure", "open"), (1, "ask", False)],
    ),
    (
        RESILIENCE4J,
        "a failure rate equal to the threshold opens it",
        Breaker(min_calls=4),
        [(0, "success", "closed"), (0, "success", "closed"), (1, "failure", "closed"), (1, "failure", "open")],
    ),
    (
        RESILIENCE4J,
        "a time-based window holds the calls of its last seconds only",
        Breaker(min_calls=4, window="10s"),
        [(0, "failure", "closed"), (1, "failure", "closed"), (11, "failure", "closed"), (12, "failure", "closed")],
    ),
    (
        RESILIENCE4J,
        "ignored exceptions count neither as success nor as failure",
        Breaker(min_calls=3),
        [(0, "failure", "closed"), *((0, "ignored", "closed"),) * 9, (1, "failure", "closed"), (2, "failure", "open")],
    ),
    (
        RESILIENCE4J,
        "a rate of slow calls opens it though none failed",
        Breaker(min_calls=4, slow_call="2s", slow_rate=0.5),
        [(0, "success", "closed"), (0, "slow", "closed"), (1, "success", "closed"), (1, "slow", "open")],
    ),
    (
        RESILIENCE4J,
        "it allows only the permitted calls while half-open, and closes when they succeed",
        Breaker(min_calls=2, open_for="1s", probes=2),
        [
            (0, "failure", "closed"),
            (0, "failure", "open"),
            (0.5, "ask", False),
            (1.3, "ask", True),
            (1.3, "ask", True),
            (1.3, "ask", False),
            (1.4, "probe success", "half_open"),
            (1.4, "ask", False),
            (1.5, "probe success", "closed"),
        ],
    ),
    (
        RESILIENCE4J,
        "half-open: the failure rate of the permitted calls decides, so that 1 failure of 3 at 50 % closes it",
        Breaker(min_calls=2, open_for="1s", probes=3),
        [
            (0, "failure", "closed"),
            (0, "failure", "open"),
            (1.3, "failure", "half_open"),
            (1.3, "success", "half_open"),
            (1.3, "success", "closed"),
        ],
    ),
    (
        RESILIENCE4J,
        "maxWaitDurationInHalfOpenState: calls that do not end in time open it again",
        Breaker(min_calls=2, open_for="1s", probes=2, probe_lease="3s"),
        [
            (0, "failure", "closed"),
            (0, "failure", "open"),
            (1.3, "ask", True),
            (4.2, "look", "half_open"),
            (4.4, "look", "open"),
            (6.3, "look", "half_open"),
            (6.3, "ask", True),
        ],
    ),
    (
        RESILIENCE4J,
        "FORCED_OPEN permits nothing and DISABLED everything, whatever is recorded, until told otherwise",
        Breaker(min_calls=2),
        [
            (0, "open", "forced_open"),
            (3600, "ask", False),
            (3600, "success", "forced_open"),
            (3601, "closed", "forced_closed"),
            *(((3601, "failure", "forced_closed"),) * 30),
            (3602, "auto", "closed"),
        ],
    ),
    (
        POLLY,
        "simple, happy: one failure in three stays below the ratio",
        POLLY_SIMPLE,
        [(0, "success", "closed"), (0.5, "success", "closed"), (1, "failure", "closed"), (1, "ask", True)],
    ),
    (
        POLLY,
        "simple, unhappy: one failure in two meets the ratio, and the next call is rejected",
        POLLY_SIMPLE,
        [(0, "success", "closed"), (0.5, "failure", "open"), (1, "ask", False)],
    ),
    (
        POLLY,
        "complex, happy: the probe after the break succeeds and closes it",
        POLLY_COMPLEX,
        [
            (0, "failure", "closed"),
            (0.1, "failure", "open"),
            (0.2, "ask", False),
            (1.4, "ask", True),
            (1.5, "probe success", "closed"),
        ],
    ),
    (
        POLLY,
        "complex, unhappy: the probe fails and breaks it again",
        POLLY_COMPLEX,
        [
            (0, "failure", "closed"),
            (0.1, "failure", "open"),
            (0.2, "ask", False),
            (1.4, "ask", True),
            (1.5, "probe failure", "open"),
            (1.6, "ask", False),
        ],
    ),
    (
        POLLY,
        "below the minimum throughput of a sampling duration it does not break",
        Breaker(failure_rate=0.1, min_calls=100, window="30s"),
        [*((i / 10, "failure", "closed") for i in range(99)), (31, "failure", "closed")],
    ),
    (
        POLLY,
        "isolated by hand it blocks until it is closed by hand",
        POLLY_COMPLEX,
        [
            (0, "open", "forced_open"),
            (0, "ask", False),
            (9999, "ask", False),
            (9999, "closed", "forced_closed"),
            (9999, "ask", True),
            (9999, "auto", "closed"),
            (10010, "ask", True),
        ],
    ),
]

# Where ours differs, on purpose: what they document, why ours does not, and what ours does.
DIFFERENT: list[tuple[str, str, str, Breaker, list[Step]]] = [
    (
        RESILIENCE4J,
        "a count-based window of 10 opens on the 5th failure of the last 10 calls, however old they are",
        "ours has time-based windows only: what failed an hour ago says nothing of now",
        TEN,
        [*((i * 3600, "failure", "closed") for i in range(10))],
    ),
    (
        RESILIENCE4J,
        "half-open: the failure rate is worked out once all permitted calls have ended",
        "ours opens as soon as no probe that is left can change that: the 2nd failure of 3 at 50 %",
        Breaker(min_calls=2, open_for="1s", probes=3),
        [
            (0, "failure", "closed"),
            (0, "failure", "open"),
            (1.3, "failure", "half_open"),
            (1.3, "failure", "open"),
        ],
    ),
    (
        RESILIENCE4J,
        "maxWaitDurationInHalfOpenState is 0 by default: it waits for ever",
        "ours always has a probe_lease: a worker that is killed never leaves it half-open",
        Breaker(min_calls=2, open_for="1s", probes=1),
        [(0, "failure", "closed"), (0, "failure", "open"), (1.3, "ask", True), (31.4, "look", "open")],
    ),
    (
        RESILIENCE4J,
        "a slow call rate of 100 % by default",
        "ours is failure_rate where slow_call is set: who sets it means it",
        Breaker(min_calls=2, slow_call="1s"),
        [(0, "success", "closed"), (0, "slow", "open")],
    ),
    (
        POLLY,
        "closing lets everything through at once",
        "ours lets it go in a ramp: a queue holds what a caller of Polly would have dropped",
        POLLY_COMPLEX,
        [
            (0, "failure", "closed"),
            (0, "failure", "open"),
            (1.3, "ask", True),
            (1.3, "probe success", "closed"),
            (1.3, "ask", True),
            (1.3, "ask", False),
        ],
    ),
    (
        POLLY,
        "the break lasts BreakDuration each time, unless a BreakDurationGenerator says otherwise",
        "ours grows by half each time in a row, up to max_open, ± 20 %: no function travels between processes",
        Breaker(min_calls=2, open_for="10s", probes=1),
        [
            (0, "failure", "closed"),
            (0, "failure", "open"),
            (12.1, "failure", "open"),
            (24.0, "look", "open"),
            (30.2, "look", "half_open"),
        ],
    ),
    (
        POLLY,
        "CloseAsync closes it, and it judges again",
        "ours holds it closed until `auto`: who closes by hand knows better for a while",
        POLLY_SIMPLE,
        [
            (0, "closed", "forced_closed"),
            (0, "failure", "forced_closed"),
            (0, "failure", "forced_closed"),
            (0, "auto", "closed"),
            (0, "failure", "closed"),
            (0, "failure", "open"),
        ],
    ),
]


def play(breaker: Breaker, steps: list[Step]) -> None:
    state, owners = State(), 0
    for at_s, what, expected in steps:
        now_ms = NOW + round(at_s * 1000)
        if what == "ask":
            owners += 1
            state, answer = ask(state, breaker, now_ms, f"o{owners}")
            assert (answer.at_ms <= now_ms) is expected, (at_s, answer)
            continue
        if what == "look":
            state = look(state, breaker, now_ms)
        elif what in ("open", "closed", "auto"):
            state = force(state, breaker, what, now_ms)  # type: ignore[arg-type]
        elif what.startswith("probe "):
            state = record(state, breaker, what[6:], now_ms, probe=state.probes[0].owner)
        else:
            state = record(state, breaker, what, now_ms)
        assert state.status == expected, (at_s, what)


@pytest.mark.parametrize(("breaker", "steps"), [row[2:] for row in SAME], ids=[f"{row[0]} {row[1]}" for row in SAME])
def test_sequences_that_others_document(breaker: Breaker, steps: list[Step]) -> None:
    play(breaker, steps)


@pytest.mark.parametrize(
    ("breaker", "steps"), [row[3:] for row in DIFFERENT], ids=[f"{row[0]} {row[1]}; {row[2]}" for row in DIFFERENT]
)
def test_sequences_where_ours_differs_on_purpose(breaker: Breaker, steps: list[Step]) -> None:
    play(breaker, steps)


# Closed


def test_a_quiet_breaker_lets_everything_go_and_its_state_is_not_touched() -> None:
    state, answer = ask(State(), FIVE, NOW, "a")
    assert answer == CallPermit(NOW) and state is not None
    assert ask(state, FIVE, NOW, "a")[0] is state
    assert look(state, FIVE, NOW) is state
    assert closed_until_ms(state, FIVE, NOW) == 0


def test_ten_buckets_share_the_window() -> None:
    state = State()
    for i in range(4):
        state = record(state, FIVE, "failure", NOW + i * 2_400)
    assert record(state, FIVE, "failure", NOW + 9_999).status == "open"
    assert record(state, FIVE, "failure", NOW + 10_000).status == "closed"


def test_throttled_and_ignored_calls_are_no_failures() -> None:
    state = record_many(State(), FIVE, CallCounts(success=1, throttled=500, ignored=500), NOW)
    assert state.status == "closed"
    assert windows.rates(state.window) == (1, 0.0, 0.0)


def test_a_slow_failure_counts_in_both_rates() -> None:
    state = record_many(State(), Breaker(slow_call="1s"), CallCounts(success=2, slow=1, slow_failure=1), NOW)
    assert windows.rates(state.window) == (4, 0.25, 0.5)


def test_without_slow_call_no_slowness_opens_it() -> None:
    assert record_many(State(), FIVE, CallCounts(slow=100), NOW).status == "closed"


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ValueError, match="fine"):
        record(State(), FIVE, "fine", NOW)
    with pytest.raises(ValueError, match="expected open, closed or auto"):
        force(State(), FIVE, "shut", NOW)  # type: ignore[arg-type]


# Open


@pytest.mark.parametrize("k, term_s", [(0, 5), (1, 7.5), (2, 11.25), (7, 85.4), (8, 120), (9, 120), (10**6, 120)])
def test_openings_grow_by_half_to_the_cap_and_spread_by_a_fifth(k: int, term_s: float) -> None:
    spread = [Breaker().open_ms(k, u) for u in (0.0, 0.5, 0.999999)]
    assert spread == pytest.approx([term_s * 800, term_s * 1000, term_s * 1200], rel=0.001)


def test_two_openings_do_not_last_equally_long() -> None:
    lengths = {fail(Breaker(), NOW + i).until_ms - NOW - i for i in range(100)}
    assert len(lengths) > 90 and 4_000 <= min(lengths) < 4_200 and 5_800 < max(lengths) <= 6_000


def test_openings_in_a_row_are_counted_until_it_was_closed_for_a_window() -> None:
    state = fail(FIVE)
    for k in range(2, 6):
        state = record(state, FIVE, "failure", state.until_ms)
        assert (state.status, state.opened) == ("open", k)
    state = record(record(state, FIVE, "success", state.until_ms), FIVE, "success", state.until_ms)
    assert fail(FIVE, state.since_ms + 9_999, state).opened == 6
    assert fail(FIVE, state.since_ms + 10_000, state).opened == 1


def test_who_asks_while_it_is_open_gets_a_place_in_the_ramp_to_come() -> None:
    state, at = fail(FIVE), []
    for i in range(4):
        state, answer = ask(state, FIVE, NOW + 100, f"o{i}")
        assert (answer.why, answer.pass_, answer.probe) == ("breaker", "", False)
        at.append(answer.at_ms - state.until_ms)
    assert at == [0, 492, 967, 1428]  # t(k) of a ramp from 2/s


def test_what_ends_while_it_is_open_changes_nothing() -> None:
    state = fail(FIVE)
    assert record_many(state, FIVE, CallCounts(success=100, failure=100, probes={"o": "success"}), NOW + 10) is state


def test_claims_leave_it_out_until_it_may_be_tried() -> None:
    state = fail(FIVE)
    assert closed_until_ms(state, FIVE, NOW + 1) == state.until_ms
    assert closed_until_ms(state, FIVE, state.until_ms) == 0


# Half-open


def test_probes_are_leases_and_asking_again_with_one_changes_nothing() -> None:
    state = half_open(FIVE)
    now_ms = state.since_ms
    state, first = ask(state, FIVE, now_ms, "a")
    again, second = ask(state, FIVE, now_ms + 1, "a")
    assert first == CallPermit(now_ms, probe=True) and second == CallPermit(now_ms + 1, probe=True) and again is state
    state, _ = ask(state, FIVE, now_ms, "b")
    assert closed_until_ms(state, FIVE, now_ms) == now_ms + 1000
    state, refused = ask(state, FIVE, now_ms, "c")
    assert refused.why == "breaker" and refused.at_ms >= now_ms + 1000 and not refused.probe


@pytest.mark.parametrize(
    ("rate", "words", "status"),
    [
        (0.5, "ss", "half_open"),
        (0.5, "sss", "closed"),
        (0.5, "fss", "closed"),
        (0.5, "sfs", "closed"),
        (0.5, "sf", "half_open"),
        (0.5, "ff", "open"),
        (0.5, "sff", "open"),
        (0.3, "f", "open"),
        (1.0, "ffs", "closed"),
        (1.0, "fff", "open"),
    ],
)
def test_probes_are_judged_by_their_share_of_failures(rate: float, words: str, status: str) -> None:
    breaker = Breaker(failure_rate=rate, min_calls=1, open_for="1s", probes=3)
    state = half_open(breaker)
    for word in words:
        state = record(state, breaker, {"s": "success", "f": "failure"}[word], state.since_ms)
    assert state.status == status


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (["f", None, None], "half_open"),  # the others are under way
        (["f", "s", "s"], "closed"),
        (["f", None, "f"], "open"),
        (["f"], "open"),  # a lone probe that fails: none is left that could say otherwise
        (["s", "f"], "open"),
        (["s", "f", None], "half_open"),
        (["s", "s", "f"], "closed"),
    ],
)
def test_probes_under_way_are_waited_for_and_those_that_ended_decide_alone(ends: list[str | None], status: str) -> None:
    breaker = Breaker(min_calls=1, open_for="1s", probes=3)
    state = half_open(breaker)
    for owner in range(len(ends)):
        state, _ = ask(state, breaker, state.since_ms, f"o{owner}")
    for owner, end in enumerate(ends):
        if end is not None:
            state = record(state, breaker, {"s": "success", "f": "failure"}[end], state.since_ms, probe=f"o{owner}")
    assert state.status == status


def test_probes_whose_leases_run_out_count_as_failures_of_the_share() -> None:
    breaker = Breaker(min_calls=1, open_for="1s", probes=3, probe_lease="3s")
    state = half_open(breaker)
    began_ms = state.since_ms
    for at, owner in enumerate("abc"):
        state, _ = ask(state, breaker, began_ms + at, owner)
    one = look(state, breaker, began_ms + 3_000)
    assert (one.status, one.failed, len(one.probes)) == ("half_open", 1, 2)
    two = look(state, breaker, began_ms + 3_500)
    assert (two.status, two.since_ms) == ("open", began_ms + 3_001)


def test_a_probe_given_back_is_another_ones() -> None:
    state = half_open(FIVE)
    now_ms = state.since_ms
    for owner in "ab":
        state, _ = ask(state, FIVE, now_ms, owner)
    assert give_back(state, "x") is state
    state, answer = ask(give_back(state, "a"), FIVE, now_ms, "c")
    assert answer.probe and [lease.owner for lease in state.probes] == ["b", "c"]


@pytest.mark.parametrize("outcome", ["success", "slow", "ignored", "throttled"])
def test_a_probe_that_gets_an_answer_has_succeeded(outcome: str) -> None:
    state = half_open(FIVE)
    state, _ = ask(state, FIVE, state.since_ms, "a")
    state = record(state, FIVE, outcome, state.since_ms, probe="a")
    assert (state.passed, state.probes) == (1, ())


def test_slow_probes_open_it_again_at_the_slow_rate() -> None:
    breaker = Breaker(probes=4, slow_call="1s", slow_rate=0.5)
    for words, status in [("slow success slow success", "open"), ("slow success success success", "closed")]:
        state = half_open(breaker)
        for word in words.split():
            state = record(state, breaker, word, state.since_ms)
        assert state.status == status


def test_calls_that_began_before_it_opened_do_not_end_its_half_open_time() -> None:
    state = half_open(FIVE)
    state, _ = ask(state, FIVE, state.since_ms, "a")
    late = CallCounts(success=50, failure=50, probes={"of an earlier time": "failure"})
    assert record_many(state, FIVE, late, state.since_ms) is state


def test_probes_end_in_batches() -> None:
    state = half_open(FIVE)
    for owner in "ab":
        state, _ = ask(state, FIVE, state.since_ms, owner)
    both = CallCounts(probes={"a": "success", "b": "success"})
    assert record_many(state, FIVE, both, state.since_ms).status == "closed"
    mixed = CallCounts(probes={"a": "success", "b": "failure"})
    assert record_many(state, FIVE, mixed, state.since_ms).status == "open"


def test_a_lease_that_ran_out_unseen_opened_it_then_and_not_now() -> None:
    state = half_open(FIVE)
    at_ms = state.since_ms
    state, _ = ask(state, FIVE, at_ms, "killed")
    state = look(state, FIVE, at_ms + 3_600_000)
    assert state.status == "half_open" and state.opened == 2
    assert at_ms + 3_000 + 1_200 <= state.since_ms <= at_ms + 3_000 + 1_800


# By hand


def test_after_held_open_it_finds_out_by_probes() -> None:
    state = force(force(State(), FIVE, "open", NOW), FIVE, "auto", NOW + 1)
    assert state.status == "half_open" and ask(state, FIVE, NOW + 1, "a")[1].probe


def test_closing_by_hand_lets_what_waited_go_in_a_ramp() -> None:
    assert force(fail(FIVE), FIVE, "closed", NOW + 1).ramp == ramps.start(2, NOW + 1)
    assert force(State(), FIVE, "closed", NOW).ramp is None


@pytest.mark.parametrize("word, status", [("open", "forced_open"), ("closed", "forced_closed"), ("auto", "closed")])
def test_saying_it_twice_changes_nothing(word: Any, status: str) -> None:
    state = force(State(), FIVE, word, NOW)
    assert state.status == status and force(state, FIVE, word, NOW + 5) is state


def test_held_open_is_looked_at_again_soon() -> None:
    state = force(State(), FIVE, "open", NOW)
    assert closed_until_ms(state, FIVE, NOW) == NOW + 1000
    assert ask(state, FIVE, NOW, "a")[1].at_ms == NOW + 1000


# The ramp


def test_a_closed_breaker_lets_go_in_exact_slots_that_are_reserved() -> None:
    state = closed_again(FIVE)
    at_ms, found = state.since_ms, []
    for i in range(4):
        state, answer = ask(state, FIVE, at_ms, f"o{i}")
        found.append((answer.at_ms - at_ms, answer.why, answer.pass_))
    name = f"ramp {state.turn}"
    assert found == [(0, "", ""), (492, "ramp", name), (967, "ramp", name), (1428, "ramp", name)]
    assert valid(state, name)


def test_a_ramp_leaves_nothing_unclaimed_however_far_ahead_its_slots_lie() -> None:
    state = closed_again(FIVE)
    for i in range(100):
        state, _ = ask(state, FIVE, state.since_ms, f"o{i}")
    assert closed_until_ms(state, FIVE, state.since_ms) == 0


def test_its_rate_doubles_every_ten_seconds() -> None:
    ramp = replace(ramps.start(3, NOW), gone=1000)
    assert [ramps.rate(ramp, NOW + ms) for ms in (0, 10_000, 30_000)] == [3, 6, 24]
    assert [round(ramps.slots(3, ms)) for ms in (0, 10_000, 20_000, 60_000)] == [0, 43, 130, 2727]


def test_its_rate_grows_no_further_than_it_is_used() -> None:
    ramp = ramps.start(3, NOW)
    assert ramps.rate(ramp, NOW + 60_000) == 3
    for ms in (10_000, 20_000, 60_000):  # where every slot is used, that is no bound
        used = replace(ramp, gone=math.ceil(ramps.slots(3, ms)))
        assert ramps.rate(used, NOW + ms) == pytest.approx(3 * 2 ** (ms / 10_000))


@pytest.mark.parametrize("gap_ms", [0, 10, 1000])
def test_those_who_come_late_and_together_go_at_the_ramp_s_rate_and_no_faster(gap_ms: int) -> None:
    ramp = replace(ramps.start(20, NOW), gone=0)
    ramp, _ = ramps.take(ramp, NOW)
    gone: list[int] = []
    waiting = [NOW + 30_000 + i * gap_ms // 100 for i in range(100)]  # all of them long after their slots
    asked = 0
    while waiting:
        at_ms = waiting.pop(waiting.index(min(waiting)))
        ramp, next_ms = ramps.enter(ramp, at_ms)
        asked += 1
        if next_ms <= at_ms:
            gone.append(at_ms)
        else:
            waiting.append(next_ms)
    assert asked <= 2.2 * 100  # who is denied comes again once
    per_s = [sum(begin <= at_ms < begin + 1000 for at_ms in gone) for begin in gone]
    most = [1 + ramps.EARLY_MS / 1000 * 30 + 1.05 * (20 + i * math.log(2) / 10 + 2) for i in range(100)]
    assert all(count <= bound for count, bound in zip(per_s, most, strict=True))
    assert gone[-1] - gone[0] >= 3000  # 100 of them from 20 a second on, growing by use


def test_thousands_that_come_at_once_stand_in_line_as_the_ramp_grows() -> None:
    ramp, last_ms = ramps.start(20, NOW), NOW
    for _ in range(2400):
        ramp, last_ms = ramps.enter(ramp, NOW)
    assert last_ms - NOW == pytest.approx(ramps.slot_ms(20, 2400), rel=0.1)  # 33 s; at its first rate 120


def test_slots_that_nobody_took_are_lost_after_a_tenth_of_a_second() -> None:
    state = closed_again(FIVE)
    later_ms = state.since_ms + 9_900  # 4 a second by then: no more than a half slot is kept
    state, first = ask(state, FIVE, later_ms, "a")
    state, second = ask(state, FIVE, later_ms, "b")
    assert first.at_ms == later_ms and 100 <= second.at_ms - later_ms <= 260


def after_a_second(breaker: Breaker, calls: CallCounts) -> tuple[State, State]:
    """Closed again, and one second later, in which these calls ended."""
    before = closed_again(breaker)
    at_ms = before.since_ms // 1000 * 1000 + 1000
    during = record_many(before, breaker, calls, at_ms + 10)
    return before, look(during, breaker, at_ms + 1000)


@pytest.mark.parametrize(
    ("calls", "falls"),
    [
        (CallCounts(success=95, failure=5), False),  # not above a tenth of the rate that opens it
        (CallCounts(success=94, failure=6), True),
        (CallCounts(success=1, failure=1), False),  # one alone says nothing
        (CallCounts(failure=2), True),
        (CallCounts(success=94, throttled=6), True),
        (CallCounts(success=94, ignored=6), False),
        (CallCounts(success=90, slow=10), False),
    ],
)
def test_a_second_with_failures_halves_the_rate_and_voids_what_was_reserved(calls: CallCounts, falls: bool) -> None:
    breaker = Breaker(min_calls=1000)
    before, after = after_a_second(breaker, calls)
    assert before.ramp is not None and after.ramp is not None
    assert after.turn == before.turn + falls and (after.ramp.start_ms > before.ramp.start_ms) is falls
    if falls:
        assert after.ramp.rate == pytest.approx(max(1, ramps.rate(before.ramp, after.ramp.start_ms) / 2))
        assert not valid(after, f"ramp {before.turn}") and valid(after, f"ramp {after.turn}")


def test_a_ramp_falls_back_as_soon_as_nothing_can_save_the_second() -> None:
    ramp = replace(ramps.start(100, NOW), second=NOW // 1000)
    assert ramps.look(ramps.record(ramp, 10, 5, NOW), 0.05, NOW) is not None
    assert ramps.look(told := ramps.record(ramp, 10, 5, NOW), 0.05, NOW) is told  # 5 of 100 are not too many
    fallen = ramps.look(ramps.record(ramp, 10, 6, NOW), 0.05, NOW)
    assert fallen is not None and fallen.rate == 50


def test_after_falling_back_the_results_of_the_earlier_rate_do_not_count() -> None:
    breaker = Breaker(min_calls=1000)
    _, state = after_a_second(breaker, CallCounts(failure=2))
    assert state.ramp is not None
    at_ms = state.ramp.start_ms
    turn = state.turn
    state = record_many(state, breaker, CallCounts(failure=50), at_ms // 1000 * 1000 + 999)
    assert state.turn == turn
    state = record_many(state, breaker, CallCounts(failure=50), at_ms + 1_500)
    assert look(state, breaker, at_ms + 2_500).turn == turn + 1


def test_it_never_falls_below_one_a_second() -> None:
    assert ramps.start(0.1, NOW).rate == 1


def test_it_is_over_when_nobody_had_to_wait_for_ten_seconds() -> None:
    state = closed_again(FIVE)
    at_ms = state.since_ms
    assert look(state, FIVE, at_ms + 9_999) is state
    assert look(state, FIVE, at_ms + 10_000).ramp is None
    for i in range(2):
        state, answer = ask(state, FIVE, at_ms + 5_000, f"o{i}")
    assert look(state, FIVE, answer.at_ms + 9_999) is state
    over = look(state, FIVE, answer.at_ms + 10_000)
    assert over.ramp is None and ask(over, FIVE, answer.at_ms + 10_000, "z")[1].why == ""


def test_it_is_over_once_its_rate_holds_nobody_back() -> None:
    ramp = replace(ramps.start(3, NOW), last_ms=NOW + 10**6, gone=10**6)
    assert ramps.look(ramp, 0.05, NOW + 117_000) is ramp
    assert ramps.look(ramp, 0.05, NOW + 117_100) is None


def test_it_goes_on_below_a_breaker_that_is_held_closed() -> None:
    state = force(fail(FIVE), FIVE, "closed", NOW + 1)
    state, _ = ask(state, FIVE, NOW + 1, "a")
    assert ask(state, FIVE, NOW + 1, "b")[1].why == "ramp"


# As values


def test_a_state_travels_as_a_small_cell_and_bears_fields_of_a_newer_version() -> None:
    for state in (State(), fail(FIVE), closed_again(FIVE), ask(half_open(FIVE), FIVE, NOW + 5_000, "a" * 40)[0]):
        packed = msgspec.json.encode(state)
        assert len(packed) < 400
        assert msgspec.json.decode(packed, type=State) == state
    assert msgspec.json.decode(msgspec.json.encode([*msgspec.to_builtins(fail(FIVE)), 7]), type=State) == fail(FIVE)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"failure_rate": 0}, ValueError),
        ({"failure_rate": 1.1}, ValueError),
        ({"failure_rate": "0.5"}, TypeError),
        ({"failure_rate": True}, TypeError),
        ({"window": "0s"}, ValueError),
        ({"window": -1}, ValueError),
        ({"min_calls": 0}, ValueError),
        ({"min_calls": 2.5}, TypeError),
        ({"probes": 0}, ValueError),
        ({"window": "25h"}, ValueError),
        ({"probe_lease": 0}, ValueError),
        ({"open_for": 0}, ValueError),
        ({"open_for": "3m"}, ValueError),
        ({"max_open": "1s"}, ValueError),
        ({"slow_rate": 0.5}, ValueError),
        ({"slow_call": 0}, ValueError),
        ({"slow_call": "1s", "slow_rate": 0}, ValueError),
    ],
)
def test_what_makes_no_breaker_is_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"is refused.*expected"):
        Breaker(**settings)


def test_breakers_are_values() -> None:
    assert Breaker(open_for="5s") == Breaker() and hash(Breaker(open_for=5)) == hash(Breaker())
    assert Breaker(window="1m") != Breaker()


# What always holds


@given(st.lists(st.tuples(st.integers(-500, 4_000), st.tuples(*[st.integers(0, 3)] * 3)), max_size=40))
def test_window_arithmetic_equals_a_brute_force_model(events: list[tuple[int, tuple[int, int, int]]]) -> None:
    window, now_ms, newest = CallWindow(), NOW, 0
    kept: list[tuple[int, tuple[int, int, int]]] = []
    for step_ms, counts in events:
        now_ms += step_ms
        newest = max(newest, now_ms // 1000)  # a clock that went back counts in the newest bucket
        kept.append((newest, counts))
        window = windows.add(window, 10_000, *counts, now_ms)
        calls, failed, slow = (sum(c[i] for at, c in kept if at > newest - 10) for i in range(3))
        assert windows.rates(window) == (calls, failed / max(1, calls), slow / max(1, calls))


@given(
    st.floats(1, 100),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 30)), min_size=1, max_size=30),
)
def test_slots_never_exceed_the_integral_of_the_rate(rate: float, asks: list[tuple[int, int]]) -> None:
    ramp, now_ms = ramps.start(rate, NOW), NOW
    began: list[int] = []
    for step_ms, many in asks:
        now_ms += step_ms
        for _ in range(many):
            ramp, at_ms = ramps.take(ramp, now_ms)
            began.append(max(at_ms, now_ms))
    assert began == sorted(began)
    for i in range(0, len(began), 7):  # between any two of them
        for j in range(i, len(began), 5):
            since, until = began[i] - NOW, began[j] - NOW
            most = ramps.slots(rate, until) - ramps.slots(rate, since - ramps.UNUSED_MS - 1) + 1
            assert j - i + 1 <= most + 1e-6


@given(
    st.floats(1, 100),
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=40),
)
def test_slots_that_are_taken_before_claims_never_exceed_it_either(
    rate: float, takes: list[tuple[int, int, int]]
) -> None:
    """Each: after so long, up to so many are taken of what is open, and so many given back unused."""
    ramp, now_ms = ramps.start(rate, NOW), NOW
    used: list[int] = []
    for step_ms, most, unused in takes:
        now_ms += step_ms
        count = min(most, ramps.ready(ramp, now_ms))
        unused = min(unused, count)
        ramp = ramps.put_back(ramps.take_ready(ramp, count, now_ms), unused, now_ms)
        used += [now_ms] * (count - unused)
    for i in range(len(used)):
        for j in range(i, len(used), 3):
            since, until = used[i] - NOW, used[j] - NOW
            most_slots = ramps.slots(rate, until) - ramps.slots(rate, since - ramps.UNUSED_MS - 1) + 1
            assert j - i + 1 <= most_slots + 1e-6


OWNERS = st.sampled_from("abcdef")
OPS = st.one_of(
    st.tuples(st.just("ask"), OWNERS),
    st.tuples(st.just("call"), st.sampled_from(list(Call))),
    st.tuples(st.just("batch"), st.sampled_from(list(Call))),
    st.tuples(st.just("probe"), OWNERS, st.sampled_from(list(Call))),
    st.tuples(st.just("give_back"), OWNERS),
    st.tuples(st.just("wait"), st.integers(0, 5_000)),
    st.tuples(st.just("force"), st.sampled_from(["open", "closed", "auto"])),
)


def run(ops: list[Any], breaker: Breaker) -> list[tuple[State, int]]:
    """All states on the way, with their times. Whoever asks for a probe and says nothing more was killed."""
    state, now_ms = State(), NOW
    seen = [(state, now_ms)]
    for op in ops:
        match op:
            case ("ask", owner):
                state, _ = ask(state, breaker, now_ms, owner)
            case ("call", outcome):
                state = record(state, breaker, outcome, now_ms)
            case ("batch", outcome):
                state = record_many(state, breaker, replace(CallCounts(), **{outcome.value: 7}), now_ms)
            case ("probe", owner, outcome):
                state = record(state, breaker, outcome, now_ms, probe=owner)
            case ("give_back", owner):
                state = give_back(state, owner)
            case ("wait", ms):
                now_ms += ms
            case ("force", word):
                state = force(state, breaker, word, now_ms)
        seen.append((state, now_ms))
    return seen


@given(st.lists(OPS, max_size=60))
def test_it_is_never_stuck_however_many_probes_are_killed(ops: list[Any]) -> None:
    state, now_ms = run(ops, FIVE)[-1]
    state = force(state, FIVE, "auto", now_ms)
    longest_ms = 3_000 + round(4_000 * 1.2)  # a lease, and then the longest opening
    for attempt in range(2):  # all who ask are killed
        while not ask(state, FIVE, now_ms, f"x{attempt}")[1].at_ms <= now_ms:
            now_ms += 500
            assert now_ms < NOW + 60 * 5_000 + (attempt + 2) * 2 * longest_ms
        state, _ = ask(state, FIVE, now_ms, f"x{attempt}")
        now_ms += 1
    now_ms += longest_ms
    for i in range(FIVE.probes):  # those who ask now live
        state, answer = ask(state, FIVE, now_ms, f"y{i}")
        if answer.probe:
            state = record(state, FIVE, "success", now_ms, probe=f"y{i}")
    assert look(state, FIVE, now_ms).status == "closed"


@given(st.lists(OPS, max_size=60))
def test_every_state_on_the_way_is_sound(ops: list[Any]) -> None:
    for (before, _), (after, now_ms) in pairwise(run(ops, FIVE)):
        assert after.turn >= before.turn
        assert after.status == before.status or after.turn > before.turn
        assert len(after.probes) <= FIVE.probes
        assert after.status == "half_open" or not after.probes
        looked = look(after, FIVE, now_ms)
        assert look(looked, FIVE, now_ms) is looked
        assert msgspec.json.decode(msgspec.json.encode(after), type=State) == after


@given(st.lists(OPS, max_size=60))
def test_a_pass_is_void_from_the_next_turn_on(ops: list[Any]) -> None:
    seen = run([("batch", Call.FAILURE), ("wait", 1_300), *[("call", Call.SUCCESS)] * 2, *ops], FIVE)
    passes: dict[str, int] = {}
    for state, now_ms in seen:
        answer = ask(state, FIVE, now_ms, "z")[1]
        if answer.pass_:
            passes[answer.pass_] = look(state, FIVE, now_ms).turn
        for pass_, turn in passes.items():
            assert valid(state, pass_) is (state.turn == turn)
