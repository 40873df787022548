from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.duration import milliseconds, seconds, show


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("15m", 900), ("1h30m", 5400), ("500ms", 0.5), ("2s", 2), ("28d", 2_419_200), ("1w", 604_800), ("24h", 86_400),
        ("1w2d3h4m5s6ms", 788_645.006), ("0.5s", 0.5), ("1.5h", 5400), (" 1h 30 m ", 5400), ("0", 0), ("0s", 0),
        ("29ms", 0.029), ("1h29ms", 3600.029), (2, 2), (0.25, 0.25), (0, 0), (timedelta(minutes=15), 900),
        (timedelta(microseconds=1), 1e-6),
    ],
)  # fmt: skip
def test_every_form_of_a_duration_gives_its_seconds(value: object, expected: float) -> None:
    got = seconds(value)  # type: ignore[arg-type]
    assert type(got) is float and got == expected


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError), (-0.001, ValueError), (timedelta(seconds=-1), ValueError), ("-1s", ValueError),
        (math.nan, ValueError), (math.inf, ValueError), (10**400, ValueError), ("9" * 400 + "s", ValueError),
        ("", ValueError), ("  ", ValueError), ("15", ValueError), ("1.5", ValueError), ("m", ValueError),
        ("5y", ValueError), ("5M", ValueError), ("5 minutes", ValueError), ("1m30m", ValueError), ("1m1h", ValueError),
        ("1e3s", ValueError), (".5s", ValueError), ("٣s", ValueError), ("nan", ValueError), ("1s\x00", ValueError),
        (True, TypeError), (False, TypeError), (None, TypeError), (b"15m", TypeError), ([1], TypeError),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_setting_the_value_and_the_forms(value: object, error: type) -> None:
    with pytest.raises(error) as caught:
        seconds(value, "timeout")  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith("timeout ") and "'1h30m'" in text and "w d h m s ms" in text
    assert len(text) < 300
    if value != 10**400:
        assert repr(value)[:20] in text


def test_a_missing_unit_and_an_empty_text_are_named_as_such() -> None:
    with pytest.raises(ValueError, match="needs a unit"):
        seconds("30")
    with pytest.raises(ValueError, match="empty"):
        seconds("")


def test_negative_zero_becomes_zero() -> None:
    assert math.copysign(1, seconds(-0.0)) == 1


def test_long_hostile_text_is_refused_in_linear_time() -> None:
    for text in (" " * 20_000 + "x", "1" * 20_000, "1 " * 10_000, "1s " * 10_000):
        with pytest.raises(ValueError):
            seconds(text)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_combined_text_is_the_sum_of_its_parts(hours: int, minutes: int, secs: int, millis: int) -> None:
    total_ms = ((hours * 60 + minutes) * 60 + secs) * 1000 + millis
    text = f"{hours}h{minutes}m{secs}s{millis}ms"
    assert seconds(text) == total_ms / 1000
    assert milliseconds(text) == total_ms


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0), ("29ms", 29), ("1s261ms", 1261), (0.029, 29), (1.1, 1100), (0.0001, 1), (1e-12, 1), (5e-324, 1),
        (0.0011, 2),
        (1.0001, 1001), (timedelta(microseconds=1), 1), (timedelta(milliseconds=7), 7), (2**60, 2**60 * 1000),
    ],
)  # fmt: skip
def test_milliseconds_round_up_and_keep_whole_ones(value: object, expected: int) -> None:
    got = milliseconds(value)  # type: ignore[arg-type]
    assert type(got) is int and got == expected


@given(st.floats(0, 1e300))
def test_milliseconds_are_never_early_and_at_most_one_late(value: float) -> None:
    got = milliseconds(value)
    nearest_float_slack = Fraction(math.ulp(value)) * 1000
    assert Fraction(value) * 1000 - nearest_float_slack <= got < Fraction(value) * 1000 + 1 + nearest_float_slack
    assert got / 1000 >= value


@given(st.integers(0, 10**12))
def test_whole_milliseconds_survive_the_way_through_seconds(millis: int) -> None:
    assert milliseconds(millis / 1000) == millis
    assert milliseconds(timedelta(milliseconds=millis)) == millis


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0s"), (0.0001, "<1ms"), (0.25, "250ms"), (0.9996, "1s"), (1, "1s"), (1.25, "1.25s"), (56.7, "56.7s"),
        (59.999, "1m"), (60, "1m"), (90, "1m30s"), (500, "8m20s"), (3599.7, "1h"), (3600, "1h"), (3630.5, "1h1m"),
        (25_200, "7h"), (86_399, "1d"), (90_000, "1d1h"), (2_419_200, "28d"), (31_536_000, "365d"), (-90, "-1m30s"),
        (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_show_is_compact(value: float, expected: str) -> None:
    assert show(value) == expected


@given(st.floats(0.001, 1e9))
@example(0.0075)  # shown as 8ms: by the half of a millisecond too much, and by the rounding of a float
def test_what_is_shown_reads_back_within_half_of_its_smaller_unit(value: float) -> None:
    assert seconds(show(value)) == pytest.approx(value, rel=1 / 48, abs=0.0005 + math.ulp(1.0))
