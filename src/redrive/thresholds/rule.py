"""Rules: which figure to compare with which threshold, and for how long."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from ..duration import Duration, milliseconds, seconds, show
from ..errors import ConfigError
from ..message import Filter


class AlertKind(NamedTuple):
    """A kind of alert: the unit of its figure (count, seconds, share or rate), the default of `above` (None: it has
    none), the default of `for_`, and whether a rule of the kind may name a queue and a task."""

    unit: str
    above: float | None
    for_: str
    queue: bool = True
    task: bool = False


KINDS = {
    "depth": AlertKind("count", 5000, "1m"),
    "dead": AlertKind("count", 100, "0s"),
    "age": AlertKind("seconds", 900, "1m"),
    "error_rate": AlertKind("share", 0.3, "1m", task=True),
    "p95": AlertKind("seconds", None, "1m", task=True),
    "no_workers": AlertKind("count", 0, "1m"),
    "worker_hung": AlertKind("seconds", 0, "0s", queue=False),
    "slo_burn": AlertKind("rate", 0, "0s", task=True),
    "schedule_late": AlertKind("seconds", 60, "0s", queue=False),
    "batch_partial": AlertKind("batches", 0, "0s", queue=False),
    "batch_unsealed": AlertKind("seconds", 3600, "0s", queue=False),
}
WORDS = {
    "count": "a number of messages such as 5000",
    "batches": "a number of batches such as 10",
    "seconds": "a duration such as '15m'",
    "share": "a share from 0 to 1, such as 0.3",
    "rate": "a burn rate such as 14.4",
}


class AlertRule(Struct, frozen=True, kw_only=True):
    """A rule for alerts: it fires once the figure has been above `above` for `for_ms`, is sent again each `every_ms`
    while it fires, and is resolved once the figure has been below for `for_ms`. `queue` and `task` restrict the rule to
    these."""

    name: str
    above: float
    for_ms: int
    every_ms: int
    queue: str | None = None
    task: str | None = None

    @property
    def unit(self) -> str:
        """The unit of the rule's figure."""
        return KINDS[self.name].unit

    def takes(self, queue: str | None, task: str | None = None) -> bool:
        """True if the rule is about this queue and task."""
        return self.queue in (None, queue) and self.task in (None, task)

    @property
    def where(self) -> Filter:
        """Return a filter of messages for the rule's queue and task."""
        return Filter(queue=self.queue, task=self.task)


def rule(
    name: str,
    *,
    above: float | str | None = None,
    for_: Duration | None = None,
    every: Duration = "10m",
    queue: str | None = None,
    task: str | None = None,
) -> AlertRule:
    """Return the rule for these settings. Raises ConfigError for an invalid one."""
    kind = KINDS[name]
    for what, given, taken in (("queue", queue, kind.queue), ("task", task, kind.task)):
        if given is not None and not taken:
            raise ConfigError(f"app.on({name!r}, {what}={given!r}): this alert is not by {what}")
    if name == "no_workers" and above is not None:
        raise ConfigError(f"app.on('no_workers', above={above!r}): it has no threshold; expected for_= alone")
    if above is None and kind.above is None:
        raise ConfigError(f"app.on({name!r}): give above=, {WORDS[kind.unit]}")
    return AlertRule(
        name=name,
        above=kind.above or 0.0 if above is None else _above(name, kind.unit, above),
        for_ms=milliseconds(kind.for_ if for_ is None else for_, "for_"),
        every_ms=milliseconds(every, "every"),
        queue=queue,
        task=task,
    )


def _above(name: str, unit: str, above: float | str) -> float:
    meant = f"app.on({name!r}, above={above!r}): expected {WORDS[unit]}"
    if unit == "seconds":
        try:
            return seconds(above, "above")
        except (ValueError, TypeError):
            raise ConfigError(meant) from None
    if isinstance(above, bool) or not isinstance(above, int | float) or above < 0 or (unit == "share" and above >= 1):
        raise ConfigError(meant)
    return float(above)


def figure_text(unit: str, value: float) -> str:
    """Return a figure as text in its unit."""
    match unit:
        case "seconds":
            return show(round(value, 3)) if value else "0s"
        case "share":
            return f"{value:.1%}"
        case "rate":
            return f"{value:.3g}"
        case _:
            return f"{value:,.0f}"
