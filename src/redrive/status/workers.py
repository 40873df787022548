"""Find the living workers, by their records and by the leases they hold.

A worker that reports itself is found when it is idle, too, and a killed one is known to be gone. A worker that does not
report, because the setting `telemetry` is off or the store has no cells, is found while it holds a lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ..config import settings
from ..duration import show
from ..message import Lane
from ..presence import WorkerInfo, read_workers
from ..store import Store

LOOKED = 1000  # leased messages that are read to find workers


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """A worker. `queues` has the number of leased messages for each of its queues; `until_ms` is when its last lease
    expires unless it is renewed, None if it has none.

    `state` is idle, running, draining, hung, gone, or silent: it holds leases and does not report. `report` is its
    last record; of a silent worker it has only the name.
    """

    name: str
    state: str
    leased: int
    queues: Mapping[str, int]
    report: WorkerInfo
    until_ms: int | None = None


def worker_reports(store: Store) -> tuple[WorkerInfo, ...] | None:
    """Return the records of a store's workers, without schedulers; None if workers do not report. Raises StoreError."""
    if not (store.traits.cells and settings().telemetry):
        return None
    return tuple(info for info in read_workers(store) if info.kind == "worker")


def hung_workers(store: Store) -> list[str]:
    """Return a line for each living worker that is hung, with the cause. Raises StoreError."""
    workers, now_ms = worker_reports(store) or (), store.now_ms()
    return [
        f"{info.hung.text(info.name)}, for {show(max(0, now_ms - info.hung.since_ms) // 1000)}"
        for info in workers
        if info.hung is not None and not info.gone
    ]


def worked(workers: Iterable[WorkerInfo] | None) -> frozenset[str] | None:
    """Return the queues from which a living worker claims; None if workers do not report."""
    if workers is None:
        return None
    return frozenset(queue.name for info in workers if not (info.gone or info.draining) for queue in info.queues)


def workers_of(store: Store, now_ms: int, workers: Sequence[WorkerInfo] | None) -> tuple[WorkerStatus, ...]:
    """Return the workers by name, those that are gone last. Raises StoreError."""
    held, until = _leases(store, now_ms)
    statuses: dict[str, WorkerStatus] = {}
    for info in workers or ():
        if info.name in statuses:
            continue  # of several processes with this name, the living or newest one came first
        leased = held.pop(info.name, Counter[str]()) if store.traits.finds else _counts(info)
        queues = dict.fromkeys(sorted(queue.name for queue in info.queues), 0) | leased
        statuses[info.name] = WorkerStatus(
            name=info.name,
            state=info.state,
            leased=leased.total(),
            queues=queues,
            report=info,
            until_ms=until.get(info.name),
        )
    for name, leased in held.items():
        statuses[name] = WorkerStatus(
            name=name,
            state="silent",
            leased=leased.total(),
            queues=dict(sorted(leased.items())),
            report=WorkerInfo(name=name),
            until_ms=until[name],
        )
    return tuple(sorted(statuses.values(), key=lambda worker: (worker.state == "gone", worker.name)))


def _counts(info: WorkerInfo) -> Counter[str]:
    """Return, by queue, how many messages the worker had claimed at its last record, if a store lists no leases."""
    return Counter({queue.name: 0 if info.gone else queue.held for queue in info.queues})


def _leases(store: Store, now_ms: int) -> tuple[dict[str, Counter[str]], dict[str, int]]:
    """Return, by worker, its leased messages by queue, and when its last lease expires; both empty if the store cannot
    list leases."""
    held: dict[str, Counter[str]] = {}
    until: dict[str, int] = {}
    messages = store.peek(Lane.LEASED, limit=LOOKED).messages if store.traits.finds else ()
    for message in messages:
        due_ms = message.due_ms or 0
        if message.worker is None or due_ms <= now_ms:
            continue  # the lease has expired
        held.setdefault(message.worker, Counter())[message.queue] += 1
        until[message.worker] = max(until.get(message.worker, 0), due_ms)
    return held, until
