"""Workers and schedulers as records, with what each runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .formats import timestamp

if TYPE_CHECKING:
    from ..presence import HeldMessage, Hung, WorkerInfo
    from ..status import WorkerStatus


def worker_record(info: WorkerInfo) -> dict[str, Any]:
    """Return a process as a record, with its messages, runs and schedules."""
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
    """A worker as a row, and how many messages it has leased. One that does not report is `silent`, with its name and
    leases alone."""
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
