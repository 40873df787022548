"""Gauges of upcoming messages, objectives, wanted workers and batches; `prometheus.py` describes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ..duration import show
from ..errors import Unsupported
from ..history import SloStatus, read_objectives
from ..message import Counts, DueCount
from ..presence import WorkerInfo
from ..registry import Registry
from ..schedule.lateness import schedule_statuses
from ..store import Store
from .batch_gauges import BatchGauges, read_batch_gauges
from .batch_gauges import gauges as batch_gauges
from .wanted import read_wanted

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily, Metric

AHEAD_MS = 600_000  # ms: messages that become due within this time count as upcoming
AHEAD = "10m"


class QueueSignals(Struct, frozen=True, kw_only=True):
    """Upcoming messages, objectives, late schedules and wanted workers of a store; empty where it keeps none."""

    upcoming: Mapping[tuple[str, str], int] = {}  # messages by (queue, kind): first or retry
    objectives: Sequence[SloStatus] = ()
    late_s: Mapping[str, float] = {}  # by schedule
    wanted: Mapping[str, int] = {}  # number of wanted workers by queue
    batches: BatchGauges = BatchGauges()


def read_signals(
    store: Store, app: Registry | None, counts: Mapping[str, Counts], workers: Sequence[WorkerInfo]
) -> QueueSignals:
    """Read the signals of all queues now. Raises StoreError."""
    keeps = store.traits.cells
    return QueueSignals(
        upcoming=_upcoming(store, counts),
        objectives=read_objectives(store, app) if keeps and app is not None else (),
        late_s={s.name: (s.late_ms or 0) / 1000 for s in schedule_statuses(app, store)} if keeps and app else {},
        wanted=read_wanted(store, app, counts, workers) if keeps else {},
        batches=read_batch_gauges(store) if keeps else BatchGauges(),
    )


def _upcoming(store: Store, counts: Mapping[str, Counts]) -> dict[tuple[str, str], int]:
    now_ms = store.now_ms()
    upcoming: dict[tuple[str, str], int] = {}
    with contextlib.suppress(Unsupported):
        for queue, of in counts.items():
            due = store.due_counts(queue, [now_ms, now_ms + AHEAD_MS])[0] if of.scheduled else DueCount(0, 0)
            upcoming |= {(queue, "first"): due.all - due.retries, (queue, "retry"): due.retries}
    return upcoming


def gauges(signals: QueueSignals, family: type[GaugeMetricFamily], label: Callable[[str], str]) -> Iterator[Metric]:
    """Yield the signals as families of prometheus_client; `label` makes a name safe for a label."""
    ahead = family(
        "redrive_queue_upcoming_messages", "Scheduled messages that come due soon.", labels=("queue", "kind", "within")
    )
    for (queue, kind), count in sorted(signals.upcoming.items()):
        ahead.add_metric((label(queue), kind, AHEAD), count)
    wanted = family("redrive_wanted_workers", "Workers that a queue wants, by Little's law.", labels=("queue",))
    for queue, workers in sorted(signals.wanted.items()):
        wanted.add_metric((label(queue),), workers)
    late = family("redrive_schedule_late_seconds", "How long a tick is overdue.", labels=("schedule",))
    for name, late_s in sorted(signals.late_s.items()):
        late.add_metric((label(name),), late_s)
    yield from (ahead, wanted, late)
    yield from _objectives(signals.objectives, family, label)
    yield from batch_gauges(signals.batches, family, label)


def _objectives(
    objectives: Sequence[SloStatus], family: type[GaugeMetricFamily], label: Callable[[str], str]
) -> Iterator[Metric]:
    of = ("kind", "name")
    wanted = family("redrive_slo_objective_ratio", "The share of messages that is to be good.", labels=of)
    left = family("redrive_slo_budget_left_ratio", "The share of the error budget that is left.", labels=of)
    burn = family("redrive_slo_burn_rate", "How fast the error budget burns, by window.", labels=(*of, "window"))
    for slo in objectives:
        labels = (slo.kind, label(slo.name))
        wanted.add_metric(labels, slo.slo.objective)
        left.add_metric(labels, slo.budget_left)
        rates = {window: rate for b in slo.burns for window, rate in ((b.long_ms, b.long), (b.short_ms, b.short))}
        for window_ms, rate in sorted(rates.items()):
            burn.add_metric((*labels, show(window_ms / 1000)), rate)
    yield from (wanted, left, burn)
