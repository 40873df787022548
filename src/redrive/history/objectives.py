"""Measure objectives: the share of good messages, what is left of the error budget, and how fast it burns.

A burn rate is the share of bad messages by the share that the objective allows: at 1 the budget is spent just when its
period ends. Each alert looks at a long window, so that it is about something that matters, and at a short one, so that
it ends soon after the trouble. Windows and thresholds are those of the Google SRE workbook, chapter 5, "Alerting on
SLOs", table 5-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from ..errors import Unsupported
from ..policy.slo import SLO
from ..store import Store
from .chunk import HOUR_MS, MINUTE_MS
from .names import read_names
from .read import NOT_KEPT, counts_of
from .recorder import SeriesName
from .tally import ALL, GOOD, QUEUE_ALL, QUEUE_GOOD


class BurnWindow(NamedTuple):
    """An alert on the burn rate: its severity, its threshold, and its long and its short window in ms."""

    severity: str
    threshold: float
    long_ms: int
    short_ms: int


WINDOWS = (
    BurnWindow("page", 14.4, HOUR_MS, 5 * MINUTE_MS),
    BurnWindow("page", 6.0, 6 * HOUR_MS, 30 * MINUTE_MS),
    BurnWindow("ticket", 1.0, 72 * HOUR_MS, 6 * HOUR_MS),
)


class Burn(Struct, frozen=True, kw_only=True):
    """The burn rates over the last `long_ms` and `short_ms`, and `firing`: True if both reach the threshold. A rate is
    0 if no message ended."""

    severity: str
    threshold: float
    long_ms: int
    short_ms: int
    long: float
    short: float

    @property
    def firing(self) -> bool:
        return min(self.long, self.short) >= self.threshold


class SloStatus(Struct, frozen=True, kw_only=True):
    """The status of an objective of a task or queue (`kind`) in its period: `good` of `all` messages met it.
    `budget_left` is a share of the error budget: negative once that is overspent, 1 if no message ended."""

    name: str
    kind: str
    slo: SLO
    good: int = 0
    all: int = 0
    burns: tuple[Burn, ...] = ()

    @property
    def share(self) -> float | None:
        """The share of good messages; None if no message ended."""
        return self.good / self.all if self.all else None

    @property
    def budget_left(self) -> float:
        return 1 - rate(self.good, self.all, self.slo.objective)

    @property
    def firing(self) -> tuple[Burn, ...]:
        return tuple(burn for burn in self.burns if burn.firing)


class Declares(Protocol):
    """An app, as far as it declares objectives of tasks and queues."""

    @property
    def tasks(self) -> Mapping[str, Any]: ...

    @property
    def queues(self) -> Mapping[str, Any]: ...


def rate(good: int, all: int, objective: float) -> float:
    """Return the burn rate of a window: its share of bad messages divided by the share that may be bad."""
    return (all - good) / all / (1 - objective) if all else 0.0


def read_objectives(store: Store, app: Declares) -> tuple[SloStatus, ...]:
    """Return the status of each objective that the app declares, tasks before queues, by name. Raises StoreError;
    Unsupported if the store keeps no history."""
    if not store.traits.cells:
        raise Unsupported(NOT_KEPT)
    declared = [("task", name, task.slo) for name, task in sorted(app.tasks.items()) if task.slo is not None]
    declared += [("queue", name, queue.slo) for name, queue in sorted(app.queues.items()) if queue.slo is not None]
    names = read_names(store) if declared else {}
    return tuple(_status(store, names, kind, name, slo) for kind, name, slo in declared)


def _status(store: Store, names: Iterable[SeriesName], kind: str, name: str, slo: SLO) -> SloStatus:
    place = 1 if kind == "task" else 0
    of = sorted(each for each in names if each[place] == name)
    keys = (GOOD, ALL) if kind == "task" else (QUEUE_GOOD, QUEUE_ALL)
    now_ms = store.now_ms()
    fine_ms = max(window.long_ms for window in WINDOWS if window.long_ms <= 24 * HOUR_MS)
    by_minute = _slots(counts_of(store, of, now_ms - fine_ms, now_ms), keys)
    by_hour = _slots(counts_of(store, of, now_ms - round(slo.over_s * 1000), now_ms, HOUR_MS), keys)

    def in_last(window_ms: int) -> float:
        slots = by_minute if window_ms <= fine_ms else by_hour
        return rate(*_sums(slots, now_ms - window_ms), slo.objective)

    good, all = _sums(by_hour, 0)
    burns = tuple(Burn(**each._asdict(), long=in_last(each.long_ms), short=in_last(each.short_ms)) for each in WINDOWS)
    return SloStatus(name=name, kind=kind, slo=slo, good=good, all=all, burns=burns)


def _slots(counts: Iterable[tuple[int, str, int]], keys: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return (start, good, all) for each count under the keys for good and for all messages."""
    good, all = keys
    return [(at_ms, count * (key == good), count * (key == all)) for at_ms, key, count in counts if key in keys]


def _sums(slots: Iterable[tuple[int, int, int]], since_ms: int) -> tuple[int, int]:
    some = [slot for slot in slots if slot[0] > since_ms]
    return sum(slot[1] for slot in some), sum(slot[2] for slot in some)
