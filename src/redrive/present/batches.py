"""Batches and workflows as records and in words, and the steps of a workflow as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .formats import timestamp

if TYPE_CHECKING:
    from ..batch import BatchInfo, PartInfo


def batch_record(info: BatchInfo) -> dict[str, Any]:
    """Return a batch as a record: its state, its members by what became of them, which add up to `total`, and its
    parts, each after those that it waits for."""
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
        "per_s": None if info.per_s is None else round(info.per_s, 3),
        "eta_s": None if info.eta_s is None else round(info.eta_s, 1),
        "created_at": timestamp(info.created_ms),
        "ended_at": timestamp(info.ended_ms),
        "id": info.id,
        "parts": [_part_record(part) for part in info.parts],
    }


def _part_record(part: PartInfo) -> dict[str, Any]:
    counts = part.counts
    failed = {"dead": counts.dead, "quarantine": counts.quarantine, "cancelled": counts.cancelled}
    return {
        "name": part.name,
        "state": part.state.value,
        "kind": "batch" if part.nested else "step",
        "after": [*part.after],
        "total": counts.total,
        "open": counts.open,
        "done": counts.done,
        **failed,
        "discarded": counts.discarded,
        "id": part.id,
    }


def drawn(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each part's name, indented below the last of the steps that it begins after, and its record."""
    depth = dict[str, int]()
    for part in parts:
        depth[part["name"]] = level = 1 + max((depth[name] for name in part["after"]), default=-1)
        yield "   " * (level - 1) + ("└─ " if level else "") + part["name"], part


def states(info: BatchInfo) -> str:
    """Return the state of a batch and its counts in a few words."""
    counts = info.counts
    words = [f"{info.state.value}: {counts.done:,} of {counts.total:,} done"]
    names = ("open", "dead", "quarantine", "cancelled", "discarded", "duplicate")
    return ", ".join([*words, *(f"{count:,} {name}" for name in names if (count := getattr(counts, name)))])
