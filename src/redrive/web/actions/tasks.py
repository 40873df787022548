"""Pause and resume tasks."""

from __future__ import annotations

from ...present.tasks import task_record
from ..ask import Done, PageRequest


def pause(ask: PageRequest) -> Done:
    """Pause a task, or all that match a pattern, for a time or until it is resumed."""
    name = ask.needed("task")
    ask.app.pause_task(name, reason=ask.reason, for_=ask.text("for") or None, actor=ask.actor)
    return _done(ask, name, "is paused")


def resume(ask: PageRequest) -> Done:
    """End the pause of a task or a pattern."""
    name = ask.needed("task")
    ask.app.resume_task(name, reason=ask.text("reason"), actor=ask.actor)
    return _done(ask, name, "goes on")


def _done(ask: PageRequest, name: str, word: str) -> Done:
    state = ask.app.task_state(name)
    to = ("tasks",) if state.queue is None else ("tasks", name)  # a pattern has no page of its own
    return Done(f"Task {name} {word}.", to, task_record(state))
