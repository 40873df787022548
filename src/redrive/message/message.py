"""Messages: the draft to enqueue, the message as stored, and its lanes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from ..fault import Fault, member_of
from .labels import labels_in

PRIORITIES = (0, 1, 2, 3)  # 0 is served first
NORMAL = 2
DEGRADED = "degraded"  # reason of a done message that was kept and whose run had to do without a feature
JSON = "json"  # content of a message whose body redrive encoded
RAW = "raw"  # content of a message whose body no encoder of redrive wrote
BATCH_HEADER = "redrive-batch"  # header of a callback with the id of its batch
BATCH_NAME_HEADER = "redrive-batch-name"  # and with its name, for traces
ABSENT = "absent"  # content of a message that was read without its body
BLOB = "blob+json"  # content of a message whose body is a reference to a blob
SEALED = "sealed+"  # prefix of the content of a message with an encrypted body
ENVELOPE = b"\xd7rd1"  # prefix of encrypted bytes
HELD = "held"  # reason of a dead message that is held for a person: its policy says so once its retries are used up
DAMAGED = "damaged"  # reason of a message quarantined because its row is unreadable
REASONS = (  # why redrive itself lets a message die or quarantines it; an override may say other words
    "exhausted", "permanent", "elapsed", HELD, "deadline", "budget", "rejected", "unreadable", "unroutable", "crashed",
    "tampered", DAMAGED, "poison",
)  # fmt: skip
REASON_MAX = 255  # most characters of the reason of a dead message, as stores have it in indexes
UNWATCHED = "@-"  # in the field `run`, after the id of a run that does not await what becomes of the message
AFTER = "@"  # in the field `run`, between the id of a run that made the message due and the attempts that it had
FAULTS_KEPT_EACH_END = 10  # from each end of a message's history so many faults are kept


class Lane(StrEnum):
    """Where a message is. Delayed and retrying messages are `ready` with a due time ahead, called `scheduled`; those in
    line for a place in their group are `ready` too, called `parked`. An unknown lane was written by a newer version; it
    is kept and shown unchanged."""

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
    """A message to enqueue. `body` holds the bytes that the handler's codec reads; `content="raw"` means that no
    encoder of redrive wrote them."""

    task: str
    queue: str = "default"
    body: bytes = b"{}"
    content: str = JSON
    id: str | None = None  # a UUIDv7; the store makes one if None
    delay_ms: int = 0
    due_ms: int | None = None  # absolute due time; replaces delay_ms
    priority: int = NORMAL
    key: str | None = None  # unique per (task, key) until the message is done, cancelled or discarded
    key_for_ms: int = 0  # least time for which the key stays taken
    group: str | None = None
    deadline_ms: int | None = None
    keep_ms: int = 0  # ms for which the done message is kept with its result; 0: as the queue's retention says
    version: int = 1
    headers: Mapping[str, str] | None = None
    correlation_id: str | None = None  # None: the message's own id
    causation_id: str | None = None
    producer: str | None = None
    traceparent: str | None = None
    batch: str | None = None  # id of the batch that waits for the message
    waiting: bool = False  # the key is taken over from a message that does not wait: one that runs, died or is done
    replace: bool = False  # as `waiting`, and a message that waits with the key gets the content of this draft


class PutResult(Struct, frozen=True):
    """The id and state of the message that was put; with `duplicate`, of an earlier message with the draft's key. With
    `replaced` that message waited, and has the content of the draft now. `state` is `scheduled` for one that waits for
    its time, and for one that waits for a place in its group: a put does not sort a group's line, `job show` does."""

    id: str
    duplicate: bool = False
    state: str = "ready"
    replaced: bool = False


class Deferral(Struct, frozen=True):
    """Why flow control, or a pause of its task, defers a message, for people to read, and the permits granted to it for
    the deferred time.

    `why`: breaker, cool-down, ramp, budget, limit, concurrency, idempotency, pause; `by` names the dependency, queue or
    task. `passes`: permits granted for the time `at_ms`, each by the name of its control; opaque to other code.
    """

    why: str
    by: str = ""
    passes: tuple[str, ...] = ()
    at_ms: int = 0


class Damage(Struct, frozen=True, gc=False):
    """Why a message's row is unreadable, and the row itself, as columns from which the store can restore it."""

    why: str
    raw: Mapping[str, str] = {}


class WaitFields(NamedTuple):
    """How a message waits, as an Edit sees and changes it; a field that is None is neither compared nor changed. A
    `deadline_ms` of 0 is none."""

    queue: str | None = None
    priority: int | None = None
    deadline_ms: int | None = None
    due_ms: int | None = None

    @property
    def suits_groups(self) -> bool:
        """True if members of groups can be changed so: by priority and deadline alone."""
        return self.queue is None and self.due_ms is None


class Handle(NamedTuple):
    """A message as someone read it. A triage action is refused once the message has moved.

    With `fence` and `due_ms`, a Hasten by a run, a Postpone and an Edit are refused, too, once it was claimed or has
    another due time; with `wait`, an Edit also once it has another queue, priority or deadline.
    """

    id: str
    redrives: int
    lane: Lane
    fence: int | None = None
    due_ms: int | None = None
    wait: WaitFields | None = None


class Message(Struct, frozen=True, gc=False):
    """A message as stored.

    `attempt` counts the runs of its present life, `crashes` the leases that ran out unsettled in it, `fence` every
    claim ever. `life_ms` is when the present life began (first enqueue or last redrive), `held_ms` how long flow
    control deferred it in that life.
    """

    id: str
    task: str
    queue: str
    body: bytes
    correlation_id: str  # the message's own id, unless another was given
    lane: Lane = Lane.READY
    priority: int = NORMAL
    due_ms: int | None = None  # None at rest; a parked message has None or the earliest time
    fence: int = 0
    attempt: int = 0
    enqueued_ms: int = 0
    life_ms: int = 0
    worker: str | None = None  # the worker that has, or had, the lease
    producer: str | None = None
    crashes: int = 0
    crashes_alone: int = 0  # crashes while the message ran alone in its process
    redrives: int = 0
    suspect: bool = False  # its last run was cut off: it may have killed the worker; a counted run clears this
    cancel: bool = False  # a cancel was requested
    held_ms: int = 0
    deadline_ms: int | None = None
    attempts_allowed: int | None = None  # set by a redrive; None: the policy's
    version: int = 1
    key: str | None = None
    group: str | None = None
    run: str | None = None  # the run that last moved it: see `run_id`
    reason: str | None = None  # why the message is dead or done: exhausted, permanent, … or cancelled
    rested_ms: int | None = None  # time at which the message became dead, quarantined or done
    result: bytes | None = None
    progress: bytes | None = None
    content: str = JSON
    headers: Mapping[str, str] = {}
    causation_id: str | None = None
    traceparent: str | None = None
    keep_ms: int = 0
    batch: str | None = None  # id of the batch that waits for the message
    deferral: Deferral | None = None  # why the message waits now; a claim keeps it, every settlement replaces it
    parked: bool = False  # the message has no place in its group, and waits for its time or turn
    faults: tuple[Fault, ...] = ()  # faults, oldest first: the first and last ten
    damage: Damage | None = None  # set if the row is, or was, unreadable: then the other fields have what could be read
    in_line: bool = False  # parked and in its group's line; another parked message joins the line once it is due

    @property
    def handle(self) -> Handle:
        """The handle of the message in its present state, for a triage action."""
        return Handle(self.id, self.redrives, self.lane)

    @property
    def waiting_handle(self) -> Handle:
        """The handle of the waiting message, which also names its last claim and its due time."""
        return Handle(self.id, self.redrives, self.lane, self.fence, self.due_ms)

    @property
    def edit_handle(self) -> Handle:
        """The waiting handle of the message, which also names its queue, priority and deadline."""
        return self.waiting_handle._replace(wait=WaitFields(self.queue, self.priority, self.deadline_ms or 0))

    @property
    def run_id(self) -> str | None:
        """The id of the run that last moved the message."""
        return None if self.run is None else self.run.partition(AFTER)[0]

    @property
    def run_attempts(self) -> int:
        """The attempts that the message had in its present life when the run moved it: 0 after a redrive."""
        attempts = (self.run or "").partition(AFTER)[2]
        return int(attempts) if attempts.isdecimal() else 0

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the message, such as {"customer": "7"}."""
        return labels_in(self.headers)

    def state_at(self, now_ms: int) -> str:
        """Return the state to display: `parked` for a ready message that is in line in its group, `scheduled` for
        another whose time has not come, `cancelled` for a done message that a cancel ended."""
        if self.lane is Lane.READY and (self.in_line or (self.due_ms or 0) > now_ms):
            return "parked" if self.in_line else "scheduled"
        return "cancelled" if self.reason == "cancelled" else self.lane.value


class Job(Message, frozen=True, gc=False):
    """A message returned by `app.job`."""

    found_ms: int = 0  # time at which the message was read, by the store's clock

    @property
    def state(self) -> str:
        """The message's state at `found_ms`: ready, scheduled, parked, leased, dead, quarantine, done or cancelled."""
        return self.state_at(self.found_ms)


def is_closed(message: Message) -> bool:
    """True if the message's body, or the checkpoint that the handler needs, is still encrypted."""
    if message.content.startswith(SEALED):
        return True
    return message.progress is not None and message.progress.startswith(ENVELOPE)
