"""Validate the fields of rules."""

from __future__ import annotations

from typing import Literal, get_args

from ..duration import Duration, seconds
from ..errors import ConfigError

OnExhausted = Literal["defer", "dead_letter"]


def number(value: float, what: str, least: float, most: float) -> float:
    """Return the value if it is a number within these bounds. Raises ConfigError or TypeError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} {value!r} is refused: expected a number")
    if not least <= value <= most:
        raise ConfigError(f"{what} {value!r} is refused: expected a number from {least:g} to {most:g}")
    return float(value)


def whole(value: int, what: str, least: int, most: int) -> int:
    """Return the value if it is a whole number within these bounds. Raises ConfigError or TypeError."""
    if type(value) is not int:
        raise TypeError(f"{what} {value!r} is refused: expected a whole number")
    if not least <= value <= most:
        raise ConfigError(f"{what} {value!r} is refused: expected a whole number from {least} to {most}")
    return value


def span_s(value: Duration, what: str, least_s: float, most_s: float) -> float:
    """Return the duration in seconds if it is within these bounds. Raises ConfigError, ValueError or TypeError."""
    return number(seconds(value, what), what, least_s, most_s)


def on_exhausted(value: str) -> str:
    """Return the word if it is one of OnExhausted. Raises ConfigError for any other."""
    if value not in get_args(OnExhausted):
        raise ConfigError(f"on_exhausted {value!r} is unknown; known: {', '.join(get_args(OnExhausted))}")
    return value


def put(frozen: object, **values: object) -> None:
    """Set the fields of a frozen value, for use in its constructor."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)
