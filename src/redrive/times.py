"""Read and write points in time (RFC 3339 in UTC, with milliseconds), and find time zones by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from .errors import ConfigError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_MS = 253_402_300_799_999  # the last millisecond that RFC 3339 can write; stores keep longer delays


def rfc3339(ms: int) -> str:
    """Milliseconds since the epoch as text; what lies past the year 9999 is shown as its end.

    >>> rfc3339(1_700_000_000_007), rfc3339(2**62)
    ('2023-11-14T22:13:20.007Z', '9999-12-31T23:59:59.999Z')
    """
    at = _EPOCH + timedelta(milliseconds=max(0, min(ms, _END_MS)))
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def parse_time(text: str) -> datetime:
    """The point in time that RFC 3339 text names. Raises ValueError for other text, and where the time zone is missing.

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


def zone_of(tz: str) -> tzinfo:
    """The time zone of an IANA name. Raises ConfigError with the near misses."""
    if tz == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError, TypeError):  # KeyError: unknown; OSError: the name of a folder of zones
        pass
    near = _near_zones(str(tz))
    meant = f"did you mean {' or '.join(map(repr, near))}?" if near else "expected an IANA name such as 'Europe/Zurich'"
    raise ConfigError(f"tz={tz!r}: there is no such time zone; {meant}")


def _near_zones(tz: str) -> list[str]:
    """Those that end alike, such as a city without its continent, then those that are spelled alike."""
    import difflib
    from zoneinfo import available_timezones

    zones = {zone.lower(): zone for zone in sorted(available_timezones())}
    if not zones:
        return []  # no database on this machine
    wanted = tz.lower().replace(" ", "_")
    city = [zone for zone in zones if zone == wanted or zone.rpartition("/")[2] == wanted.rpartition("/")[2]]
    alike = difflib.get_close_matches(wanted, zones, n=3)
    return [zones[zone] for zone in list(dict.fromkeys([*city, *alike]))[:3]]
