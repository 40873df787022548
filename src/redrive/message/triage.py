"""Queries of a store's messages, and what triage does with those that are dead, quarantined or done."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from .message import Draft, Lane, Message

TREND_MS = 600_000  # deaths within it are recent; the trend compares them with those of the while before
BEFORE_MS = 3_000_000  # how long that while is: together they are an hour


class Filter(Struct, frozen=True):
    """A filter of messages: every field that is not None must match, a tuple by any of its values. `since_ms` and
    `until_ms` bound when a message died or was done, or else when it was enqueued."""

    queue: str | tuple[str, ...] | None = None
    task: str | tuple[str, ...] | None = None
    reason: str | tuple[str, ...] | None = None
    fingerprint: str | tuple[str, ...] | None = None
    error: str | tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    redrives: int | None = None  # exactly so many
    run: str | None = None  # the redrive run that moved it last


class Ids(Struct, frozen=True):
    """Ids of messages that begin alike, sorted; `whole` is False where only some messages were looked through."""

    found: tuple[str, ...] = ()
    whole: bool = True


class Page(Struct, frozen=True):
    """Part of a listing, oldest first; `cursor` leads on, None at the end."""

    messages: list[Message]
    cursor: str | None = None


class Counts(Struct, frozen=True):
    """Messages by lane. Of those in the ready lane, `ready` are due and `scheduled` are not yet; `oldest_age_s` is that
    of the longest due one."""

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    quarantine: int = 0
    done: int = 0
    oldest_age_s: float = 0.0


class DueCount(NamedTuple):
    """How many waiting messages come due within a span of time, and how many of these have failed before. Not `exact`:
    estimated from a sample of the messages, as there are too many to count in time."""

    all: int
    retries: int
    exact: bool = True


class FailureGroup(Struct, frozen=True):
    """Dead messages that share a fingerprint. With `trend`, `recent` of them died in the last ten minutes, and
    `earlier` in the fifty before."""

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
        """How many died in the last hour."""
        return self.recent + self.earlier

    @property
    def trend(self) -> str:
        """`rising` or `falling` where the last ten minutes had more than one and a half times as many deaths a minute
        as the fifty before, or those as the ten, `quiet` where nothing died in the hour, else `steady`."""
        before = self.earlier * TREND_MS / BEFORE_MS
        if not self.recent and not self.earlier:
            return "quiet"
        if self.recent > 1.5 * before:
            return "rising"
        return "falling" if before > 1.5 * self.recent else "steady"


class Group(Struct, frozen=True):
    """A group that holds messages or a width of its own: how many of its `width` places are taken, how many messages
    are parked for one, and the dead message that blocks it."""

    queue: str
    name: str
    width: int
    taken: int = 0
    parked: int = 0
    blocked_by: str | None = None


class GroupOrder(StrEnum):
    """How a queue's groups are served. `turns`: up to `width` at once, a waiting message gives up its place. `strict`:
    one at a time in the order of enqueue; the head keeps its place through delay and retry."""

    TURNS = "turns"
    STRICT = "strict"


class OnDead(StrEnum):
    """What happens to a strict group when its head dies: `skip` continues with the next message, `block` holds the
    group until the dead message is redriven or discarded, or the group is resumed."""

    SKIP = "skip"
    BLOCK = "block"


class Keep(Struct, frozen=True):
    """How much of a lane to keep: the newest `count`, none older than `age_ms`; None sets no bound."""

    count: int | None = None
    age_ms: int | None = None


class Cancel(StrEnum):
    """The result of cancelling one message."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    TOO_LATE = "too_late"
    UNKNOWN = "unknown"


# Verdicts: what triage does with a message that is dead, quarantined or done, or was moved, or waits.


class Redrive(Struct, frozen=True):
    """Back to its queue (or `to_queue`) after `delay_ms` with a fresh life of `attempts` (None: the policy's).

    `delays_ms`, one for each handle in order, are added to `delay_ms`. A kept done message can be redriven too, unless
    it was cancelled: it starts again without its result and checkpoint. Its unique key does not matter.
    """

    to_queue: str | None = None
    delay_ms: int = 0
    attempts: int | None = None
    run: str | None = None
    keep_deadline: bool = False
    delays_ms: tuple[int, ...] = ()

    def delay_of(self, at: int) -> int:
        """Return the delay of the message with this index among the handles."""
        return self.delay_ms + (self.delays_ms[at] if self.delays_ms else 0)


class Discard(Struct, frozen=True):
    """Remove it; its unique key is free again."""

    why: str


class Isolate(Struct, frozen=True):
    """Move it to the quarantine lane."""

    why: str


class Return(Struct, frozen=True):
    """Undo a redrive of run `run`: messages that have not run since (ready, no attempt, no crash) are dead again,
    just as before. A message leaves its group's line, unless it is still the head that blocked it."""

    run: str


class Readmit(Struct, frozen=True):
    """Move it from quarantine to the dead lane. A message that an isolation moved has its earlier reason again."""

    why: str


class Replace(Struct, frozen=True):
    """Discard it and enqueue `draft` in its place, in one commit; for exactly one handle. A draft with the same unique
    key takes the key over, for as long as it was held. If the message has moved, nothing is written, not even the
    swaps."""

    draft: Draft
    why: str


class Before(Struct, frozen=True):
    """The fields that a redrive run or an isolation overwrites, kept with the message so that they can be restored."""

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
    blocked: bool = False  # it blocked its group
    expires_ms: int | None = None  # of a done message, as are its result and its checkpoint
    progress: bytes | None = None
    result: bytes | None = None


class Hasten(Struct, frozen=True):
    """Make a waiting message (ready) due now. One of a group joins its line, unless it is there already."""


Verdict = Redrive | Discard | Isolate | Return | Readmit | Replace | Hasten
