"""Queries of a store's messages, and triage verdicts on dead, quarantined and done ones."""

from __future__ import annotations

from enum import StrEnum
from operator import add
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from .message import Draft, Lane, Message, WaitFields

TREND_MS = 600_000  # deaths in this time are recent; the trend compares their rate with that in BEFORE_MS before
BEFORE_MS = 3_000_000  # with TREND_MS an hour


class Narrowing(Struct, frozen=True):
    """Which waiting messages are enough to read. It saves reading, and decides nothing: a store may read others too.

    `parked`: only messages in line for a place in their group (True), only others (False), or both (None). `group`: of
    those in line, only these. `due_ms`: only messages due between these two times, both included.
    """

    parked: bool | None = None
    group: str | None = None
    due_ms: tuple[int, int] | None = None


class Filter(Struct, frozen=True):
    """A filter of messages: every field that is not None must match, and a tuple matches by any value. `since_ms` and
    `until_ms` bound the time at which a message became dead or done; for other messages, that of the enqueue."""

    queue: str | tuple[str, ...] | None = None
    task: str | tuple[str, ...] | None = None
    reason: str | tuple[str, ...] | None = None
    fingerprint: str | tuple[str, ...] | None = None
    error: str | tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    redrives: int | None = None  # the exact number of redrives
    run: str | None = None  # the redrive run that last moved the message
    batch: str | tuple[str, ...] | None = None
    narrowing: Narrowing | None = None  # for waiting messages of one queue


class Ids(Struct, frozen=True):
    """Ids of messages with a common beginning, sorted. `whole` is False if the store examined only some messages."""

    found: tuple[str, ...] = ()
    whole: bool = True


class Page(Struct, frozen=True):
    """A page of a listing, oldest first. `cursor` leads to the next page; it is None on the last page."""

    messages: list[Message]
    cursor: str | None = None


class Counts(Struct, frozen=True):
    """The number of messages in each lane. In the ready lane, `parked` counts messages in line for a place in their
    group; of the others, `ready` counts due ones and `scheduled` those whose time is ahead. `oldest_age_s` is the time
    since the due time of the oldest in `ready`."""

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    quarantine: int = 0
    done: int = 0
    oldest_age_s: float = 0.0
    parked: int = 0

    @property
    def waiting(self) -> int:
        """The number of messages that wait: ready, scheduled and parked ones."""
        return self.ready + self.scheduled + self.parked


class DueCount(NamedTuple):
    """The number of waiting messages that become due within a span of time, and how many of these have failed before.
    If not `exact`, both are estimated from a sample, as there are too many messages to count in time."""

    all: int
    retries: int
    exact: bool = True


class BatchCounts(Struct, frozen=True):
    """The members of a batch by what became of them. Each member is counted once, so they add up to `total`.

    `duplicate` counts drafts whose unique key another message held: nothing waits for them. `discarded` counts dead
    members that were removed. `opened` counts how often a member was enqueued or redriven, and `died` how often one
    came to rest in the dead or quarantine lane; both only grow, so they tell two states with the same counts apart.
    """

    open: int = 0
    done: int = 0
    dead: int = 0
    quarantine: int = 0
    cancelled: int = 0
    discarded: int = 0
    duplicate: int = 0
    opened: int = 0
    died: int = 0

    def __add__(self, other: BatchCounts) -> BatchCounts:
        return BatchCounts(*map(add, astuple(self), astuple(other)))

    @property
    def total(self) -> int:
        """The number of all members, with the duplicates."""
        return self.open + self.done + self.failed + self.duplicate

    @property
    def failed(self) -> int:
        """The number of members that ended other than done: dead, quarantined, cancelled or discarded."""
        return self.dead + self.quarantine + self.cancelled + self.discarded


class BatchMark(NamedTuple):
    """A batch whose counts were looked at. `keep_ms`: forget the counts after this time, only for a batch without an
    open, dead or quarantined member; None: keep them."""

    id: str
    counts: BatchCounts
    keep_ms: int | None = None


class FailureGroup(Struct, frozen=True):
    """Dead messages that share a fingerprint and a task. With `trend`, `recent` of them died in the last ten minutes,
    and `earlier` in the fifty minutes before."""

    fingerprint: str
    task: str
    error: str
    text: str
    count: int
    first_ms: int
    last_ms: int
    sample_id: str
    recent: int = 0
    earlier: int = 0

    @property
    def hour(self) -> int:
        """The number of deaths in the last hour."""
        return self.recent + self.earlier

    @property
    def trend(self) -> str:
        """`rising` if the last ten minutes had more than 1.5 times as many deaths a minute as the fifty minutes before,
        `falling` for the reverse, `quiet` without deaths in the hour, otherwise `steady`."""
        before = self.earlier * TREND_MS / BEFORE_MS
        if not self.recent and not self.earlier:
            return "quiet"
        if self.recent > 1.5 * before:
            return "rising"
        return "falling" if before > 1.5 * self.recent else "steady"


class Group(Struct, frozen=True):
    """A group of a queue that has messages or a width of its own: how many of its `width` places are taken, how many
    messages are parked, and the dead message that blocks the group."""

    queue: str
    name: str
    width: int
    taken: int = 0
    parked: int = 0
    blocked_by: str | None = None


class GroupOrder(StrEnum):
    """The order of a queue's groups. `turns`: up to `width` messages at once; a message that must wait gives up its
    place. `strict`: one at a time in the order of enqueue; the first keeps its place through delays and retries."""

    TURNS = "turns"
    STRICT = "strict"


class OnDead(StrEnum):
    """The effect of the death of a strict group's first message: `skip` continues with the next message, `block` stops
    the group until the dead message is redriven or discarded, or the group is resumed."""

    SKIP = "skip"
    BLOCK = "block"


class Keep(Struct, frozen=True):
    """The bounds of a lane: keep the newest `count` messages, and none older than `age_ms`; None sets no bound."""

    count: int | None = None
    age_ms: int | None = None


class Cancel(StrEnum):
    """The result of cancelling one message."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    TOO_LATE = "too_late"
    UNKNOWN = "unknown"


# The verdicts: what triage does with a message that is dead, quarantined, done, redriven or waiting.


class Redrive(Struct, frozen=True):
    """Return the message to its queue (or `to_queue`) after `delay_ms`, with a fresh life of `attempts` (None: the
    policy's).

    `delays_ms`, one for each handle in order, are added to `delay_ms`. A kept done message can be redriven too, unless
    it was cancelled: it starts again without its result and checkpoint. A duplicate of its unique key does not prevent
    this.
    """

    to_queue: str | None = None
    delay_ms: int = 0
    attempts: int | None = None
    run: str | None = None
    keep_deadline: bool = False
    delays_ms: tuple[int, ...] = ()

    def delay_of(self, at: int) -> int:
        """Return the delay of the message with this index in the sequence of handles."""
        return self.delay_ms + (self.delays_ms[at] if self.delays_ms else 0)


class Discard(Struct, frozen=True):
    """Remove the message; its unique key becomes free. With `waive`, its batch counts it as done, not as discarded."""

    why: str
    waive: bool = False


class Isolate(Struct, frozen=True):
    """Move the message to the quarantine lane."""

    why: str


class Return(Struct, frozen=True):
    """Undo a redrive by run `run`: a message that has not run since (ready, no attempt, no crash) is dead again with
    its old fields. It leaves its group's line, unless it is still the head that blocked the group."""

    run: str


class Readmit(Struct, frozen=True):
    """Move the message from quarantine to the dead lane. After an isolation it gets its earlier reason back."""

    why: str


class Replace(Struct, frozen=True):
    """Discard the message and enqueue `draft` in its place, in one commit; for exactly one handle. A draft with the
    same unique key takes over the key and its expiry. If the message has moved, nothing is written, including the
    swaps."""

    draft: Draft
    why: str


class Before(Struct, frozen=True):
    """The fields that a redrive run or an isolation overwrites; they are stored with the message, to be restored."""

    lane: Lane
    redrives: int
    queue: str
    reason: str | None = None
    rested_ms: int | None = None
    attempt: int = 0
    crashes: int = 0
    crashes_alone: int = 0
    suspect: bool = False
    life_ms: int = 0
    held_ms: int = 0
    deadline_ms: int | None = None
    attempts_allowed: int | None = None
    fingerprint: str | None = None
    error: str | None = None
    run: str | None = None
    blocked: bool = False  # the message blocked its group
    expires_ms: int | None = None  # expiry of a done message with its result and checkpoint
    progress: bytes | None = None
    result: bytes | None = None


class Hasten(Struct, frozen=True):
    """Make a waiting (ready) message due now; nothing else of it changes. One that is due keeps its due time. In
    a group it joins the line, unless it is in line already; in a paused queue it stays held.

    With `run`, only one that is due later, and the message names the run from then on, with its attempts so far.
    """

    run: str | None = None


class Postpone(Struct, frozen=True):
    """Give waiting (ready) messages the due times `dues_ms`, one for each handle in order; nothing else changes.

    With `back` it undoes a Hasten or Postpone by run `run`: only a message that still names this run, which it then
    names no more. Otherwise only one that is due later, and the message names the run, as after a Hasten. In a group it
    leaves the line until it is due, and another takes its place; in a strict group it keeps both.
    """

    run: str
    dues_ms: tuple[int, ...]
    back: bool = False


class Edit(Struct, frozen=True):
    """Change waiting (ready) messages to `to`, one for each handle in order, or with `cancel` end them as cancelled,
    with their unique keys free. The message names `run` from then on, with its attempts so far. A member of a group
    gets another priority (and by it, unless the group is strict, another place in line) or deadline, or is cancelled;
    another queue or due time is refused.

    With `back` it undoes an Edit by run `run`: only a message that still names this run, which it then names no more.
    Then with `cancel`, one that was cancelled waits again, due at its `to.due_ms`, unless another message holds its
    unique key, or it is a member of a group or a batch, which have gone on without it.
    """

    run: str
    to: tuple[WaitFields, ...] = ()
    cancel: bool = False
    back: bool = False

    @property
    def lane(self) -> Lane:
        """The lane of the messages that it is for."""
        return Lane.DONE if self.back and self.cancel else Lane.READY

    def to_of(self, at: int) -> WaitFields:
        """Return what the message with this index in the sequence of handles is changed to."""
        return self.to[at] if self.to else WaitFields()


Verdict = Redrive | Discard | Isolate | Return | Readmit | Replace | Hasten | Postpone | Edit
