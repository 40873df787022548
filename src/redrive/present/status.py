"""Needs as records, and the state of a schedule in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..config import runbook_of
from ..duration import show as show_duration
from .formats import timestamp

if TYPE_CHECKING:
    from ..status import Need, ScheduleStatus


NEEDS_SHOWN, QUEUES_SHOWN = 100, 100  # the most in the text; JSON has the totals, and `queue list` all queues


def schedule_state(schedule: ScheduleStatus, now_ms: int) -> str:
    """Return the state of a schedule in a few words, with its lateness first."""
    if schedule.paused:
        return "paused"
    late = f"late {show_duration(schedule.late_ms / 1000)}" if schedule.late_ms is not None else ""
    if not schedule.unattended:
        return late or "on time"
    if schedule.seen_ms is None:
        seen = "no scheduler yet"
    else:
        seen = f"no scheduler for {show_duration((now_ms - schedule.seen_ms) / 1000)}"
    return f"{late}, {seen}" if late else seen


def need_record(need: Need, next: str) -> dict[str, Any]:
    """Return a need as a record for JSON and the pages. `next` is the whole next command; `runbook` is the page of the
    docs about it, as alerts have it."""
    return {
        "severity": need.severity,
        "area": need.area,
        "about": need.about or None,
        "text": need.text,
        "since": timestamp(need.since_ms),
        "until": timestamp(need.until_ms),
        "actor": need.actor or None,
        "reason": need.reason or None,
        "next": next,
        "runbook": runbook_of(need.area),
    }
