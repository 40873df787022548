"""Schedules: their times, in words and as a list, and the outcomes of their messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ...duration import show
from ...errors import Unsupported
from ...present.formats import timestamp
from ...present.schedules import schedule_record
from ...schedule import warning
from ...schedule.wording import words
from ...status import schedule_statuses
from ..ask import PageRequest, Record
from . import fields

if TYPE_CHECKING:
    from ...schedule import Schedule

NEXT = 5  # number of next times that a schedule shows
PAST_MAX = 50  # the most schedules whose last day is read


def schedules(ask: PageRequest) -> Record:
    """Return the app's schedules, late ones first; without an app, how to name one."""
    if ask.registry is None:
        why = "Schedules are declared in an app; a store alone does not know them."
        return {"missing": why, "schedules": [], "warning": None, "command": "redrive web --app tasks:app"}
    command = ask.command("schedule", "list")
    try:
        statuses = schedule_statuses(ask.registry, ask.store)
    except Unsupported as error:
        return {"missing": str(error), "schedules": [], "warning": None, "command": command}
    declared, now_ms = ask.registry.schedules, ask.store.now_ms()
    rows = []
    for n, status in enumerate(statuses):
        row = schedule_record(declared[status.name], status, now_ms)
        rows.append(row | _more(ask, declared[status.name], now_ms, with_past=n < PAST_MAX) | {"late": status.is_late})
    return {
        "missing": None,
        "schedules": rows,
        "warning": warning(ask.registry, ask.store) if ask.store.traits.cells else None,
        "command": command,
    }


def _more(ask: PageRequest, schedule: Schedule, now_ms: int, *, with_past: bool) -> Record:
    """Return the fields of a schedule that the command line's list omits."""
    return {
        "words": words(schedule.times) or None,
        "times": _times(schedule, now_ms),
        "past": _past(ask, schedule.task.name) if with_past else None,
        "jitter_s": schedule.jitter_ms / 1000 or None,
    }


def _times(schedule: Schedule, now_ms: int) -> list[Record]:
    """Return the next times of a schedule, each with a note if the zone's clocks change before it."""
    before = schedule.times.at(now_ms)
    times: list[Record] = []
    for at in schedule.next(NEXT, datetime.fromtimestamp(now_ms / 1000, UTC)):
        ms = round(at.timestamp() * 1000)
        times.append({"at": timestamp(ms), "local": at.isoformat(sep=" "), "note": _note(before, at)})
        before = at
    return times


def _note(before: datetime, at: datetime) -> str | None:
    earlier, later = before.utcoffset() or timedelta(), at.utcoffset() or timedelta()
    if earlier == later:
        return None
    way = "forward" if later > earlier else "back"
    return f"the clocks go {way} by {show(abs((later - earlier).total_seconds()))} before this one"


def _past(ask: PageRequest, task: str) -> Record | None:
    """Return the outcomes of the task's messages in the last day, by name; None without a history."""

    def read() -> dict[str, Any] | None:
        try:
            return dict(ask.app.history(None, task, since="24h").total.outcomes)
        except Unsupported:
            return None

    outcomes = ask.kept(f"schedule/{task}", read).value
    return None if outcomes is None else {name: outcomes.get(name, 0) for name in fields.OUTCOMES}
