"""When ticks are: cron expressions on the clocks of a zone, also where those change, and plain periods."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import islice, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigError
from redrive.schedule.cron import Cron, Every, latest, next_after, times


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def ticks(cron: str, tz: str, after: str, until: str) -> list[str]:
    """The ticks between, on the zone's clocks with their offset."""
    found = times(cron, None, tz)
    until_ms = ms(until)
    between = takewhile(lambda tick_ms: tick_ms <= until_ms, found.after(ms(after)))
    return [f"{found.at(tick_ms):%d %H:%M:%S %z}" for tick_ms in between]


# In Zurich 30 March 2025 has no 02:00 to 03:00, and 26 October 2025 has that hour twice.
SPRING = ("2025-03-29T23:30Z", "2025-03-30T02:30Z")
FALL = ("2025-10-25T22:30Z", "2025-10-26T02:30Z")


def test_an_hourly_schedule_ticks_each_hour_there_is_where_clocks_go_forward() -> None:
    assert ticks("0 * * * *", "Europe/Zurich", *SPRING) == [
        "30 01:00:00 +0100",
        "30 03:00:00 +0200",
        "30 04:00:00 +0200",
    ]


def test_an_hourly_schedule_ticks_twice_in_the_hour_that_comes_twice() -> None:
    assert ticks("0 * * * *", "Europe/Zurich", *FALL) == [
        "26 01:00:00 +0200",
        "26 02:00:00 +0200",
        "26 02:00:00 +0100",
        "26 03:00:00 +0100",
    ]


def test_a_daily_schedule_in_the_hour_that_is_left_out_runs_when_it_is_over() -> None:
    found = ticks("30 2 * * *", "Europe/Zurich", "2025-03-28T12:00Z", "2025-03-31T12:00Z")
    assert found == ["29 02:30:00 +0100", "30 03:00:00 +0200", "31 02:30:00 +0200"]


def test_a_daily_schedule_in_the_hour_that_comes_twice_runs_once_the_first_time() -> None:
    found = ticks("30 2 * * *", "Europe/Zurich", "2025-10-25T12:00Z", "2025-10-27T12:00Z")
    assert found == ["26 02:30:00 +0200", "27 02:30:00 +0100"]


def test_started_between_the_two_it_does_not_run_for_the_one_that_is_over() -> None:
    between = "2025-10-26T02:15:00+01:00"  # 02:30 was 45 minutes ago, and comes again in 15
    assert ticks("30 2 * * *", "Europe/Zurich", between, "2025-10-27T12:00Z") == ["27 02:30:00 +0100"]


@pytest.mark.parametrize("cron", ["*/30 2 * * *", "0 30 2 * * *"])
def test_a_star_in_the_minute_or_seconds_follow_the_clock(cron: str) -> None:
    spring = ticks(cron, "Europe/Zurich", "2025-03-29T12:00Z", "2025-03-30T12:00Z")
    assert spring == []
    fall = ticks(cron, "Europe/Zurich", "2025-10-25T12:00Z", "2025-10-26T12:00Z")
    assert [tick for tick in fall if ":30:" in tick] == ["26 02:30:00 +0200", "26 02:30:00 +0100"]


def test_both_ways_hold_on_the_other_side_of_the_ocean() -> None:
    spring = ticks("30 2 * * *", "America/New_York", "2025-03-08T12:00Z", "2025-03-10T12:00Z")
    assert spring == ["09 03:00:00 -0400", "10 02:30:00 -0400"]
    fall = ticks("30 1 * * *", "America/New_York", "2025-11-01T12:00Z", "2025-11-03T12:00Z")
    assert fall == ["02 01:30:00 -0400", "03 01:30:00 -0500"]


@pytest.mark.parametrize(
    ("cron", "first"),
    [
        ("*/5 * * * *", "2026-01-01T00:05Z"),
        ("*/10 * * * * *", "2026-01-01T00:00:10Z"),
        ("0 9 * * MON-FRI", "2026-01-01T09:00Z"),
        ("0 0 L * *", "2026-01-31T00:00Z"),
        ("@hourly", "2026-01-01T01:00Z"),
        ("@Daily", "2026-01-02T00:00Z"),
        ("@weekly", "2026-01-04T00:00Z"),
        ("@monthly", "2026-02-01T00:00Z"),
        ("@yearly", "2027-01-01T00:00Z"),
        ("  0   0 29 2 *  ", "2028-02-29T00:00Z"),
    ],
)
def test_what_an_expression_means(cron: str, first: str) -> None:
    assert next_after(times(cron, None, "UTC"), ms("2026-01-01T00:00Z")) == ms(first)


def test_one_spelling_stands_for_all_that_mean_the_same() -> None:
    assert times(" @Hourly", None, "UTC").spec == times("0  * * * *", None, "UTC").spec
    assert times("0 0 * * mon", None, "UTC").spec == times("0 0 * * MON", None, "UTC").spec
    assert times("0 0 * * *", None, "UTC").spec != times("0 0 * * *", None, "Europe/Zurich").spec


def test_a_period_is_aligned_to_the_epoch() -> None:
    found = times(None, "30s", "UTC")
    assert list(islice(found.after(0), 2)) == [30_000, 60_000]
    assert list(islice(found.after(29_999), 1)) == [30_000]
    assert times(None, "90m", "UTC").shown == "every 1h30m"


@pytest.mark.parametrize(
    ("cron", "every", "tz", "told"),
    [
        ("* * *", None, "UTC", "wrong number of fields; expected five fields"),
        ("61 * * * *", None, "UTC", "bad minute"),
        ("", None, "UTC", "wrong number of fields"),
        ("0 0 30 2 *", None, "UTC", "bad day-of-month"),
        ("@dayly", None, "UTC", "did you mean '@daily'"),
        ("@reboot", None, "UTC", "expected five fields"),
        (None, None, "UTC", "exactly one of them"),
        ("* * * * *", "5m", "UTC", "exactly one of them"),
        (None, "99ms", "UTC", "expected 100ms or more"),
        (None, "soon", "UTC", "every 'soon' is refused"),
        (len, None, "UTC", 'write @app.periodic("'),
        ("* * * * *", None, "Europe/Zurch", "did you mean 'Europe/Zurich'"),
        ("* * * * *", None, "zurich", "did you mean 'Europe/Zurich'"),
        ("* * * * *", None, "europe/zurich", "did you mean 'Europe/Zurich'"),
        ("* * * * *", None, "Europe", "there is no such time zone"),
        ("* * * * *", None, "../etc/passwd", "there is no such time zone"),
        ("* * * * *", None, "", "there is no such time zone"),
        ("* * * * *", None, 3, "there is no such time zone"),
    ],
)
def test_what_cannot_be_meant_is_told(cron: str | None, every: str | None, tz: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        times(cron, every, tz)
    assert told in str(raised.value)


def test_an_hour_and_day_that_never_meet_are_refused() -> None:
    with pytest.raises(ConfigError, match="no such time comes within 50 years"):
        times("0 0 */31 2 MON#5", None, "UTC")  # 1 February is no fifth Monday


CRONS = ["* * * * *", "*/7 */3 * * *", "30 2 * * *", "15,45 1-3 * * SUN", "*/20 30 2 * * *", "0 0 1 * *", "@weekly"]
ZONES = ["UTC", "Europe/Zurich", "America/New_York", "Asia/Kolkata", "Africa/Cairo", "America/Santiago"]
DAYS = [ms("2025-03-30T00:00Z"), ms("2025-10-26T00:00Z"), ms("2025-11-02T05:00Z"), ms("2025-04-25T00:00Z")]


@given(st.sampled_from(CRONS), st.sampled_from(ZONES), st.sampled_from(DAYS), st.lists(st.integers(-(10**8), 10**8)))
def test_ticks_do_not_depend_on_where_one_starts(cron: str, tz: str, day: int, starts: list[int]) -> None:
    found = times(cron, None, tz)
    all_of_them = list(takewhile(lambda t: t <= day + 10**8, found.after(day - 10**8)))
    assert all_of_them == sorted(set(all_of_them))
    for start in starts:
        after = [t for t in all_of_them if t > day + start]
        assert list(takewhile(lambda t: t <= day + 10**8, found.after(day + start))) == after


@given(st.sampled_from(CRONS), st.sampled_from(ZONES), st.sampled_from(DAYS), st.integers(0, 10**7), st.integers(1, 9))
def test_the_latest_are_the_last_of_all(cron: str, tz: str, day: int, span: int, most: int) -> None:
    found: Cron | Every = times(cron, None, tz)
    all_of_them = list(takewhile(lambda t: t <= day + span, found.after(day)))
    assert latest(found, day, day + span, most) == all_of_them[-most:]


def test_the_latest_after_a_year_are_found_without_walking_through_it() -> None:
    found = times("* * * * * *", None, "Europe/Zurich")
    until = ms("2026-01-01T00:00Z")
    began = time.process_time()
    assert latest(found, until - 366 * 86_400_000, until, 3) == [until - 2000, until - 1000, until]
    assert time.process_time() - began < 5  # all 31 million would take minutes


def test_a_tick_is_shown_on_the_clocks_of_its_zone() -> None:
    found = times("30 2 * * *", None, "Europe/Zurich")
    tick = next_after(found, ms("2025-07-01T12:00Z"))
    assert tick is not None
    assert found.at(tick).isoformat() == "2025-07-02T02:30:00+02:00"
    assert found.at(tick) == datetime(2025, 7, 2, 0, 30, tzinfo=UTC)
