"""Write times, numbers, shares and durations for people and programs: one form of each."""

from __future__ import annotations

import msgspec

from ..duration import rfc3339, show
from ..fault.model import kind_word as kind_word
from ..redact import redact
from .table import Column as Column


def timestamp(ms: int | None) -> str | None:
    """A time in RFC 3339, in UTC; None for none."""
    return None if ms is None else rfc3339(ms)


def age_text(seconds: float | None) -> str:
    return "–" if seconds is None else show(seconds) if seconds else "0s"


def ms_text(value: float | None) -> str:
    """A duration for people; – for none."""
    if value is None:
        return "–"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}ms"


def share_text(value: float | None) -> str:
    """A share for people; – for none."""
    return "–" if value is None else f"{value:,.1%}"


def setting_value(value: object) -> object:
    """A setting's value as it is shown, without secrets."""
    if isinstance(value, str):
        return redact(value)
    return value if isinstance(value, int | float | None) else msgspec.json.encode(value).decode()
