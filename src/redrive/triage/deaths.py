"""Deaths of the last hour, for the small lines beside failure groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..message import FailureGroup, Filter
from ..store import Store
from .group_states import combined, read_states

STEPS, STEP_MS = 12, 300_000

DeathStep = Sequence[FailureGroup]  # the groups of the messages that died in a step


def recent_deaths(
    store: Store, queue: str | None = None, known: dict[int, DeathStep] | None = None
) -> Mapping[str, Sequence[int]]:
    """Return by fingerprint how many of a group's dead messages died in each of the last STEPS steps of five minutes,
    the present one at the end; of one queue or of all. `known` keeps steps that are over, by their begin in ms, for the
    next call, which then reads the present one alone. Raises Unsupported if the store cannot count failure groups."""
    now_ms, states, kept = store.now_ms(), read_states(store), {} if known is None else known
    last_ms = now_ms - now_ms % STEP_MS
    begins = [last_ms - n * STEP_MS for n in reversed(range(STEPS))]
    found: dict[str, list[int]] = {}
    for n, at_ms in enumerate(begins):
        if at_ms not in kept or at_ms == last_ms:
            where = Filter(queue=queue, since_ms=at_ms, until_ms=at_ms + STEP_MS)
            kept[at_ms] = store.failure_groups(where=where)
        for group in combined(states, kept[at_ms]):
            found.setdefault(group.fingerprint, [0] * STEPS)[n] += group.count
    for at_ms in kept.keys() - set(begins[:-1]):
        del kept[at_ms]
    return found
