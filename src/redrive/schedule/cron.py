"""Compute the ticks of a schedule: cron expressions in a time zone, and plain intervals.

Times are integer milliseconds since the epoch. Ticks depend only on the expression, so every scheduler computes the
same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import count, takewhile

from cronsim import CronSim, CronSimError
from msgspec import Struct

from ..duration import Duration, milliseconds, show
from ..errors import ConfigError, near_miss
from ..timezone import zone_of

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EVERY_MIN_MS = 100
_EXPECTED = f"five fields (minute hour day month weekday), six with seconds first, or one of {', '.join(ALIASES)}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LOOK_BACK_MS = 60_000  # first span that is searched backwards, in ms; each further span is eight times as long
_CACHED = 4096


class Times(Struct, frozen=True):
    """The ticks of a schedule. `spec` is its normalized form: two schedules with the same spec have the same ticks."""

    spec: str
    shown: str  # the cron expression or the period, as declared
    tz: str
    zone: tzinfo

    def after(self, after_ms: int) -> Iterator[int]:
        """Yield the ticks after `after_ms`, in order, without end."""
        raise NotImplementedError

    def at(self, tick_ms: int) -> datetime:
        """Return a tick as a time in the schedule's zone."""
        return (_EPOCH + tick_ms * _MS).astimezone(self.zone)


class Cron(Times, frozen=True):
    """The minutes or seconds of a cron expression, by the clocks of a time zone."""

    fields: str

    def after(self, after_ms: int) -> Iterator[int]:
        last_ms = after_ms
        for at in CronSim(self.fields, self.at(after_ms)):
            tick_ms = (at - _EPOCH) // _MS
            # An hour that the clocks repeat: if cronsim starts in the second pass, it yields the first pass again.
            if tick_ms > last_ms:
                yield tick_ms
                last_ms = tick_ms


class Every(Times, frozen=True):
    """The multiples of a period since the epoch."""

    every_ms: int

    def after(self, after_ms: int) -> Iterator[int]:
        return count((after_ms // self.every_ms + 1) * self.every_ms, self.every_ms)


def times(cron: str | None, every: Duration | None, tz: str) -> Cron | Every:
    """Return the ticks of a cron expression or of a period in a time zone. Raises ConfigError for invalid values."""
    if (cron is None) == (every is None):
        raise ConfigError('give a cron expression or every=, such as "*/5 * * * *" or every="30s"; exactly one of them')
    zone = zone_of(tz)
    if every is not None:
        return _every(every, tz, zone)
    if not isinstance(cron, str):
        raise ConfigError(f'cron {cron!r}: expected text; write @app.periodic("*/5 * * * *")')
    return _cron(cron, tz, zone)


def _cron(text: str, tz: str, zone: tzinfo) -> Cron:
    shown = " ".join(text.split())
    fields = ALIASES.get(shown.lower(), shown).upper()
    if fields.startswith("@"):
        near = near_miss(shown.lower(), ALIASES)
        raise ConfigError(f"cron {text!r}: {f'did you mean {near!r}? ' if near else ''}expected {_EXPECTED}")
    cron = Cron(f"{fields} {tz}", shown, tz, zone, fields)
    try:
        next(cron.after(0))
    except CronSimError as error:
        raise ConfigError(f"cron {text!r}: {str(error).lower()}; expected {_EXPECTED}") from None
    except (StopIteration, RuntimeError):
        raise ConfigError(f"cron {text!r}: no such time comes within 50 years; look at its day and month") from None
    return cron


def _every(every: Duration, tz: str, zone: tzinfo) -> Every:
    try:
        every_ms = milliseconds(every, "every")
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from None
    if every_ms < EVERY_MIN_MS:
        raise ConfigError(f"every={every!r}: expected {show(EVERY_MIN_MS / 1000)} or more")
    return Every(f"every {every_ms}ms", f"every {show(every_ms / 1000)}", tz, zone, every_ms)


@lru_cache(maxsize=_CACHED)  # a scheduler asks every second for the same tick
def next_after(times: Cron | Every, after_ms: int) -> int | None:
    """Return the first tick after `after_ms`; None if there is none within 50 years."""
    return next(times.after(after_ms), None)


def latest(times: Cron | Every, after_ms: int, until_ms: int, most: int) -> list[int]:
    """Return the last `most` of the ticks that are after `after_ms` and not after `until_ms`, in order.

    Ticks are searched in growing spans back from the end: a schedule by the second has 30 million ticks in a year.
    """
    span_ms = _LOOK_BACK_MS
    while True:
        start_ms = max(after_ms, until_ms - span_ms)
        ticks = [*takewhile(lambda tick_ms: tick_ms <= until_ms, times.after(start_ms))][-most:]
        if len(ticks) == most or start_ms == after_ms:
            return ticks
        span_ms *= 8
