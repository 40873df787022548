"""Tasks as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .formats import timestamp

if TYPE_CHECKING:
    from ..triage.task_pauses import TaskState


def task_record(state: TaskState) -> dict[str, Any]:
    """Return a task as a record. `pattern` is set if a pattern paused it."""
    pause = state.paused
    return {
        "task": state.name,
        "queue": state.queue,
        "paused": pause is not None,
        "by": pause and pause.by,
        "until": None if pause is None else timestamp(pause.until_ms),
        "reason": pause and pause.reason,
        "since": None if pause is None else timestamp(pause.at_ms),
        "pattern": pause.name if pause is not None and pause.is_pattern else None,
    }
