"""Describe in words when a schedule ticks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from ..duration import show
from .cron import Cron, Every

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("", "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_DAY_NUMBERS = {name[:3].upper(): n for n, name in enumerate(_DAYS[:7])}
_MONTH_NUMBERS = {name[:3].upper(): n for n, name in enumerate(_MONTHS) if name}
_TIMES_MAX = 6  # most times of a day that are listed one by one
_ANY = "*"


class _Unworded(Exception):
    """A field that this module cannot describe, such as `L` or `5#3`."""


def words(times: Cron | Every) -> str:
    """Return in words when a schedule ticks; empty if the expression is clearer.

    >>> from redrive.schedule.cron import times
    >>> words(times("30 3 * * 1-5", None, "UTC"))
    'at 03:30 on Monday to Friday'
    >>> words(times("*/5 9-17 * * *", None, "UTC")), words(times(None, "90s", "UTC"))
    ('every 5 minutes of the hours 9 to 17', 'every 1m30s')
    """
    if isinstance(times, Every):
        return f"every {show(times.every_ms / 1000)}"
    fields = times.fields.split()
    second, (minute, hour, day, month, weekday) = ("0", fields) if len(fields) == 5 else (fields[0], fields[1:])
    try:
        return _time(second, minute, hour) + _date(day, month, weekday, daily=_ANY not in (minute[0], hour[0]))
    except _Unworded:
        return ""


def _time(second: str, minute: str, hour: str) -> str:
    if second != "0":
        return _seconds(second, minute, hour)
    if _ANY not in (minute[0], hour[0]):
        hours, minutes = _numbers(hour), _numbers(minute)
        if hours and minutes and len(hours) * len(minutes) <= _TIMES_MAX:
            return f"at {_and([f'{h:02}:{m:02}' for h, m in product(hours, minutes)])}"
    every = "every minute" if minute == _ANY else _step(minute, "minute", 60)
    if every is None:
        if hour == _ANY and minute == "0":
            return "every hour, on the hour"
        if hour.startswith("*/") and minute == "0" and (hourly := _step(hour, "hour", 24)):
            return f"{hourly}, on the hour"
        every = f"at minute {_list(minute)}"
        return f"{every} of every hour" if hour == _ANY else f"{every} of {_hours(hour)}"
    return every if hour == _ANY else f"{every} of {_hours(hour)}"


def _seconds(second: str, minute: str, hour: str) -> str:
    every = "every second" if second == _ANY else _step(second, "second", 60) or f"at second {_list(second)}"
    return every if minute == hour == _ANY else f"{every}, {_time('0', minute, hour)}"


def _hours(hour: str) -> str:
    return _step(hour, "hour", 24) or f"the hours {_list(hour)}"


def _step(field: str, unit: str, whole: int) -> str | None:
    """Return the words for `*/n`; None for another field. Raises _Unworded if `n` does not divide `whole`."""
    if not field.startswith("*/"):
        return None
    n = _number(field[2:])
    if n == 1:
        return f"every {unit}"
    if whole % n:
        raise _Unworded
    return f"every {n} {unit}s"


def _date(day: str, month: str, weekday: str, *, daily: bool) -> str:
    if "/" in day + month + weekday:
        raise _Unworded
    by_day = "" if day == _ANY else f"on day {_list(day)} of the month"
    by_weekday = "" if weekday == _ANY else f"on {_list(weekday, _DAY_NUMBERS, _DAYS)}"
    parts = " or ".join(part for part in (by_day, by_weekday) if part)  # cron takes days that match either field
    if not parts and daily:
        parts = "every day"
    if month != _ANY:
        parts = f"{parts} in {_list(month, _MONTH_NUMBERS, _MONTHS)}".strip()
    return f" {parts}" if parts else ""


def _list(field: str, numbers: Mapping[str, int] | None = None, names: tuple[str, ...] = ()) -> str:
    """Return the words for a list of values and ranges, such as `1-5,7`."""
    ranges = []
    for part in field.split(","):
        ends = [_number(end, numbers) for end in part.split("-")]
        if len(ends) > 2:
            raise _Unworded
        ranges.append(" to ".join(names[end] if names else str(end) for end in ends))
    return _and(ranges)


def _numbers(field: str) -> list[int]:
    """Return the values of a list without ranges; none for any other field."""
    return [int(part) for part in field.split(",")] if field.replace(",", "").isdecimal() else []


def _number(text: str, numbers: Mapping[str, int] | None = None) -> int:
    if numbers is not None and text in numbers:
        return numbers[text]
    if not text.isdecimal():
        raise _Unworded
    return int(text)


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
