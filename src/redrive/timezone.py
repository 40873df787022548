"""Time zones by their IANA names."""

from __future__ import annotations

from datetime import UTC, tzinfo

from .errors import ConfigError


def zone_of(tz: str) -> tzinfo:
    """Return the time zone of an IANA name. Raises ConfigError with the near misses."""
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
    """Return names of zones that end as `tz` does, such as a city without its continent, then names that are spelled
    alike."""
    import difflib
    from zoneinfo import available_timezones

    zones = {zone.lower(): zone for zone in sorted(available_timezones())}
    if not zones:
        return []  # this machine has no database of zones
    wanted = tz.lower().replace(" ", "_")
    city = [zone for zone in zones if zone == wanted or zone.rpartition("/")[2] == wanted.rpartition("/")[2]]
    alike = difflib.get_close_matches(wanted, zones, n=3)
    return [zones[zone] for zone in list(dict.fromkeys([*city, *alike]))[:3]]
