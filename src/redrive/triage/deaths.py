"""Deaths of the last hour, for the small lines beside failure groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..message import Filter
from ..store import Store
from .group_states import combined, read_states

STEPS, STEP_MS = 12, 300_000


def recent_deaths(store: Store, queue: str | None = None) -> Mapping[str, Sequence[int]]:
    """Return by fingerprint how many of a group's dead messages died in each of the last STEPS steps of five minutes,
    the last at the end; of one queue or of all. Raises Unsupported if the store cannot count failure groups."""
    end_ms, states = store.now_ms(), read_states(store)
    found: dict[str, list[int]] = {}
    for n in range(STEPS):
        at_ms = end_ms - (STEPS - n) * STEP_MS
        where = Filter(queue=queue, since_ms=at_ms, until_ms=at_ms + STEP_MS)
        for group in combined(states, store.failure_groups(where=where)):
            found.setdefault(group.fingerprint, [0] * STEPS)[n] += group.count
    return found
