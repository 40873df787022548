"""Queues as records: how many messages are in each lane, and why those that wait do not run."""

from __future__ import annotations

from typing import Any

from ..message import Counts

LANES = ("ready", "scheduled", "leased", "dead", "quarantine", "done")


def counts_record(counts: Counts) -> dict[str, Any]:
    """How many messages are in each lane, and how long the oldest has been due."""
    return {lane: getattr(counts, lane) for lane in LANES} | {"oldest_age_s": counts.oldest_age_s}


def queue_record(name: str, counts: Counts, *, paused: bool, held: Any) -> dict[str, Any]:
    """A queue, its counts, and what holds its waiting messages: `held`, as records, or in few words for a table."""
    return {"queue": name, **counts_record(counts), "paused": paused, "held": held}
