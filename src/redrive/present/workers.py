"""Workers and schedulers as records, with what each runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..duration import show
from .formats import DASH, milliseconds, number, share, size, timestamp
from .table import Column

if TYPE_CHECKING:
    from ..presence import HeldMessage, Hung, WorkerInfo
    from ..status import WorkerStatus


COLUMNS = (
    Column("name", shrinks=True),
    Column("state"),
    Column("pid", None, str),
    Column("queues", None, lambda queues: ", ".join(queues) or DASH, shrinks=True),
    Column("held"),
    Column("running"),
    Column("claims_per_s", "claims/s", number),
    Column("cpu_share", "cpu", share, spare=1),
    Column("rss_bytes", "memory", size, spare=1),
    Column("loop_lag_ms", "loop lag p99", milliseconds, spare=2),
    Column("store_p50_ms", "store p50", milliseconds, spare=3),
    Column("store_p99_ms", "store p99", milliseconds, spare=2),
    Column("clock_ahead_ms", "clock", milliseconds, spare=3),
    Column("version", spare=3),
    Column("app", spare=3),
    Column("started_at", "started", spare=2),
    Column("seen_at", "seen"),
)


def worker_record(info: WorkerInfo) -> dict[str, Any]:
    """Return a worker or scheduler as a record, with its messages, runs and schedules."""
    return {
        "name": info.name,
        "kind": info.kind,
        "state": info.state,
        "gone": info.gone,
        "draining": info.draining,
        "drain_asked": info.drain_asked,
        "host": info.host or None,
        "pid": info.pid or None,
        "version": info.version or None,
        "app": info.app,
        "started_at": timestamp(info.started_ms or None),
        "seen_at": timestamp(info.seen_ms or None),
        "queues": {q.name: {"concurrency": q.concurrency, "held": q.held} for q in info.queues},
        "held": info.held,
        "running": info.running,
        "hung": None if info.hung is None else _hung(info.hung, info.name),
        "messages": [_message(message) for message in info.messages],
        "runs": list(info.runs),
        "schedules": list(info.schedules),
        "claims_per_s": info.claims_per_s,
        "cpu_share": info.cpu_share,
        "rss_bytes": info.rss_bytes,
        "loop_lag_ms": info.loop_lag_ms,
        "store_p50_ms": info.store_p50_ms,
        "store_p99_ms": info.store_p99_ms,
        "clock_ahead_ms": info.clock_ahead_ms,
    }


def leased_worker_record(worker: WorkerStatus) -> dict[str, Any]:
    """Return a worker as a record, with how many messages it has leased. A worker that does not report is `silent`, and
    has only its name and leases."""
    return {
        **worker_record(worker.report),
        "state": worker.state,
        "leased": worker.leased,
        "leased_by_queue": dict(worker.queues),
        "lease_until": timestamp(worker.until_ms),
    }


def _hung(hung: Hung, worker: str) -> dict[str, Any]:
    blocked = {"queues": list(hung.queues), "timeouts": hung.timeouts}
    by = {"task": hung.task or None, "id": hung.id or None, "place": hung.place or None}
    return {"since": timestamp(hung.since_ms), "text": hung.text(worker), **blocked, **by}


def _message(message: HeldMessage) -> dict[str, Any]:
    place = {"isolated": message.isolated, "alone": message.alone}
    return {"id": message.id, "task": message.task, "since": timestamp(message.since_ms), **place}


def work_lines(info: WorkerInfo, now_ms: int) -> Iterator[str]:
    """Yield lines about what a process works on: what blocks it, its messages, its redrive runs and its schedules."""
    if info.hung is not None and not info.gone:
        yield f"{info.hung.text(info.name)}, for {show(max(0, now_ms - info.hung.since_ms) // 1000)}"
    for message in info.messages:
        if message.since_ms is None:
            since = "claimed, not started"
        else:
            ago = show(max(0, (info.seen_ms if info.gone else now_ms) - message.since_ms) / 1000)
            since = f"ran for {ago}" if info.gone else f"for {ago}"
        words = [word for word, is_so in (("isolated", message.isolated), ("alone", message.alone)) if is_so]
        yield "  ".join([message.id, message.task, ", ".join([since, *words])])
    if info.held > len(info.messages):
        yield f"and {info.held - len(info.messages):,} more"
    if info.runs:
        yield f"carries redrive runs: {', '.join(info.runs)}"
    if info.schedules:
        yield f"schedules: {', '.join(info.schedules)}"
