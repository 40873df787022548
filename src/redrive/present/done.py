"""Done messages that are deleted, by the records of the workers."""

from __future__ import annotations

from typing import Any

from ..history import DoneRecord
from .formats import milliseconds, seconds, timestamp


def done_record(done: DoneRecord) -> dict[str, Any]:
    return {
        "id": done.id,
        "task": done.task,
        "queue": done.queue,
        "state": "done",
        "done_at": timestamp(done.at_ms),
        "run_ms": done.ran_ms,
        "worker": done.worker,
    }


def done_text(record: dict[str, Any], age_ms: int) -> str:
    """Return the record as one line, for a message that was done `age_ms` ago."""
    when = f"{seconds(age_ms / 1000)} ago ({record['done_at']})"
    return (
        f"{record['id']}: {record['task']} in queue {record['queue']} is done, {when}; "
        f"it ran {milliseconds(record['run_ms'])} in worker {record['worker']}, and is deleted"
    )
