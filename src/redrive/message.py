"""The values a message is made of on its way: Draft, Message, Delivery, Decision, Settlement.

All are frozen. Times are integer milliseconds of the store's clock (Unix epoch). Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from .fault import Fault
from .fault.model import member_of

PRIORITIES = (0, 1, 2, 3)  # 0 is served first
NORMAL = 2
DEGRADED = "degraded"  # the reason of a kept message that was done without something
RAW = "raw"  # the content of a message whose body no encoder of redrive's wrote
ABSENT = "absent"  # the content of a message that was looked up where its body cannot be: it has none
BLOB = "blob+json"  # the content of a message whose body is a reference to a blob
SEALED = "sealed+"  # what the content of a message begins with whose body is encrypted
ENVELOPE = b"\xd7rd1"  # what encrypted bytes begin with
TREND_MS = 3_600_000  # how long the last while is by which the trend of a failure group is told
SKIP_LOOKED = 1000  # how many due messages of a priority a claim with `skip` looks at
DAMAGED = "damaged"  # the reason of a message that was set aside because its row cannot be read
FAULTS_KEPT_EACH_END = 10  # of a message's fault history: the first and the last ten


class Lane(StrEnum):
    """Where a message rests. Delayed, retrying and parked ones lie in `ready` with a due time ahead; counts call them
    `scheduled`. A word that is none of these is a newer version's: it is read and shown as it stands."""

    READY = "ready"
    LEASED = "leased"
    DEAD = "dead"
    QUARANTINE = "quarantine"
    DONE = "done"

    @classmethod
    def _missing_(cls, value: object) -> Lane | None:
        return member_of(cls, value)


RESTING = (Lane.DEAD, Lane.QUARANTINE)


class Draft(Struct, frozen=True, kw_only=True):
    """A message to be put. `body` is bytes as they shall arrive; `content="raw"` says no encoder of redrive's wrote
    it."""

    task: str
    queue: str = "default"
    body: bytes = b"{}"
    content: str = "json"
    id: str | None = None  # a UUIDv7; the store makes one if None
    delay_ms: int = 0
    due_ms: int | None = None  # absolute, wins over delay_ms
    priority: int = NORMAL
    key: str | None = None  # unique per (task, key) while the message is not done, cancelled or discarded
    key_for_ms: int = 0  # and at least that long
    group: str | None = None
    deadline_ms: int | None = None
    keep_ms: int = 0  # how long it is kept, with its result, once it is done; 0: as its queue's retention says
    version: int = 1
    headers: Mapping[str, str] | None = None
    correlation_id: str | None = None  # None: the message's own id
    causation_id: str | None = None
    producer: str | None = None
    traceparent: str | None = None


class Put(Struct, frozen=True):
    """What became of one draft: the message's id and state; `duplicate` when an earlier message holds its key."""

    id: str
    duplicate: bool = False
    state: str = "ready"


class Deferral(Struct, frozen=True):
    """Why flow control holds a message back, for people to read, and what it need not ask for when it comes back.

    `why`: breaker, cool-down, ramp, budget, limit, concurrency, idempotency; `by` names the dependency, queue or task
    whose it is. `passes`: what was granted for the time that it was put off to, `at_ms`, each by its control's name;
    opaque elsewhere.
    """

    why: str
    by: str = ""
    passes: tuple[str, ...] = ()
    at_ms: int = 0


class Damage(Struct, frozen=True, gc=False):
    """Why a message's row cannot be read, and the row as it was: by column what there is in it, as its store would take
    it back."""

    why: str
    raw: Mapping[str, str] = {}


class Message(Struct, frozen=True, gc=False):
    """A message as stored.

    `attempt` counts the runs of its present life, `crashes` the leases that ran out unsettled in it, `fence` every
    claim ever. `life_ms` is when the present life began (first enqueue or last redrive), `held_ms` how long of it
    flow control held it back.
    """

    id: str
    task: str
    queue: str
    body: bytes
    correlation_id: str  # its own id unless another was given
    lane: Lane = Lane.READY
    priority: int = NORMAL
    due_ms: int | None = None  # None while resting; while parked, None or when it may be due
    fence: int = 0
    attempt: int = 0
    enqueued_ms: int = 0
    life_ms: int = 0
    worker: str | None = None  # who holds, or held, the lease
    producer: str | None = None
    crashes: int = 0
    crashes_alone: int = 0  # those of its crashes that hit it while it ran alone in its process
    redrives: int = 0
    suspect: bool = False  # its last run was cut off, so it may be what kills workers; a counted run clears it
    cancel: bool = False  # a cancel was asked for
    held_ms: int = 0
    deadline_ms: int | None = None
    attempts_allowed: int | None = None  # set by a redrive; None: the policy's
    version: int = 1
    key: str | None = None
    group: str | None = None
    run: str | None = None  # the redrive run that moved it last
    reason: str | None = None  # why it rests: exhausted, permanent, … or cancelled
    rested_ms: int | None = None  # since when it rests
    result: bytes | None = None
    progress: bytes | None = None
    content: str = "json"
    headers: Mapping[str, str] = {}
    causation_id: str | None = None
    traceparent: str | None = None
    keep_ms: int = 0
    deferral: Deferral | None = None  # of its present wait; a claim leaves it, every settlement replaces it
    parked: bool = False  # it has no place in its group: it waits for its time, or its turn
    faults: tuple[Fault, ...] = ()  # oldest first; the first and last ten
    damage: Damage | None = None  # its row cannot be read, or could not: what stands here is what of it could

    @property
    def handle(self) -> Handle:
        """It as it is now, for a verdict."""
        return Handle(self.id, self.redrives, self.lane)

    def state(self, now_ms: int) -> str:
        """The word people read: `scheduled` for a ready message whose time or turn has not come, `cancelled` for a
        done one that never ran."""
        if self.lane is Lane.READY and (self.parked or (self.due_ms or 0) > now_ms):
            return "scheduled"
        return "cancelled" if self.reason == "cancelled" else self.lane.value


def is_closed(message: Message) -> bool:
    """Whether what its handler needs, its body or its checkpoint, is still encrypted."""
    if message.content.startswith(SEALED):
        return True
    return message.progress is not None and message.progress.startswith(ENVELOPE)


class Receipt(NamedTuple):
    """Proof of one claim: the store's own handle and the fence of that claim. Opaque outside the store."""

    handle: int | str
    fence: int


class Started(NamedTuple):
    """A run that a worker began: the message, and the fence of the claim it was begun for."""

    id: str
    fence: int


class Delivery(Struct, frozen=True, gc=False):
    """One claim of a message: what to run, the receipt to settle it with, and when the lease ends."""

    message: Message
    receipt: Receipt
    until_ms: int


# Decisions: what happens to a delivered message next. counts=False gives the attempt back.


class Ack(Struct, frozen=True, gc=False):
    """Done: removed, or kept with its result in the done lane for `keep_ms` (None: until retention removes it).
    `degraded` says what it had to do without."""

    degraded: str | None = None
    keep_ms: int | None = 0


class RetryAt(Struct, frozen=True, gc=False):
    """Back to its queue, due at `at_ms`. `held` says flow control asked for the wait, so it does not count as
    elapsed; `deferral` is kept with the message until its next settlement.

    `crashed` says that the process of its run died: `crashes` rises, and the attempt is given back, whatever `counts`
    says; the next claim counts it again. `crashes_alone` rises too, unless others ran in that process (`in_company`).
    """

    at_ms: int
    why: str = "retry"
    counts: bool = True
    held: bool = False
    deferral: Deferral | None = None
    crashed: bool = False
    in_company: bool = False


class DeadLetter(Struct, frozen=True, gc=False):
    """To the dead lane: `reason` is one of SPEC's words, `why` says it to a person."""

    reason: str
    why: str = ""
    counts: bool = True


class Quarantine(Struct, frozen=True, gc=False):
    """To the quarantine lane: poison, out of reach of bulk redrives. `crashed` and `in_company` as for RetryAt: the run
    that convicts is one of its crashes."""

    why: str = ""
    reason: str = "crashed"
    counts: bool = True
    crashed: bool = False
    in_company: bool = False


Decision = Ack | RetryAt | DeadLetter | Quarantine


class Swap(Struct, frozen=True, gc=False):
    """Set cell `key` to `value` if its version is still `version` (0: it must not exist). None deletes. ttl_ms=None:
    no expiry."""

    key: str
    version: int
    value: bytes | None
    ttl_ms: int | None = None


class Cell(Struct, frozen=True, gc=False):
    """A cell as read: its version (above 0, and higher with every swap of its key, never reused) and bytes."""

    version: int
    value: bytes


def version_of(cell: Cell | None) -> int:
    """What a swap compares with: the version of a cell as read, or 0 where there is none."""
    return 0 if cell is None else cell.version


class Settlement(Struct, frozen=True, gc=False):
    """What to do with one claimed message, all of it in one commit."""

    receipt: Receipt
    decision: Decision
    fault: Fault | None = None
    follow_ups: tuple[Draft, ...] = ()
    result: bytes | None = None
    swaps: tuple[Swap, ...] = ()


class Settled(StrEnum):
    """What a settlement came to: `stale` when the receipt is not the current claim's (nothing was changed),
    `cancelled` when a cancel was asked for and the decision was not an ack."""

    OK = "ok"
    STALE = "stale"
    CANCELLED = "cancelled"


class Ask(Struct, frozen=True):
    """A claim wanted: at most `limit` due messages of `queue`, leased for `lease_ms` to `worker`, none of a task in
    `skip`. With `skip` a store looks at the first SKIP_LOOKED due ones of each priority, and no further (see Exchange).
    A skipped message of a group keeps its place there.

    `retries`: of the `limit`, at most so many go first to messages that have failed before (ready, `attempt` above 0)
    and are due, in the order of their due times, and only the rest by due time alone. So a retry need not wait for the
    whole backlog that came due before it. Priorities stand above that: within each priority, retries go first."""

    queue: str
    limit: int
    lease_ms: int
    skip: frozenset[str] = frozenset()
    worker: str = ""
    retries: int = 0


class Exchange(Struct, frozen=True):
    """What an exchange gave: a word per settlement, in order, and the deliveries, in the asks' order.

    `clogged` are queues where an ask with `skip` found so many skipped ones in front that it looked no further: what
    lies behind them is reached by asking without `skip`. `damaged` are messages whose rows could not be read: they were
    set aside in the quarantine lane, and nothing else of the exchange was held up by them.
    """

    settled: list[Settled]
    deliveries: list[Delivery]
    clogged: frozenset[str] = frozenset()
    damaged: tuple[Message, ...] = ()


class Hold(StrEnum):
    """What extend found of one receipt."""

    HELD = "held"
    LOST = "lost"
    CANCEL = "cancel_requested"


class Cancel(StrEnum):
    """What cancel found of one id."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    TOO_LATE = "too_late"
    UNKNOWN = "unknown"


class Counts(Struct, frozen=True):
    """Messages by lane; `scheduled` are ready ones whose time has not come; `oldest_age_s` of the longest due ready
    one."""

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    quarantine: int = 0
    done: int = 0
    oldest_age_s: float = 0.0


class Where(Struct, frozen=True):
    """A filter for peek: every field that is not None must match, a tuple by any of its values. Times are of rest, or
    of enqueue where a message never rested."""

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


class Page(Struct, frozen=True):
    """Part of a listing, oldest first; `cursor` leads on, None at the end."""

    messages: list[Message]
    cursor: str | None = None


class FailureGroup(Struct, frozen=True):
    """Resting messages that share a fingerprint. Where its trend was asked for, `recent` of them came to rest in the
    last hour, and `earlier` in the hour before that."""

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
    def trend(self) -> str:
        """rising or falling where one hour has more than one and a half times the deaths of the other; steady; or
        quiet, where nothing died in both."""
        if not self.recent and not self.earlier:
            return "quiet"
        if self.recent > 1.5 * self.earlier:
            return "rising"
        return "falling" if self.earlier > 1.5 * self.recent else "steady"


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
    """How a queue's groups are served. `turns`: up to `width` at once, a waiting message gives its place up. `strict`:
    one at a time in the order of enqueue; the head keeps its place through delay and retry."""

    TURNS = "turns"
    STRICT = "strict"


class OnDead(StrEnum):
    """What the death of a strict group's head does: `skip` goes on with the next, `block` holds the group until the
    dead one is redriven or discarded, or the group is resumed."""

    SKIP = "skip"
    BLOCK = "block"


class Keep(Struct, frozen=True):
    """What may stay of a lane: the newest `count`, none older than `age_ms`; None bounds nothing."""

    count: int | None = None
    age_ms: int | None = None


class Handle(NamedTuple):
    """A resting message as it was seen; a verdict on it is refused once it has moved."""

    id: str
    redrives: int
    lane: Lane


class Before(Struct, frozen=True):
    """What a redrive by a run, or an isolation, takes from a message, kept beside it so that it can be given back."""

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
    blocked: bool = False  # it held its group's line
    expires_ms: int | None = None  # of a done one, as are its result and its checkpoint
    progress: bytes | None = None
    result: bytes | None = None


# Verdicts: what triage does with a message that rests, or was moved.


class Redrive(Struct, frozen=True):
    """Back to its queue (or `to_queue`) after `delay_ms` with a fresh life of `attempts` (None: the policy's).

    `delays_ms`, one for each handle, in their order, come on top of `delay_ms`. A kept done message can be redriven
    too, unless it was cancelled: it begins anew, without its result and checkpoint. Its unique key is not looked at.
    """

    to_queue: str | None = None
    delay_ms: int = 0
    attempts: int | None = None
    run: str | None = None
    keep_deadline: bool = False
    delays_ms: tuple[int, ...] = ()

    def delay_of(self, at: int) -> int:
        """How many milliseconds later the message of this handle, counted from 0, comes due."""
        return self.delay_ms + (self.delays_ms[at] if self.delays_ms else 0)


class Discard(Struct, frozen=True):
    """Remove it; its unique key is free again."""

    why: str


class Isolate(Struct, frozen=True):
    """Move it to the quarantine lane."""

    why: str


class Return(Struct, frozen=True):
    """Undo a redrive: what the run `run` moved, and what has not been run since (ready, no attempt, no crash), rests
    again just as it did before. It leaves its group's line, unless it is still the head that blocked it."""

    run: str


class Readmit(Struct, frozen=True):
    """From quarantine to the dead lane. What an isolation put there has the reason again that it died for."""

    why: str


class Replace(Struct, frozen=True):
    """Discard it and put `draft` instead, in one commit; for exactly one handle. Its unique key is the draft's, if that
    has the same, and stays held as long as it was to be. Where the handle does not hold, nothing is written, not even
    the swaps."""

    draft: Draft
    why: str


Verdict = Redrive | Discard | Isolate | Return | Readmit | Replace
