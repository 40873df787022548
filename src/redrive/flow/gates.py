"""Declare gates: conditions for a redrive to move messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from ..errors import ConfigError
from ..timezone import zone_of

ANYONE = "anyone"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WINDOW = re.compile(r"\s*([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})(?:\s+(\S+))?\s*", re.ASCII)


class Gates(Struct, frozen=True):
    """Conditions for a redrive to move messages. While one does not hold, the redrive waits, and then continues.

    - `breaker`: the circuit breakers of the dependencies of the messages' tasks are closed, and no dependency is in
      cool-down. A half-open breaker lets messages through if there is no other message to probe with. A split
      dependency (`per=`) has a breaker for each key: a run continues up to the first message whose key is held, and
      waits there.
    - `health`: a URL that answers a GET with 2xx within 5 s (redirects are not followed), or the name of a check that
      the app registered by `app.dlq.health("crm-up", fn)`. Called at most once a second.
    - `approval`: the person who must approve first (`redrive run approve ID`): `"ann"`, at any host, `"ann@ops"`, or
      `"anyone"`.
    - `window`: the time of day: `"22:00-06:00 Europe/Zurich"`, in UTC without a zone. When it ends, messages that were
      moved still run.

    Raises ConfigError for a bad value.
    """

    breaker: bool = True
    health: str | None = None
    approval: str | None = None
    window: str | None = None

    def __post_init__(self) -> None:
        breaker: object = self.breaker
        if not isinstance(breaker, bool):
            raise ConfigError(f"gates: breaker={breaker!r}; expected True or False")
        for what in ("health", "approval", "window"):
            value = getattr(self, what)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigError(f"gates: {what}={value!r}; expected text, or None for no such gate")
        if self.health is not None:
            _check_health(self.health)
        if self.window is not None:
            window_of(self.window)

    def may_approve(self, actor: str, user: str = "") -> bool:
        """True if this person may approve: `approval` names exactly `actor`, or the system's user on any host. `user`
        is the system's user@host, which counts only if no other name was given."""
        wanted = self.approval
        if wanted is None or wanted in (ANYONE, actor):
            return True
        return "@" not in wanted and actor == user and user.partition("@")[0] == wanted


class TimeWindow(NamedTuple):
    """A time of day in a zone, from minute `start` up to minute `end`; past midnight if `end` is earlier."""

    start: int
    end: int
    zone: tzinfo

    def holds(self, now_ms: int) -> bool:
        """True if the window is open at `now_ms`."""
        at = (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(self.zone)
        minute = at.hour * 60 + at.minute
        return self.start <= minute < self.end if self.start < self.end else not self.end <= minute < self.start


def _check_health(health: str) -> None:
    if "://" not in health:
        return
    parts = urlsplit(health)
    if not is_url(health) or not parts.hostname:
        raise ConfigError(f"gates: health={health!r}; expected an http or https URL, or the name of a check")
    if parts.username is not None:
        raise ConfigError(
            "gates: health= has a user in its URL, which would be stored; register a check by name instead"
        )


@lru_cache(maxsize=64)
def window_of(text: str) -> TimeWindow:
    match = _WINDOW.fullmatch(text)
    expected = "expected times of day such as '22:00-06:00 Europe/Zurich', in UTC without a zone"
    if match is None:
        raise ConfigError(f"gates: window={text!r}; {expected}")
    start, end = (int(match[at]) * 60 + int(match[at + 1]) for at in (1, 3))
    if start >= 1440 or end > 1440 or max(int(match[2]), int(match[4])) > 59 or start == end:
        raise ConfigError(f"gates: window={text!r} is not a span of the day; {expected}")
    return TimeWindow(start, end, zone_of(match[5] or "UTC"))


def is_url(health: str) -> bool:
    """True if `health` is a URL, and not the name of a check."""
    return health.startswith(("http://", "https://"))
