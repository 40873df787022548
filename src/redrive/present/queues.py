"""Queues as records: their counts, and why waiting messages do not run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..message import Counts

LANES = ("ready", "scheduled", "parked", "leased", "dead", "quarantine", "done")


def counts_record(counts: Counts) -> dict[str, Any]:
    """Return the number of messages in each lane, and the age of the oldest due message, as a record."""
    return {lane: getattr(counts, lane) for lane in LANES} | {"oldest_age_s": counts.oldest_age_s}


def lanes_shown(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the lanes to show as columns of a table of queues: `parked` only if a message is."""
    return LANES if any(row["parked"] for row in rows) else tuple(lane for lane in LANES if lane != "parked")


def queue_record(name: str, counts: Counts, *, paused: bool, held: Any) -> dict[str, Any]:
    """Return a queue with its counts as a record. `held` says why its messages wait: records, or a text for a table."""
    return {"queue": name, **counts_record(counts), "paused": paused, "held": held}
