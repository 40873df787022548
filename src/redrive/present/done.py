"""Describe a message that was done and deleted, by what its worker noted."""

from __future__ import annotations

from typing import Any

from ..history import DoneRecord, read_done
from ..store import Store
from .formats import milliseconds, seconds, timestamp


def done_of(store: Store, id: str) -> DoneRecord | None:
    """Return what is known of this id as a done message; None if nothing is. Raises StoreError."""
    return read_done(store, [id]).get(id)


def done_record(done: DoneRecord) -> dict[str, Any]:
    record: dict[str, Any] = {"id": done.id, "task": done.task, "queue": done.queue, "state": "done"}
    return record | {"done_at": timestamp(done.at_ms), "run_ms": done.ran_ms, "worker": done.worker}


def done_text(done: DoneRecord, now_ms: int) -> str:
    """Return when and where it was done, and how long it ran, as a sentence without its id."""
    return (
        f"{done.task} in queue {done.queue} is done, {seconds((now_ms - done.at_ms) / 1000)} ago "
        f"({timestamp(done.at_ms)}); it ran {milliseconds(done.ran_ms)} in worker {done.worker}, and is deleted"
    )
