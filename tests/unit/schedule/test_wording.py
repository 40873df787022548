"""Schedules in words: what has words is said right, and what has none is left to the expression."""

from __future__ import annotations

import pytest

from redrive.schedule.cron import times
from redrive.schedule.wording import words


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0 * * * *", "every hour, on the hour"),
        ("@hourly", "every hour, on the hour"),
        ("5,35 * * * *", "at minute 5 and 35 of every hour"),
        ("0 */6 * * *", "every 6 hours, on the hour"),
        ("15 */2 * * *", "at minute 15 of every 2 hours"),
        ("0 3 * * *", "at 03:00 every day"),
        ("30 3,15 * * 1-5", "at 03:30 and 15:30 on Monday to Friday"),
        ("0 0 * * 0,6", "at 00:00 on Sunday and Saturday"),
        ("0 0 1 * *", "at 00:00 on day 1 of the month"),
        ("0 0 1 * 1", "at 00:00 on day 1 of the month or on Monday"),
        ("0 0 1 JAN,JUL *", "at 00:00 on day 1 of the month in January and July"),
        ("0 12 * 6-8 *", "at 12:00 every day in June to August"),
        ("*/10 9-17 * * MON-FRI", "every 10 minutes of the hours 9 to 17 on Monday to Friday"),
        ("*/15 * * * * *", "every 15 seconds"),
        ("0 30 8 * * *", "at 08:30 every day"),
        ("30 30 8 * * *", "at second 30, at 08:30 every day"),
        ("@weekly", "at 00:00 on Sunday"),
    ],
)
def test_an_expression_has_words(cron: str, told: str) -> None:
    assert words(times(cron, None, "UTC")) == told


@pytest.mark.parametrize(
    "cron", ["*/7 * * * *", "0 */5 * * *", "0 0 L * *", "0 0 * * 5#3", "0 1 */2 * *", "0 9-17/2 * * *"]
)
def test_one_that_words_would_get_wrong_has_none(cron: str) -> None:
    assert words(times(cron, None, "UTC")) == ""


def test_a_period_is_said_as_one() -> None:
    assert words(times(None, "90s", "UTC")) == "every 1m30s"
