"""Types of options: durations and points in time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ...duration import parse_time, seconds


class DurationType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """An option that takes a duration, such as 15m, and returns seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return seconds(value)
        except (ValueError, TypeError) as error:
            why = str(error).removeprefix("duration ").partition("; expected")[0]
            self.fail(f"{why}; expected a number and its unit, such as 500ms, 15m or 1h30m", param, ctx)


class TimeType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """An option that takes a point in time as RFC 3339."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return value if isinstance(value, datetime) else parse_time(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class PastType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """An option that takes a point in time or a duration before now, and returns ms since the epoch."""

    name = "time or age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        import time

        if isinstance(value, int):
            return value
        try:
            return int((time.time() - seconds(value)) * 1000)
        except ValueError:
            pass
        try:
            return round(parse_time(value).timestamp() * 1000)
        except ValueError:
            self.fail(f"{value!r} is no time; expected an age such as 6h, or such as 2026-01-31T15:04:05Z", param, ctx)


DURATION, TIME, PAST = DurationType(), TimeType(), PastType()
