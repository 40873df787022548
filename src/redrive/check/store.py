"""Read from a store what a check can use: its history by task, and the facts of its queues on SQS. Writes nothing."""

from __future__ import annotations

from ..history import read_history
from ..history.names import read_names
from ..message import Filter, Lane
from ..registry import Registry
from ..store import Store
from ..stores import engine_of
from .case import Measured, StoreFacts

_STEP_S = 300
_DAY_MS = 86_400_000
_LOOKED_AT = 200  # dead messages of the last day in which a Retry-After is looked for
_RUN_SHARE = 0.95


def facts_of(app: Registry, store: Store, url: str) -> StoreFacts:
    """Return what the store knows of the app's tasks in the last day. Raises StoreError, ConfigError."""
    engine, queues = engine_of(url), {}
    if engine == "sqs":
        from ..stores.sqs.store import SqsStore

        assert isinstance(store, SqsStore)
        for queue in app.queues.values():
            store.give_names(queue.name, sqs=queue.sqs, dlq=queue.dlq)
        queues = {name: store.facts(name) for name in sorted(app.queue_names)}
    known = {task for _, task in read_names(store)} if store.traits.cells else set()
    asked = _asked(store)
    measured = {name: _measured(store, name, asked.get(name)) for name in app.tasks if name in known or name in asked}
    return StoreFacts(engine=engine, measured=measured, queues=queues)


def _measured(store: Store, task: str, asked_s: float | None) -> Measured:
    if not store.traits.cells:
        return Measured(retry_after_s=asked_s)
    history = read_history(store, task=task, since="24h", step=_STEP_S)
    busy_s = _STEP_S * sum(point.tally.enqueued > 0 for point in history.points)
    total = history.total
    firsts = {outcome: bands.get("1", 0) for outcome, bands in total.by_attempt.items()}
    run_ms = total.run.percentile(_RUN_SHARE)
    ended = sum(firsts.get(word, 0) for word in ("done", "retry", "dead"))
    return Measured(
        rate_per_s=total.enqueued / busy_s if busy_s else None,
        run_s=None if run_ms is None else run_ms / 1000,
        failing=(ended - firsts.get("done", 0)) / ended if ended else None,
        retry_after_s=asked_s,
    )


def _asked(store: Store) -> dict[str, float]:
    """Return the longest Retry-After in the histories of the newest dead messages, by task."""
    longest, recent = dict[str, float](), Filter(since_ms=store.now_ms() - _DAY_MS)
    if store.traits.triages:
        for message in store.peek(Lane.DEAD, where=recent, limit=_LOOKED_AT).messages:
            for fault in message.faults:
                if fault.retry_after_s is not None:
                    longest[message.task] = max(longest.get(message.task, 0.0), fault.retry_after_s)
    return longest
