"""Queues as records: how many messages are in each lane, and why those that wait do not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..message import Counts
from .holds import hold_record

if TYPE_CHECKING:
    from ..status import Hold

LANES = ("ready", "scheduled", "leased", "dead", "quarantine", "done")


def counts_record(counts: Counts) -> dict[str, Any]:
    """How many messages are in each lane, and how long the oldest has been due."""
    return {lane: getattr(counts, lane) for lane in LANES} | {"oldest_age_s": counts.oldest_age_s}


def queue_record(name: str, counts: Counts, *, paused: bool, holds: Sequence[Hold]) -> dict[str, Any]:
    """A queue, its counts, and the holds of its waiting messages."""
    held = [hold_record(hold) for hold in holds]
    return {"queue": name, **counts_record(counts), "paused": paused, "held": held}
