"""Find the workers that are alive.

Leases are the evidence: a worker that holds one that has not run out is alive. An idle worker holds none and is not
seen. Where workers announce themselves, `workers_of` is the place to read that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from ..message import Lane
from ..store import Store

LOOKED = 1000  # leased messages that are read


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """A worker that holds leases: how many messages of each queue it runs or has claimed, and when the last of its
    leases runs out unless it is renewed."""

    name: str
    leased: int
    queues: Mapping[str, int]
    until_ms: int


def workers_of(store: Store, now_ms: int) -> tuple[WorkerStatus, ...]:
    """The workers that hold leases, by name; empty where leased messages cannot be listed. Raises StoreError."""
    if not store.traits.finds:
        return ()
    held: dict[str, Counter[str]] = {}
    until: dict[str, int] = {}
    for message in store.peek(Lane.LEASED, limit=LOOKED).messages:
        due_ms = message.due_ms or 0
        if message.worker is None or due_ms <= now_ms:
            continue  # its lease has run out
        held.setdefault(message.worker, Counter())[message.queue] += 1
        until[message.worker] = max(until.get(message.worker, 0), due_ms)
    return tuple(
        WorkerStatus(name=name, leased=queues.total(), queues=dict(sorted(queues.items())), until_ms=until[name])
        for name, queues in sorted(held.items())
    )
