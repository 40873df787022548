"""An exchange with a store: claims and receipts, what is decided about each delivery, and its settlement."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

from msgspec import MsgspecError, Struct

from ..errors import Unreadable
from ..fault import Fault
from .message import Deferral, Draft, Message

T = TypeVar("T")
D = TypeVar("D")
UNREADABLE = (MsgspecError, ValueError, RecursionError)  # from decoding bytes that are damaged, or in another form
SKIP_LOOKED = 1000  # how many due messages of a priority a claim with `skip` examines


class ClaimRequest(Struct, frozen=True):
    """A request to claim at most `limit` due messages of `queue`, leased for `lease_ms` to `worker`, without those of
    a task in `skip`. With `skip` a store examines the first SKIP_LOOKED due messages of each priority, and no more (see
    Exchange). A skipped message of a group keeps its place there.

    `retries`: up to so many of the `limit` go first to due messages that have failed before (ready, `attempt` above 0),
    by due time; the rest go by due time alone. So a retry does not wait for the whole backlog that came due before it.
    Priorities come first: retries lead within each priority.

    `lapsed_by_ms`: a lease that ran out later than then is left to its holder, which may have had no way to renew it
    (None: every lease that ran out may be claimed)."""

    queue: str
    limit: int
    lease_ms: int
    skip: frozenset[str] = frozenset()
    worker: str = ""
    retries: int = 0
    lapsed_by_ms: int | None = None

    def leaves(self, lane: str, due_ms: int | None) -> bool:
        """Whether a message that is due is left to the holder of its lease."""
        return self.lapsed_by_ms is not None and lane == "leased" and (due_ms or 0) > self.lapsed_by_ms


class Receipt(NamedTuple):
    """Proof of one claim: the store's own handle and the fence of that claim. Opaque outside the store."""

    handle: int | str
    fence: int


class Started(NamedTuple):
    """A run that a worker began: the message, and the fence of the claim it was begun for."""

    id: str
    fence: int


class Delivery(Struct, frozen=True, gc=False):
    """One claim of a message: what to run, the receipt to settle it with, when the lease ends, and when the message was
    due before this claim, or the end of a lease that ran out (0: unknown; a queue service may not say how long it kept
    a message back)."""

    message: Message
    receipt: Receipt
    until_ms: int
    due_ms: int = 0


# Decisions: what happens next to a delivered message. counts=False gives the attempt back.


class Ack(Struct, frozen=True, gc=False):
    """Done: removed, or kept with its result in the done lane for `keep_ms` (None: until retention removes it).
    `degraded` says what it had to do without."""

    degraded: str | None = None
    keep_ms: int | None = 0


class RetryAt(Struct, frozen=True, gc=False):
    """Back to its queue, due at `at_ms`. `held` says that flow control asked for the wait, so it does not count as
    elapsed time; `deferral` is kept with the message until its next settlement.

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

    @classmethod
    def failed(cls, at_ms: int, why: str) -> RetryAt:
        """The run failed and is retried: it spends an attempt."""
        return cls(at_ms, why)

    @classmethod
    def deferred(cls, at_ms: int, why: str, deferral: Deferral | None = None) -> RetryAt:
        """Flow control, or the worker itself, puts it off: it spends neither an attempt nor elapsed time."""
        return cls(at_ms, why, counts=False, held=True, deferral=deferral)

    @classmethod
    def released(cls, at_ms: int, why: str) -> RetryAt:
        """Its run did not count: it is given back, or its handler asked for a later time."""
        return cls(at_ms, why, counts=False)

    @classmethod
    def after_crash(cls, at_ms: int, *, in_company: bool = False) -> RetryAt:
        """The process of its run died; `in_company`: others ran there."""
        return cls(at_ms, "crashed", crashed=True, in_company=in_company)


class DeadLetter(Struct, frozen=True, gc=False):
    """To the dead lane: `reason` is a fixed word (exhausted, permanent, …), `why` explains it to a person."""

    reason: str
    why: str = ""
    counts: bool = True


class Quarantine(Struct, frozen=True, gc=False):
    """To the quarantine lane: poison, out of reach of bulk redrives. `crashed` and `in_company` are those of
    RetryAt, as the last run may be one of its crashes."""

    why: str = ""
    reason: str = "crashed"
    counts: bool = True
    crashed: bool = False
    in_company: bool = False


Decision = Ack | RetryAt | DeadLetter | Quarantine


class Swap(Struct, frozen=True, gc=False):
    """Set cell `key` to `value` if its version is still `version` (0: it must not exist). The value None deletes it.
    `ttl_ms=None`: no expiry."""

    key: str
    version: int
    value: bytes | None
    ttl_ms: int | None = None


class Cell(Struct, frozen=True, gc=False):
    """A cell as read: its version (above 0, and higher with every swap of its key, never reused) and bytes."""

    version: int
    value: bytes


def version_of(cell: Cell | None) -> int:
    """Return the version that a swap of this cell compares with: 0 where there is no cell."""
    return 0 if cell is None else cell.version


def decoded(cell: Cell | None, decode: Callable[[bytes], T], default: D) -> T | D:
    """Return what a cell holds; the default where there is none, or where it cannot be read: its bytes are damaged, or
    another version wrote it in another form. For looks, which a damaged cell must not stop, and for what is soon known
    again: then the next change writes it again. `redrive store check` names it."""
    try:
        return default if cell is None else decode(cell.value)
    except UNREADABLE:
        return default


def required(key: str, cell: Cell | None, decode: Callable[[bytes], T], default: D) -> T | D:
    """As `decoded`, for what is acted on and changed. Raises Unreadable where it cannot be read, so that nothing
    overwrites it."""
    try:
        return default if cell is None else decode(cell.value)
    except UNREADABLE as error:
        raise Unreadable(
            f"cell {key!r} cannot be read ({error}); `redrive store check` names what is damaged"
        ) from None


class Settlement(Struct, frozen=True, gc=False):
    """The outcome of one claimed message, written in one commit."""

    receipt: Receipt
    decision: Decision
    fault: Fault | None = None
    follow_ups: tuple[Draft, ...] = ()
    result: bytes | None = None
    swaps: tuple[Swap, ...] = ()


class Settled(StrEnum):
    """The result of a settlement: `stale` when the receipt is not the current claim's (nothing was changed),
    `cancelled` when a cancel was asked for and the decision was not an ack."""

    OK = "ok"
    STALE = "stale"
    CANCELLED = "cancelled"


class Exchange(Struct, frozen=True):
    """The result of an exchange: one word per settlement, in order, and the deliveries, in the order of the requests.

    `clogged` are queues where a request with `skip` met so many skipped messages that it stopped: a request without
    `skip` reaches those behind them. `damaged` are messages whose rows could not be read: they were moved to the
    quarantine lane, and the rest of the exchange went on.
    """

    settled: list[Settled]
    deliveries: list[Delivery]
    clogged: frozenset[str] = frozenset()
    damaged: tuple[Message, ...] = ()


class LeaseStatus(StrEnum):
    """The status of one lease, as `extend` found it."""

    HELD = "held"
    LOST = "lost"
    CANCEL = "cancel_requested"
