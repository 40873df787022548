"""Parse Retry-After headers: seconds or an HTTP-date (RFC 9110, 10.2.3 and 5.6.7), misspelled ones too."""

from __future__ import annotations

import re
from datetime import UTC, datetime

RETRY_AFTER_MAX_S = 365 * 86_400.0

# Patterns are stored as text, which `re` compiles and caches at first use, to keep the import fast.
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
_CLOCK = r"(?P<H>[0-2]?[0-9]):(?P<M>[0-5][0-9]):(?P<S>[0-6][0-9])"
_DATE = r"(?P<d>[0-3]?[0-9])"
_ZONE = r"(?:GMT|UTC|[+-]0000)"
# Days and hours of one digit, a missing weekday, and other words for GMT are unambiguous. A missing zone is ambiguous,
# except in asctime's format.
_HTTP_DATES = (
    rf"(?ai)(?:{_DAY},? )? ?{_DATE} (?P<b>[a-z]{{3}}) (?P<y>[0-9]{{4}}) {_CLOCK} {_ZONE}",  # format of IMF-fixdate
    rf"(?ai)(?:{_DAY},? )?{_DATE}-(?P<b>[a-z]{{3}})-(?P<y>[0-9]{{2}}|[0-9]{{4}}) {_CLOCK} {_ZONE}",  # RFC 850
    rf"(?ai){_DAY} (?P<b>[a-z]{{3}})  ?{_DATE} {_CLOCK} (?P<y>[0-9]{{4}})",  # format of asctime
)


def parse_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds from `now` that a Retry-After header asks for (RFC 9110, 10.2.3), or None if it says nothing.

    Whole seconds in ASCII digits, or with a fraction, as in `1.5`, which is rounded up; or one of the three HTTP-dates,
    which are in GMT whatever the local time zone, also with a day or an hour of one digit, without its weekday, or with
    UTC, +0000 or -0000 for GMT; white space around is allowed. A past date is 0.0, anything over RETRY_AFTER_MAX_S (365
    days) is that. A `now` without a zone is in UTC. Never raises: any other value, such as `1.0`, which names no
    fraction, or a date without a zone, gives None.
    """
    try:
        return _parse(text, now)
    except KeyboardInterrupt:
        raise
    except BaseException:  # not a str or a datetime, or one whose methods raise
        return None


def _parse(text: str, now: datetime) -> float | None:
    asked_s = whole_seconds(text)
    if asked_s is not None:
        return asked_s
    now = now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)
    date = http_date(text, now)
    return None if date is None else min(max((date - now).total_seconds(), 0.0), RETRY_AFTER_MAX_S)


def whole_seconds(text: str) -> float | None:
    """Return the seconds in ASCII digits, at most RETRY_AFTER_MAX_S, a fraction rounded up; None for other text."""
    digits, dot, fraction = text.strip().partition(".")
    if not (digits.isascii() and digits.isdigit()):
        return None
    if dot and not (fraction.isascii() and fraction.isdigit() and fraction.strip("0")):
        return None  # RFC 9110 says to ignore numbers such as `1.`, `1.x` and `1.0`
    digits = digits.lstrip("0")
    return min(float(digits or 0) + bool(dot), RETRY_AFTER_MAX_S) if len(digits) <= 9 else RETRY_AFTER_MAX_S


def http_date(text: str, now: datetime | None) -> datetime | None:
    """Return an HTTP-date as a time in UTC. Years of two digits need `now`, and are at most 50 years after it."""
    text = text.strip()
    match = next((match for pattern in _HTTP_DATES if (match := re.fullmatch(pattern, text))), None)
    if match is None or (len(match["y"]) == 2 and now is None) or match["b"].lower() not in _MONTHS:
        return None
    month, second = _MONTHS.index(match["b"].lower()) + 1, min(int(match["S"]), 59)  # 60 is a leap second
    clock = (int(match["H"]), int(match["M"]), second)
    try:
        return datetime(_year(match["y"], now), month, int(match["d"]), *clock, tzinfo=UTC)
    except ValueError:  # an impossible date such as 31 February
        return None


def _year(digits: str, now: datetime | None) -> int:
    year = int(digits)
    if len(digits) == 4 or now is None:
        return year
    year += now.year - now.year % 100
    return year - 100 if year > now.year + 50 else year + 100 if year <= now.year - 50 else year
