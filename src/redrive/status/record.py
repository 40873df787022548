"""What `app.status()` returns, as values."""

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

    `severity`: page (now), ticket (today), or note: somebody did it on purpose, and it lasts. `area` of
    `redrive status` that has the details; `about` names the thing as `queue/crm` or `run/ID`, and `place` is the
    address of its page, in parts. `text` says what it is, `since_ms` since when, as far as that is known, and
    `until_ms` when it ends by itself, if somebody said so. `actor` and `reason` say who did it and why, if a person
    did. `next` is the command that leads on, without the program's name.
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
        """The text, with how long it has been so, and how long it will be."""
        text = self.text
        if self.since_ms is not None and (past_s := (now_ms - self.since_ms) // 1000) > 0:
            text += f"; for {show(past_s)}"
        if self.until_ms is not None:
            text += f"; ends by itself in {show(max(0, self.until_ms - now_ms) // 1000)}"
        return text


class QueueStatus(Struct, frozen=True, kw_only=True):
    """A queue: its counts, and what holds its waiting messages, of the first 200 that were read."""

    name: str
    counts: Counts
    paused: bool = False
    holds: tuple[Hold, ...] = ()


class Status(Struct, frozen=True, kw_only=True):
    """What is going on in a store, at one moment. Times are ms of the store's clock.

    `needs` lists what needs a person, what matters most first; all is well if it is empty. `workers` are those that
    `tell` that they are alive, idle ones included, or that hold leases; where they do not tell, an idle one is not
    seen. `holds` are what keeps messages from running, over all queues. `failures` are the groups of dead messages, the
    largest first, with `annotations` by fingerprint. `schedules` are those of the app, late ones first. `runs` are the
    open redrive runs. `queues` are sorted by the age of their oldest message that is due,
    then by what is dead in them; of `unread` more queues it was not read what holds their messages.
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

    @property
    def ok(self) -> bool:
        """Whether nothing needs a person."""
        return not self.needs
