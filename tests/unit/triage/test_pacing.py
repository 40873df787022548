"""How fast a run moves and when it stops by itself, as sequences. No clock: time is an argument."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigError, StopError
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.pacing import (
    GO_ON,
    MAX_PER_S,
    WAIT,
    Speed,
    StopRule,
    begin,
    canary,
    grant,
    next_ms,
    percent,
    rested,
    with_outcomes,
)
from redrive.triage.redrive.plan import estimate_s

T0 = 1_760_000_000_123


def moved(speed: Speed, rate: float | None, from_ms: int, until_ms: int, every_ms: int) -> tuple[Speed, list[int]]:
    """When messages are moved by a runner that looks every so many ms."""
    times: list[int] = []
    for now_ms in range(from_ms, until_ms, every_ms):
        speed, count = grant(speed, rate, now_ms, 10_000)
        times += [now_ms] * count
    return speed, times


def crowded(times: list[int], rate: float) -> str | None:
    """A one-second window with more than rate · 1.1 + 1 of these times, which are in order."""
    for i, begin_ms in enumerate(times):
        count = bisect_left(times, begin_ms + 1000) - i
        if count > rate * 1.1 + 1:
            return f"{count} within a second of {begin_ms - T0} ms, at {rate}/s"
    return None


# Slots


@pytest.mark.parametrize(
    ("rate", "slots"),
    [(50, [0, 20, 40, 60]), (3, [0, 334, 667, 1000, 1334]), (0.5, [0, 2000, 4000]), (5000 / 3600, [0, 720, 1440])],
)
def test_messages_are_moved_one_by_one_at_exact_times(rate: float, slots: list[int]) -> None:
    assert [at_ms - T0 for at_ms in moved(begin(rate, False, T0), rate, T0, T0 + slots[-1] + 1, 1)[1]] == slots


def test_the_next_slot_is_known_and_nothing_is_granted_before_it() -> None:
    speed, count = grant(begin(8, False, T0), 8, T0, 100)
    assert (count, next_ms(speed, 8, T0), next_ms(speed, 8, T0 + 500)) == (1, T0 + 125, T0 + 500)
    assert [grant(speed, 8, at_ms, 100)[1] for at_ms in (T0, T0 + 124, T0 + 125)] == [0, 0, 1]


def test_no_more_is_granted_than_is_wanted_and_the_rest_is_not_lost_at_once() -> None:
    speed = begin(100, False, T0)
    assert grant(speed, 100, T0 + 40, 2)[1] == 2
    assert grant(grant(speed, 100, T0 + 40, 2)[0], 100, T0 + 40, 100)[1] == 3
    assert grant(speed, 100, T0 + 40, 0)[1] == grant(speed, 100, T0 + 40, -5)[1] == 0


@pytest.mark.parametrize(("rate", "burst"), [(100, 6), (20, 2), (5, 1), (0.2, 1)])
def test_a_runner_that_stalled_makes_no_burst(rate: float, burst: int) -> None:
    assert grant(begin(rate, False, T0), rate, T0 + 3_600_000, 10_000)[1] == burst  # a twentieth of a second's worth


def test_a_runner_that_is_a_little_late_each_time_loses_nothing() -> None:
    for rate in (1, 10, 80, 333):
        assert len(moved(begin(rate, False, T0), rate, T0, T0 + 60_000, 37)[1]) == pytest.approx(rate * 60, abs=20)


def test_a_run_that_names_no_rate_goes_at_the_highest_one() -> None:
    assert len(moved(begin(None, False, T0), None, T0, T0 + 4000, 10)[1]) == pytest.approx(4 * MAX_PER_S, abs=6)


def test_a_clock_that_goes_back_holds_nothing_for_longer_than_two_slots() -> None:
    speed, _ = grant(begin(2, False, T0), 2, T0, 1)
    assert next_ms(speed, 2, T0 - 3_600_000) == T0 - 3_600_000 + 1000


RATES = st.sampled_from([None, 0.05, 0.7, 1.0, 3.0, 7.5, 10.0, 19.0, 20.0, 50.0, 64.0, 99.0, 100.0, 333.0, 500.0])
# What may happen: time passes, in small steps or in stalls; somebody asks; verdicts come; the run is paused.
PASSES = st.tuples(
    st.just("pass"), st.one_of(st.integers(0, 30), st.integers(0, 1500), st.sampled_from([10_000, 10**6]))
)
ASKS = st.tuples(st.just("ask"), st.sampled_from([1, 2, 5, 1000, 1000]))
VERDICTS = st.tuples(st.just("judge"), st.integers(0, 5))
PAUSES = st.tuples(st.just("pause"), st.integers(0, 5000))


@given(RATES, st.booleans(), st.booleans(), st.lists(st.one_of(PASSES, ASKS, ASKS, VERDICTS, PAUSES), max_size=120))
def test_never_more_than_the_rate_in_any_second_however_it_is_asked(
    rate: float | None, slow_start: bool, halve: bool, steps: list[tuple[str, int]]
) -> None:
    speed, now_ms, times = begin(rate, slow_start, T0), T0, []
    for what, n in steps:
        if what == "pass":
            now_ms += n
        elif what == "ask":
            speed, count = grant(speed, rate, now_ms, n)
            times += [now_ms] * count
        elif what == "judge":
            speed = with_outcomes(speed, rate, 1, n, now_ms, halve)
        else:
            now_ms += n
            speed = rested(speed, n, now_ms)
        assert min(1, rate or MAX_PER_S) <= speed.per_s <= (rate or MAX_PER_S)
    assert crowded(times, rate or MAX_PER_S) is None


@given(RATES, st.lists(st.tuples(st.integers(1, 2500), st.booleans()), max_size=100))
def test_the_next_slot_is_when_something_is_granted(rate: float | None, looks: list[tuple[int, bool]]) -> None:
    speed, now_ms = begin(rate, True, T0), T0
    for pause_ms, take in looks:
        now_ms += pause_ms
        at_ms = next_ms(speed, rate, now_ms)
        assert (grant(speed, rate, now_ms, 1)[1] == 1) == (at_ms <= now_ms)
        assert grant(speed, rate, at_ms, 1)[1] == 1
        assert at_ms == now_ms or grant(speed, rate, at_ms - 1, 1)[1] == 0
        if take:
            speed, _ = grant(speed, rate, now_ms, 1000)


# Slow start


@pytest.mark.parametrize("every_ms", [5, 10, 25])
def test_slow_start_moves_1270_in_70_s(every_ms: int) -> None:
    times = moved(begin(100, True, T0), 100, T0, T0 + 90_000, every_ms)[1]
    by_step = [bisect_left(times, T0 + s * 10_000) for s in range(10)]
    assert by_step == pytest.approx([0, 10, 30, 70, 150, 310, 630, 1270, 2270, 3270], abs=4)


def test_slow_start_moves_1270_in_70_s_where_a_runner_looks_when_it_is_told_to() -> None:
    speed, now_ms, count = begin(100, True, T0), T0, 0
    while (now_ms := next_ms(speed, 100, now_ms)) < T0 + 70_000:
        speed, more = grant(speed, 100, now_ms, 10_000)
        count += more
    assert count == pytest.approx(1270, abs=1)


def test_slow_start_goes_in_steps_up_to_the_rate() -> None:
    speed, speeds = begin(20, True, T0), []
    for s in range(0, 60, 5):
        speed, _ = grant(speed, 20, T0 + s * 1000, 0)
        speed = with_outcomes(speed, 20, 1, 0, T0 + s * 1000, False)
        for ms in range(2000, 5000, 2000):
            speed, _ = grant(speed, 20, T0 + s * 1000 + ms, 0)
        speeds.append(speed.per_s)
    assert speeds == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 20, 20]


def test_slow_start_below_one_a_second_begins_at_the_rate() -> None:
    assert begin(0.2, True, T0).per_s == 0.2


def test_a_run_that_nobody_carried_for_a_minute_goes_on_as_slowly_as_it_was() -> None:
    speed, _ = moved(begin(100, True, T0), 100, T0, T0 + 15_000, 10)
    assert grant(speed, 100, T0 + 75_000, 100)[0].per_s == 2
    _, times = moved(speed, 100, T0 + 75_000, T0 + 79_000, 10)
    assert len(times) == pytest.approx(8, abs=1)


def test_the_clock_stands_still_while_the_run_is_paused() -> None:
    whole = moved(begin(100, True, T0), 100, T0, T0 + 60_000, 5)[1]
    speed, first = moved(begin(100, True, T0), 100, T0, T0 + 34_565, 5)
    speed = rested(speed, 777_777, T0 + 34_565 + 777_777)
    _, second = moved(speed, 100, T0 + 34_565 + 777_777, T0 + 60_000 + 777_777, 5)
    assert first + [at_ms - 777_777 for at_ms in second] == whole


def test_a_pause_that_is_told_bit_by_bit_is_the_same_pause() -> None:
    speed, _ = moved(begin(100, True, T0), 100, T0, T0 + 34_565, 5)
    at_once = rested(speed, 9000, T0 + 34_565 + 9000)
    for ms in range(1, 10):
        speed = rested(speed, 1000, T0 + 34_565 + ms * 1000)
    assert speed == at_once


# Halving


def failing(
    speed: Speed, rate: float, from_s: int, until_s: int, failed: int, done: int, halve: bool = True
) -> list[float]:
    """The speed in each second, where a tenth of these verdicts comes every 100 ms."""
    speeds = []
    for ms in range(from_s * 1000, until_s * 1000, 100):
        now_ms = T0 // 1000 * 1000 + ms
        speed = with_outcomes(speed, rate, done // 10, failed // 10, now_ms, halve)
        speed, _ = grant(speed, rate, now_ms, 0)
        if ms % 1000 == 900:
            speeds.append(speed.per_s)
    return speeds


def test_the_speed_halves_each_second_in_which_more_than_a_tenth_fails() -> None:
    assert failing(begin(80, False, T0), 80, 0, 10, 10, 80) == [80, 40, 20, 10, 5, 2.5, 1.25, 1, 1, 1]


def test_a_tenth_that_fails_halves_nothing() -> None:
    assert failing(begin(80, False, T0), 80, 0, 5, 10, 90) == [80] * 5


def test_nothing_is_halved_unless_it_was_asked_for() -> None:
    assert failing(begin(80, False, T0), 80, 0, 5, 100, 0, halve=False) == [80] * 5


def test_below_one_a_second_nothing_is_halved() -> None:
    assert failing(begin(0.4, False, T0), 0.4, 0, 5, 100, 0) == [0.4] * 5


def test_ten_good_seconds_double_the_speed_again_up_to_the_rate() -> None:
    speed = begin(50, False, T0)
    for s in range(3):  # two seconds are over, and both were bad
        speed = with_outcomes(speed, 50, 0, 10 if s < 2 else 0, T0 + s * 1000, True)
    assert speed.per_s == 12.5
    speeds = []
    for s in range(2, 33):
        speed = with_outcomes(speed, 50, 10, 0, T0 + s * 1000, True)
        speed, _ = grant(speed, 50, T0 + s * 1000, 0)
        speeds.append(speed.per_s)
    assert speeds == [12.5] * 10 + [25] * 10 + [50] * 11


def test_a_bad_second_begins_the_ten_anew() -> None:
    speed = begin(64, True, T0)
    for s in range(40):
        speed = with_outcomes(speed, 64, 10, 10 if s in (15, 22) else 0, T0 + s * 1000, True)
        speed, _ = grant(speed, 64, T0 + s * 1000, 0)
        assert speed.per_s == (1 if s < 10 else 2 if s < 16 else 1 if s < 33 else 2)


def test_seconds_without_verdicts_change_nothing() -> None:
    speed = with_outcomes(begin(10, False, T0), 10, 0, 0, T0 + 5000, True)
    assert with_outcomes(speed, 10, 0, 0, T0 + 9000, True).per_s == 10


def test_what_is_kept_of_a_speed_is_all_of_it() -> None:
    import msgspec

    speed, _ = moved(begin(7, True, T0), 7, T0, T0 + 33_333, 7)
    assert msgspec.json.decode(
        msgspec.json.encode(with_outcomes(speed, 7, 3, 4, T0 + 40_000, True)), type=Speed
    ) == with_outcomes(speed, 7, 3, 4, T0 + 40_000, True)


# How long it takes


@pytest.mark.parametrize(
    ("count", "rate", "slow_start", "expected_s"),
    [
        (100, "50/s", False, 2),
        (10_000, None, False, 20),
        (0, "5/s", True, 0),
        (10, "100/s", True, 10),
        (30, "100/s", True, 20),
        (1270, "100/s", True, 70),
        (10_000, "100/s", True, 157.3),
        (10, "0.5/s", True, 20),
    ],
)
def test_a_plan_says_how_long_it_takes(count: int, rate: str | None, slow_start: bool, expected_s: float) -> None:
    settings = read_settings(rate=rate, canary=0, slow_start=slow_start)
    assert estimate_s(settings, count) == pytest.approx(expected_s)
    until_ms = T0 + int(expected_s * 1000)
    _, times = moved(begin(settings.rate, slow_start, T0), settings.rate, T0, until_ms, 20)
    assert len(times) == pytest.approx(count, abs=10)


# The stop rule


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("failed>20%", StopRule(20.0)),
        ("failed>100", StopRule(100.0, share=False)),
        ("  failed  >=  2.5 %  ", StopRule(2.5, reached=True)),
        ("failed>=1", StopRule(1.0, share=False, reached=True)),
        ("failed>0", StopRule(0.0, share=False)),
        ("failed>=100%", StopRule(100.0, reached=True)),
    ],
)
def test_a_stop_rule_is_a_share_or_a_number(text: str, stop: StopRule) -> None:
    assert StopRule.parse(text) == stop == StopRule.parse(str(stop))


@pytest.mark.parametrize(
    ("text", "why", "carets"),
    [
        ("", "'' is not counted", None),
        ("faild>20%", "did you mean failed?", "^^^^^"),
        ("done>20%", "'done' is not counted", "^^^^"),
        (">20%", "'' is not counted", "^"),
        ("failed", "a run stops at too many", "      ^"),
        ("failed 20%", "a run stops at too many", "       ^^^"),
        ("failed<20%", "a run stops at too many", "      ^^^^"),
        ("failed=20%", "a run stops at too many", "      ^^^^"),
        ("failed>", "is not understood", "       ^"),
        ("failed>many", "'many' is not understood", "       ^^^^"),
        ("failed>-1", "'-1' is not understood", "       ^^"),
        ("failed>20% of all", "'of all' is not understood", "           ^^^^^^"),
        ("failed>20%>10", "'>10' is not understood", "          ^^^"),
        ("failed>100%", "no share is ever that high", "       ^^^^"),
        ("failed>=101%", "no share is ever that high", "        ^^^^"),
        ("failed>=0%", "before anything failed", "        ^^"),
        ("failed>2.5", "a number of messages is whole", "       ^^^"),
    ],
)
def test_a_wrong_stop_rule_is_pointed_at(text: str, why: str, carets: str | None) -> None:
    with pytest.raises(StopError) as caught:
        StopRule.parse(text)
    assert isinstance(caught.value, ConfigError)
    assert why in caught.value.why
    assert caught.value.pointer == (f"  {text}\n  {carets}" if carets else "")


@given(st.text(max_size=30) | st.text(alphabet="failed>=%0123. ", max_size=14))
def test_any_text_is_a_stop_rule_or_refused(text: str) -> None:
    try:
        stop = StopRule.parse(text)
    except StopError:
        return
    assert StopRule.parse(str(stop)) == stop


@pytest.mark.parametrize(
    ("text", "done", "failed", "planned", "stops"),
    [
        ("failed>20%", 0, 19, 100, False),  # a share of fewer than 20 says little
        ("failed>20%", 0, 20, 100, True),
        ("failed>20%", 16, 4, 100, False),  # 20 % are not more than 20 %
        ("failed>=20%", 16, 4, 100, True),
        ("failed>20%", 15, 5, 100, True),
        ("failed>20%", 790, 198, 1000, True),
        ("failed>20%", 1, 4, 5, True),  # all there are
        ("failed>20%", 1, 3, 5, False),
        ("failed>20%", 0, 0, 0, False),
        ("failed>0%", 19, 1, 100, True),
        ("failed>29%", 71, 29, 100, False),  # 29 / 100 · 100 is 28.999… in floating point
        ("failed>100", 0, 100, 1000, False),
        ("failed>100", 0, 101, 1000, True),
        ("failed>=1", 0, 1, 1000, True),
        ("failed>0", 5, 0, 1000, False),
    ],
)
def test_when_a_run_stops(text: str, done: int, failed: int, planned: int, stops: bool) -> None:
    assert (StopRule.parse(text).says(done, failed, planned) is not None) == stops


def test_a_plan_is_refused_with_a_stop_rule_that_cannot_be_read() -> None:
    with pytest.raises(StopError, match="did you mean failed"):
        read_settings(stop_if="faild>20%")
    assert (read_settings(canary=5).stop_if, read_settings(canary=5, stop_if=" ").stop_if) == ("failed>20%", "")
    assert read_settings(stop_if=" failed > 5 ").stop_if == "failed>5"


def test_the_story_says_how_many_failed_and_what_the_rule_is() -> None:
    assert (
        StopRule.parse("failed>20%").says(1500, 500, 9999) == "500 of 2,000 failed (25 %): the run stops at failed>20%"
    )


# The canary


@pytest.mark.parametrize(
    ("size", "stop", "done", "failed", "says"),
    [
        (5, "failed>20%", 0, 4, WAIT),  # all five are moved before it is with_outcomes, and waited for
        (5, "failed>20%", 4, 1, GO_ON),
        (5, "failed>20%", 3, 2, "canary: 2 of 5 failed (40 %): the run stops at failed>20%"),
        (5, None, 0, 5, "canary: 5 of 5 failed (100 %): the run stops at failed>20%"),
        (5, None, 5, 0, GO_ON),
        (5, "failed>50%", 3, 2, GO_ON),
        (5, "failed>100", 0, 5, "canary: 5 of 5 failed (100 %): the run stops at failed>20%"),
        (50, "failed>3", 46, 4, "canary: 4 of 50 failed (8 %): the run stops at failed>3"),
        (0, None, 0, 0, GO_ON),  # nothing of it can get a verdict: all changed, or were cancelled
    ],
)
def test_what_a_canary_says(size: int, stop: str | None, done: int, failed: int, says: str) -> None:
    assert canary(size, None if stop is None else StopRule.parse(stop), done, failed) == says


def test_a_percentage_for_people_is_never_rounded_up() -> None:
    assert [percent(*pair) for pair in ((999, 1000), (1000, 1000), (0, 0))] == ["99 %", "100 %", "0 %"]
