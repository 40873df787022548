"""Run schedules in a test: the clock jumps to a tick, and the real scheduler enqueues it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ...enqueue import Task
from ...errors import ConfigError
from ...schedule import Schedule, Scheduler
from ..clock import ManualClock

if TYPE_CHECKING:
    from ...app import App


def jump_to_tick(schedule: Schedule, clock: ManualClock) -> datetime:
    """Enqueue missed ticks as the schedule's `missed=` says, jump to the next tick, enqueue it, and return its time."""
    scheduler = Scheduler(schedule.task.app)
    scheduler.put(scheduler.look([schedule]))
    coming = schedule.next()
    if not coming:
        raise ConfigError(f"schedule {schedule.name!r} has no tick to come")
    left_ms = round(coming[0].timestamp() * 1000) - clock.now_ms()  # datetimes ignore the change to summer time
    clock.advance(timedelta(milliseconds=left_ms))
    scheduler.put(scheduler.look([schedule]))
    return coming[0]


def find_schedule(apps: Sequence[App], wanted: Schedule | Task[..., Any] | str) -> Schedule:
    """Return the schedule that `wanted` names: a schedule itself, its name, or its task. Raises ConfigError if none or
    several match."""
    known = [schedule for app in apps for schedule in app.schedules.values()]
    matching = [one for one in known if wanted in (one, one.name) or wanted is one.task]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(repr(one.name) for one in matching or known) or "none"
    what = f"{wanted!r} has several schedules, name one" if matching else f"no schedule {wanted!r} in this test's apps"
    raise ConfigError(f"{what}; known: {names}")
