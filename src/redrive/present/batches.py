"""Batches as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .formats import timestamp

if TYPE_CHECKING:
    from ..batch import BatchInfo


def batch_record(info: BatchInfo) -> dict[str, Any]:
    """Return a batch as a record: its state, and its members by what became of them, which add up to `total`."""
    counts = info.counts
    return {
        "state": info.state.value,
        "name": info.name,
        "total": counts.total,
        "open": counts.open,
        "done": counts.done,
        "dead": counts.dead,
        "quarantine": counts.quarantine,
        "cancelled": counts.cancelled,
        "discarded": counts.discarded,
        "duplicate": counts.duplicate,
        "episode": info.episode,
        "created_at": timestamp(info.created_ms),
        "ended_at": timestamp(info.ended_ms),
        "id": info.id,
    }
