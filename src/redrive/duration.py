"""Durations and times at the public edge: `timedelta`, seconds or text such as "15m", and RFC 3339 in UTC."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_EXPECTED = "a timedelta, a number of seconds, or text such as '15m', '1h30m', '500ms' (units w d h m s ms)"

Duration = timedelta | int | float | str

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_MS = 253_402_300_799_999  # the last millisecond that RFC 3339 can express; stores allow longer delays
_LOOK_S = (0.005, 0.25)  # the first and the longest pause between two looks
_UNITS = ("w", "d", "h", "m", "s")
_UNIT_MS = (604_800_000, 86_400_000, 3_600_000, 60_000, 1000, 1)
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
# Each unit at most once, largest first, so that a slip such as "1m30m" is refused. Each number includes the white space
# before it: loose spaces between optional groups would make the match backtrack with the sixth power.
_TEXT = re.compile("".join(rf"(?:\s*{_NUMBER}\s*{unit})?" for unit in (*_UNITS, "ms")) + r"\s*", re.ASCII)


def seconds(value: Duration, what: str = "duration") -> float:
    """Return a duration in seconds: finite and never negative.

    `what` names the setting in errors. Text needs a unit, and "0" needs none. Raises ValueError for a value that is
    negative, not finite or unreadable, and TypeError for anything that is not a duration, bool included.

    >>> seconds("1h30m"), seconds("500ms"), seconds(timedelta(days=1)), seconds(2)
    (5400.0, 0.5, 86400.0, 2.0)
    """
    result = _plain(value, what)
    if not 0 <= result < math.inf:
        raise _refusal(ValueError, value, what, "it must be finite and not negative")
    return result + 0.0  # +0.0 turns -0.0 into 0.0


def milliseconds(value: Duration, what: str = "duration") -> int:
    """Return a duration in whole milliseconds, rounded up so that nothing comes early; raises as `seconds` does.

    >>> milliseconds("1.5s"), milliseconds(0.0001), milliseconds(0)
    (1500, 1, 0)
    """
    exact_s = seconds(value, what)
    rounded_ms = int(exact_s) * 1000 + round(exact_s % 1 * 1000)
    # Compared in seconds: 0.029 s is 29 ms, though 0.029 * 1000 = 29.000000000000004 would be rounded up to 30.
    return rounded_ms if rounded_ms / 1000 >= exact_s else rounded_ms + 1


def pauses(timeout: Duration | None, what: str) -> Iterator[float]:
    """Yield the seconds to sleep before each further look at `what`: a few ms at first, a quarter of a second in the
    end. Raises TimeoutError once `timeout` is over (None: never)."""
    timeout_s = math.inf if timeout is None else seconds(timeout, "timeout")
    end_s, pause_s = time.monotonic() + timeout_s, _LOOK_S[0]
    while (left_s := end_s - time.monotonic()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(pause_s * 1.5, _LOOK_S[1])
    raise TimeoutError(f"{what} was not done within {timeout_s:g} s")


def show(seconds: float) -> str:
    """Return seconds as short text for people: at most two units, rounded to the smaller one.

    >>> [show(s) for s in (0, 0.25, 2.1, 90, 25_200, 25_447, 2_419_200)]
    ['0s', '250ms', '2.1s', '1m30s', '7h', '7h4m', '28d']
    """
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 0:
        return "-" + show(-seconds)
    return _show_short(seconds) if round(seconds, 2) < 60 else _show_long(seconds)


def _plain(value: Duration, what: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _parse(value, what)
    if type(value) is not bool and isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    raise _refusal(TypeError, value, what, f"{type(value).__name__} is not a duration")


def _parse(text: str, what: str) -> float:
    if text.strip() == "0":
        return 0.0
    match = _TEXT.fullmatch(text)
    if match is None or match.lastindex is None:
        raise _refusal(ValueError, text, what, _why_unreadable(text))
    # Add up in whole numbers and divide once, so that "29ms" is exactly 0.029, and "1s261ms" 1.261.
    above, below = 0, 1000
    try:
        for number, unit_ms in zip(match.groups(default="0"), _UNIT_MS, strict=True):
            whole, _, part = number.partition(".")
            above, below = (
                above * 10 ** len(part) + int(whole + part) * unit_ms * below // 1000,
                below * 10 ** len(part),
            )
        return above / below
    except (OverflowError, ValueError):  # the text has more digits than Python parses
        return math.inf


def _why_unreadable(text: str) -> str:
    if not text.strip():
        return "it is empty"
    if re.fullmatch(r"\s*[-+]?[0-9.]+\s*", text, re.ASCII):
        return "text needs a unit"
    return "it must be numbers with known units, each unit once, largest first"


def _refusal(error: type[Exception], value: object, what: str, why: str) -> Exception:
    try:
        shown = repr(value)
    except ValueError:  # the number has more digits than Python prints
        shown = f"a huge {type(value).__name__}"
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return error(f"{what} {shown} is refused: {why}; expected {_EXPECTED}")


def _show_short(seconds: float) -> str:
    if seconds == 0:
        return "0s"
    if seconds < 0.001:
        return "<1ms"
    millis = round(seconds * 1000)
    return f"{millis}ms" if millis < 1000 else f"{round(seconds, 2):g}s"


def _show_long(seconds: float) -> str:
    # Rounded before the units are chosen: 3,599.7 s is 1h, not 60m.
    if round(seconds) < 3_600:
        return _pair(round(seconds), "m", 60, "s", 1)
    if round(seconds / 60) < 1_440:
        return _pair(round(seconds / 60) * 60, "h", 3_600, "m", 60)
    return _pair(round(seconds / 3_600) * 3_600, "d", 86_400, "h", 3_600)


def _pair(seconds: int, big: str, big_s: int, small: str, small_s: int) -> str:
    whole, rest_s = divmod(seconds, big_s)
    return f"{whole}{big}{rest_s // small_s}{small}" if rest_s else f"{whole}{big}"


def rfc3339(ms: int) -> str:
    """Return milliseconds since the epoch as RFC 3339 text in UTC; times after the year 9999 are shown as its end.

    >>> rfc3339(1_700_000_000_007), rfc3339(2**62)
    ('2023-11-14T22:13:20.007Z', '9999-12-31T23:59:59.999Z')
    """
    at = _EPOCH + timedelta(milliseconds=max(0, min(ms, _END_MS)))
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def parse_time(text: str) -> datetime:
    """Return the point in time that RFC 3339 text names. Raises ValueError for other text or a missing time zone.

    >>> parse_time("2023-11-14T23:13:20+01:00").timestamp()
    1700000000.0
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError(f"{text!r} is no point in time with a zone; expected RFC 3339, such as 2026-01-31T15:04:05Z")
    return at
