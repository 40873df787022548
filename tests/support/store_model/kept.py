"""A message as the model has it."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.fault import Fault
from redrive.message import Deferral, Draft, Lane


@dataclass(slots=True)
class Kept:
    """A message as the model has it; `order` counts what was ever accepted, so it is the order of putting.

    One of a group has a `place`, or a `number` in the line for one, or waits for its time."""

    order: int
    id: str
    sent: Draft
    queue: str
    enqueued_ms: int
    life_ms: int
    due_ms: int | None
    deadline_ms: int | None
    due_least_ms: int | None = None  # the store was free to choose a due time from here to `due_ms`
    lane: Lane = Lane.READY
    worker: str | None = None
    lapsed: bool = False  # its worker was released while it ran: the lease is nobody's
    lost: bool = False  # a lease of it ever ran out
    fence: int = 0
    attempt: int = 0
    crashes: int = 0
    crashes_alone: int = 0
    alone: bool = False  # it runs alone in its process
    suspect: bool = False
    redrives: int = 0
    cancel: bool = False
    held_ms: int = 0
    deferral: Deferral | None = None
    attempts_allowed: int | None = None
    run: str | None = None
    reason: str | None = None
    rested_ms: int | None = None
    progress: bytes | None = None
    faults: tuple[Fault, ...] = ()
    fatal: Fault | None = None  # what brought it to rest
    result: bytes | None = None
    place: bool = False
    number: int | None = None
    parked_ms: int = 0  # since when it has that number
    expires_ms: int | None = None  # from when on a done one may be forgotten
    batch: str | None = None
    member: bool = True  # of that batch, unless it was forgotten meanwhile
    opened: int = 0  # how often it became open there, and how often it died
    died: int = 0
    before: Kept | None = None  # as it was when a run redrove it, or when it was isolated

    def copy(self) -> Kept:
        """The same, to be changed apart; by far quicker than `dataclasses.replace`, and done before each call."""
        other = object.__new__(Kept)
        for name in Kept.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def keep_fault(self, fault: Fault) -> None:
        """The first ten and the last ten stay."""
        every = (*self.faults, fault)
        self.faults = every if len(every) <= 20 else every[:10] + every[-10:]

    @property
    def parked(self) -> bool:
        return self.sent.group is not None and self.lane is Lane.READY and not self.place

    def state_at(self, now: int) -> str:
        if self.lane is Lane.READY:
            return "ready" if not self.parked and self.due_ms is not None and self.due_ms <= now else "scheduled"
        return "cancelled" if self.reason == "cancelled" else self.lane.value

    def counted_at(self, now: int) -> str:
        """What the counts of its queue call it."""
        if self.lane is not Lane.READY:
            return self.lane.value
        if self.parked and self.number is not None:
            return "parked"
        return "ready" if (self.due_ms or 0) <= now else "scheduled"

    @property
    def counted_as(self) -> str:
        """What its batch counts it as while it is stored."""
        if self.lane in (Lane.READY, Lane.LEASED):
            return "open"
        return "cancelled" if self.reason == "cancelled" else self.lane.value

    def rest(self, lane: Lane, reason: str | None, now: int) -> None:
        self.lane, self.reason, self.rested_ms, self.due_ms, self.number = lane, reason, now, None, None
        self.deferral = None

    def rest_again(self, before: Kept, blocks: bool) -> None:
        """As before a redrive. It holds its line only if it did before and ever since, and its group still `blocks`."""
        self.place = blocks and self.place and before.place and before.queue == self.queue
        self.due_ms = self.due_least_ms = self.number = self.deferral = self.before = None
        for name in _BEFORE:
            setattr(self, name, getattr(before, name))
        if before.lane is Lane.DONE:
            self.progress = before.progress


_BEFORE = (
    *("lane", "redrives", "queue", "reason", "rested_ms", "attempt", "crashes", "crashes_alone", "lost", "suspect"),
    *("life_ms", "held_ms", "deadline_ms", "attempts_allowed", "fatal", "run", "expires_ms", "result"),
)
