"""Gauges of the living processes; `prometheus.py` describes them. No label has the name of a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ..presence import WorkerInfo

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily, Metric

STATES = ("running", "idle", "draining", "hung", "gone")


class Fleet(Struct, frozen=True, kw_only=True):
    """Totals over the records of a store's processes. A field is None if no process reports its value."""

    workers: Mapping[tuple[str, str], int] = {}  # workers by (queue, state)
    longest_run_s: float | None = None
    clock_ahead_s: float | None = None  # the largest difference of a process's clock to the store's
    loop_lag_s: float | None = None
    hung_s: float | None = None  # for how long the worker that hung first has been hung


def fleet_of(processes: Sequence[WorkerInfo], queues: Iterable[str], now_ms: int) -> Fleet:
    workers = [info for info in processes if info.kind == "worker"]
    count = Counter({(queue, state): 0 for queue in queues for state in STATES})
    for info in workers:
        for queue in info.queues:
            count.update({(queue.name, state): int(state == info.state) for state in STATES})
    alive = [info for info in processes if not info.gone]
    starts = [message.since_ms for info in alive for message in info.messages if message.since_ms is not None]
    clocks = [info.clock_ahead_ms for info in alive if info.clock_ahead_ms is not None]
    lags = [info.loop_lag_ms for info in alive if info.loop_lag_ms is not None]
    return Fleet(
        workers=count,
        longest_run_s=max(0, now_ms - min(starts, default=now_ms)) / 1000,
        clock_ahead_s=max(clocks, key=abs) / 1000 if clocks else None,
        loop_lag_s=max(lags) / 1000 if lags else None,
        hung_s=max((now_ms - info.hung.since_ms for info in alive if info.hung), default=0) / 1000 if alive else None,
    )


def gauges(fleet: Fleet, family: type[GaugeMetricFamily], label: Callable[[str], str]) -> Iterator[Metric]:
    """Yield the totals as families of prometheus_client; `label` makes the name of a queue safe for a label."""
    workers = family("redrive_workers", "Workers by queue and state.", labels=("queue", "state"))
    for (queue, state), count in sorted(fleet.workers.items()):
        workers.add_metric((label(queue), state), count)
    yield workers
    for name, help, seconds in (
        ("redrive_worker_longest_run_seconds", "How long the longest run is under way.", fleet.longest_run_s),
        ("redrive_worker_clock_ahead_seconds", "How far the worst clock is ahead of the store's.", fleet.clock_ahead_s),
        ("redrive_worker_loop_lag_seconds", "How late the latest event loop is.", fleet.loop_lag_s),
        ("redrive_worker_hung_seconds", "How long a worker has not been able to begin a message.", fleet.hung_s),
    ):
        yield family(name, help, value=seconds)
