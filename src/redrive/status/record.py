"""The records that `app.status()` returns."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..duration import show
from ..message import Counts, FailureGroup
from ..schedule.lateness import ScheduleStatus
from ..triage.annotations import Annotation
from ..triage.redrive.run import RunView
from .hold import Hold
from .workers import WorkerStatus

PAGE, TICKET, NOTE = "page", "ticket", "note"  # severities of a need


class Need(Struct, frozen=True, kw_only=True):
    """Something that needs a person.

    `severity`: page (act now), ticket (today), or note (a person did it on purpose, and it lasts). `area` is the part
    of `redrive status` with the details; `about` is the subject, such as `queue/crm` or `run/ID`, and `place` are the
    parts of its page's address. `text` describes the need; `since_ms` is when it began, if known; `until_ms` is when it
    ends by itself, if a person set an end. `actor` and `reason` are set if a person caused it. `next` is the command to
    type next, without the program's name.
    """

    area: str
    text: str
    next: str
    severity: str = TICKET
    about: str = ""
    place: tuple[str, ...] = ()
    query: Mapping[str, str] = {}
    since_ms: int | None = None
    until_ms: int | None = None
    actor: str = ""
    reason: str = ""

    def line(self, now_ms: int) -> str:
        """Return the text of the need, with how long it has lasted and when it ends."""
        text = self.text
        if self.since_ms is not None and (past_s := (now_ms - self.since_ms) // 1000) > 0:
            text += f"; for {show(past_s)}"
        if self.until_ms is not None:
            text += f"; ends by itself in {show(max(0, self.until_ms - now_ms) // 1000)}"
        return text


class QueueStatus(Struct, frozen=True, kw_only=True):
    """A queue: its counts, and the holds of its first 200 waiting messages."""

    name: str
    counts: Counts
    paused: bool = False
    holds: tuple[Hold, ...] = ()


class Status(Struct, frozen=True, kw_only=True):
    """The state of a store at one moment. Times are ms of the store's clock.

    `needs` has the most important need first; it is empty if all is well. `workers` has the workers that hold leases
    and, if `tell` is true, all others that report themselves, idle ones too. `holds` are the reasons why messages do
    not run, over all queues. `failures` are the groups of dead messages, the largest first, with `annotations` by
    fingerprint. `schedules` are those of the app, late ones first. `runs` are the open redrive runs. `queues` are
    sorted by the age of their oldest due message, then by their dead messages. `holds` does not cover `unread` of the
    queues, as their messages were not read. `unread_batches` is true if there may be more batches that
    need a person than were read. `held` counts the dead messages that are held for a person, by fingerprint and task.
    `group_count` and `dead_by_task` also count the groups that `failures` leaves out.
    """

    at_ms: int
    needs: tuple[Need, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    tell: bool = False
    holds: tuple[Hold, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    annotations: Mapping[str, Annotation] = {}
    schedules: tuple[ScheduleStatus, ...] = ()
    runs: tuple[RunView, ...] = ()
    queues: tuple[QueueStatus, ...] = ()
    unread: int = 0
    unread_batches: bool = False
    held: Mapping[tuple[str, str], int] = {}
    group_count: int = 0
    dead_by_task: Mapping[str, int] = {}

    @property
    def ok(self) -> bool:
        return not self.needs
