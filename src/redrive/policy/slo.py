"""Objectives: the share of messages that should succeed, and how soon."""

from __future__ import annotations

import re

from msgspec import Struct

from ..duration import Duration, seconds, show
from ..errors import ConfigError

_FORM = re.compile(r"\s*(\d{1,3}(?:\.\d+)?)\s*%\s+within\s+(\S.*?)\s*")
_EXPECTED = "expected a share and a bound, such as '99.9% within 30s'"
OVER_MAX_S = 35 * 86_400.0


class SLO(Struct, frozen=True):
    """An objective of a task or a queue: `@app.task(slo=SLO("99.9% within 30s", over="28d"))`.

    `text` gives the share of messages that should succeed, and within what time after each was first due. A retry that
    succeeds in time is good; a message that dies, or succeeds too late, is bad. A message is counted once, when its
    first life ends: a redrive does not make it good. `over` is the period of the error budget, up to 35 days, as long
    as history is kept. Raises ConfigError.

    >>> SLO("99.9% within 30s").within_s
    30.0
    """

    text: str
    over: Duration = "28d"

    def __post_init__(self) -> None:
        if not 0 < self.objective < 1:
            raise ConfigError(f"SLO({self.text!r}): expected a share above 0% and below 100%, which allows no failure")
        if self.within_s <= 0:
            raise ConfigError(f"SLO({self.text!r}): the bound is not above 0; {_EXPECTED}")
        if not 86_400 <= self.over_s <= OVER_MAX_S:
            raise ConfigError(
                f"SLO({self.text!r}, over={self.over!r}): expected 1d to 35d, which is how long history is kept"
            )

    def _parts(self) -> tuple[str, str]:
        text: object = self.text
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(f"SLO({self.text!r}): {_EXPECTED}")
        return match[1], match[2]

    @property
    def objective(self) -> float:
        """The share of messages that should be good, such as 0.999."""
        return round(float(self._parts()[0]) / 100, 9)

    @property
    def within_s(self) -> float:
        """The seconds after its due time within which a message should succeed."""
        return _seconds(self._parts()[1], f"the bound of SLO({self.text!r})")

    @property
    def over_s(self) -> float:
        """The period of the error budget, in seconds."""
        return _seconds(self.over, f"SLO({self.text!r}, over=…)")

    def __str__(self) -> str:
        return f"{self.text.strip()} over {show(self.over_s)}"


def _seconds(value: Duration, what: str) -> float:
    try:
        return seconds(value, what)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from None
