"""Format times, numbers, shares and durations, in the same way everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..duration import rfc3339, show
from ..redact import redact

DASH = "–"  # stands for an unknown or absent value


def timestamp(ms: int | None) -> str | None:
    """Return a time in ms as RFC 3339 in UTC; None for None."""
    return None if ms is None else rfc3339(ms)


def number(value: float | None) -> str:
    """Return a count or a rate as text.

    >>> number(1234567), number(0.256), number(None), number(3.0)
    ('1,234,567', '0.256', '–', '3')
    """
    if value is None:
        return DASH
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def pace(per_s: float | None) -> str:
    """Return a rate as text: per second, or per minute or hour if it is below one.

    >>> pace(12.3), pace(0.2), pace(0.0017), pace(0.0), pace(None)
    ('12.3/s', '12/min', '6.12/h', '0', '–')
    """
    if not per_s:
        return DASH if per_s is None else "0"
    times, unit = next(((times, unit) for times, unit in ((1, "s"), (60, "min")) if per_s * times >= 1), (3600, "h"))
    return f"{number(per_s * times)}/{unit}"


def share(value: float | None) -> str:
    """Return a share of one in percent; with two decimals near 100 %, as 99.95 is not 100.

    >>> share(0.5), share(0.1234), share(0.0004), share(0.9996), share(12.5), share(None)
    ('50%', '12.3%', '0.04%', '99.96%', '1,250%', '–')
    """
    if value is None:
        return DASH
    percent = value * 100
    if 99 < percent < 100:
        return f"{percent:.2f}".rstrip("0").rstrip(".") + "%"
    return f"{percent:.3g}%" if abs(percent) < 100 else f"{percent:,.0f}%"


def milliseconds(value: float | None) -> str:
    """Return a duration that was measured in milliseconds as text.

    >>> milliseconds(12.4), milliseconds(61_000), milliseconds(-90_000), milliseconds(None)
    ('12.4ms', '1m1s', '-1m30s', '–')
    """
    if value is None:
        return DASH
    if value < 0:
        return f"-{milliseconds(-value)}"
    return f"{value:.3g}ms" if round(value, 1) < 1000 else seconds(value / 1000)


def seconds(value: float | None) -> str:
    """Return a duration in seconds as text: to a tenth of a second below ten seconds, and to the second above.

    >>> seconds(0), seconds(2.14), seconds(61.4), seconds(None)
    ('0s', '2.1s', '1m1s', '–')
    """
    return DASH if value is None else show(round(value, 1) if abs(value) < 10 else round(value))


def size(count: int | None) -> str:
    """Return a number of bytes as text.

    >>> size(2047), size(4096), size(5 * 2**20), size(None)
    ('2,047 B', '4 KiB', '5 MiB', '–')
    """
    if count is None:
        return DASH
    if count < 2048:
        return f"{count:,} B"
    return f"{count / 1024:,.0f} KiB" if count < 2**21 else f"{count / 2**20:,.0f} MiB"


def state_word(state: str) -> str:
    """Return the word that people read for a state of a message, a lane too. Only fields, metrics and selectors have
    `leased`.

    >>> state_word("leased"), state_word("dead")
    ('running', 'dead')
    """
    return "running" if state == "leased" else state


def middle(name: str, most: int) -> str:
    """Return a name in at most `most` characters, cut before its last part: workers differ at the begin of their hosts
    or in that part.

    >>> middle("web-1.7e25fc5110/worker-0", 20), middle("local/14342", 20), middle("web-1/a-very-long-name", 10)
    ('web-1.7e25…/worker-0', 'local/14342', 'web…g-name')
    """
    if len(name) <= most:
        return name
    _, slash, last = name.rpartition("/")
    tail = slash + last if len(slash + last) <= most - 4 else name[-(most - most // 3 - 1) :]
    return f"{name[: most - len(tail) - 1]}…{tail}"


def listed(counts: Mapping[str, int], most: int | None = None) -> str:
    """Return counts by name as text; beyond the first `most` it only says how many more there are.

    >>> listed({"crm": 1200, "mail": 3}), listed({"a": 1, "b": 2, "c": 3}, 1)
    ('crm 1,200, mail 3', 'a 1 and 2 more')
    """
    first = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:most])
    return f"{first} and {len(counts) - most:,} more" if most is not None and len(counts) > most else first


def setting_value(value: object) -> object:
    """Return a setting's value for display, without secrets."""
    if isinstance(value, str):
        return redact(value)
    return value if isinstance(value, int | float | None) else msgspec.json.encode(value).decode()
