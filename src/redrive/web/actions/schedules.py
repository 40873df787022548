"""Run, pause and resume schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import near_miss
from ..ask import Done, PageRequest, Problem

if TYPE_CHECKING:
    from ...schedule import Schedule


def run_now(ask: PageRequest) -> Done:
    """Enqueue one message of a schedule, outside its ticks."""
    schedule = _named(ask)
    ref = schedule.run(reason=ask.text("reason"), actor=ask.actor)
    record = {"schedule": schedule.name, "id": ref.id, "task": ref.task, "queue": ref.queue, "duplicate": ref.duplicate}
    text = f"Message {ref.id} holds the key of schedule {schedule.name}, so none was put." if ref.duplicate else (
        f"Message {ref.id} of schedule {schedule.name} is in queue {ref.queue}."
    )  # fmt: skip
    return Done(text, ("schedules",), record)


def pause(ask: PageRequest) -> Done:
    """Pause a schedule in all schedulers."""
    schedule = _named(ask)
    schedule.pause(reason=ask.text("reason"), actor=ask.actor)
    return Done(f"Schedule {schedule.name} is paused.", ("schedules",), {"schedule": schedule.name, "paused": True})


def resume(ask: PageRequest) -> Done:
    """Resume a schedule, whose `missed=` decides about missed ticks."""
    schedule = _named(ask)
    schedule.resume(reason=ask.text("reason"), actor=ask.actor)
    return Done(f"Schedule {schedule.name} goes on.", ("schedules",), {"schedule": schedule.name, "paused": False})


def _named(ask: PageRequest) -> Schedule:
    """Return the schedule that the form names. Raises Problem if there is none."""
    name = ask.needed("schedule")
    known = {} if ask.registry is None else ask.registry.schedules
    if name not in known:
        near = near_miss(name, list(known))
        why = f"did you mean {near!r}?" if near else f"known: {', '.join(known) or 'none, as no app is named'}"
        raise Problem(f"there is no schedule {name!r}", why, "open the page of schedules", 404)
    schedule: Schedule = known[name]
    return schedule
