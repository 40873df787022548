"""An exchange with a store: claims, receipts, decisions about deliveries, and their settlement."""

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
UNREADABLE = (MsgspecError, ValueError, RecursionError)  # raised when damaged or foreign bytes are decoded
SKIP_LOOKED = 1000  # due messages of one priority that a claim with `skip` examines


class ClaimRequest(Struct, frozen=True):
    """A request to claim at most `limit` due messages of `queue`, leased for `lease_ms` to `worker`, without the tasks
    in `skip`. With `skip` a store examines the first SKIP_LOOKED due messages of each priority, and no more (see
    Exchange). A skipped message of a group keeps its place there.

    `retries`: up to this number of the `limit` are first taken from due messages that have failed before (ready,
    `attempt` above 0), by due time; the rest by due time alone. So a retry does not wait for the whole backlog that was
    due before it. Priorities come first: retries lead within each priority.

    `lapsed_by_ms`: a lease that ran out after this time is left to its holder, which may have been unable to renew it
    (None: every lease that ran out may be claimed).
    """

    queue: str
    limit: int
    lease_ms: int
    skip: frozenset[str] = frozenset()
    worker: str = ""
    retries: int = 0
    lapsed_by_ms: int | None = None

    def leaves(self, lane: str, due_ms: int | None) -> bool:
        """True if a due message must be left to the worker that holds its lease (see `lapsed_by_ms`)."""
        return self.lapsed_by_ms is not None and lane == "leased" and (due_ms or 0) > self.lapsed_by_ms


class Receipt(NamedTuple):
    """Proof of one claim: the store's own handle of the message, and the claim's fence. Opaque outside the store."""

    handle: int | str
    fence: int


class Started(NamedTuple):
    """One run that a worker started: the id of the message, and the fence of the claim."""

    id: str
    fence: int


class Delivery(Struct, frozen=True, gc=False):
    """One claim of a message: the message to run, the receipt to settle it with, and the end of the lease. `due_ms` is
    when the message was due before this claim, or when the earlier lease ran out (0: unknown; a queue service may not
    report how long it delayed a message)."""

    message: Message
    receipt: Receipt
    until_ms: int
    due_ms: int = 0


# The decisions: what happens next to a delivered message. With counts=False the run gives its attempt back.


class Ack(Struct, frozen=True, gc=False):
    """The message is done: removed, or kept with its result in the done lane for `keep_ms` (None: until retention
    removes it). `degraded` says why its result is partial."""

    degraded: str | None = None
    keep_ms: int | None = 0


class RetryAt(Struct, frozen=True, gc=False):
    """The message returns to its queue, due at `at_ms`. `held`: flow control asked for the wait, so it does not count
    as elapsed time; `deferral` is stored with the message until its next settlement.

    `crashed`: the process of its run died, so `crashes` rises, and the attempt is given back whatever `counts` is; the
    next claim counts it again. `crashes_alone` rises too, unless others ran in that process (`in_company`).
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
        """Return the decision to retry after a failed run, which used up an attempt."""
        return cls(at_ms, why)

    @classmethod
    def deferred(cls, at_ms: int, why: str, deferral: Deferral | None = None) -> RetryAt:
        """Return the decision to defer the message, without using up an attempt or elapsed time."""
        return cls(at_ms, why, counts=False, held=True, deferral=deferral)

    @classmethod
    def released(cls, at_ms: int, why: str) -> RetryAt:
        """Return the decision after an uncounted run: given back by the worker, or put off by the handler."""
        return cls(at_ms, why, counts=False)

    @classmethod
    def after_crash(cls, at_ms: int, *, in_company: bool = False) -> RetryAt:
        """Return the decision after the process of the run died; `in_company`: other messages ran in that process."""
        return cls(at_ms, "crashed", crashed=True, in_company=in_company)


class DeadLetter(Struct, frozen=True, gc=False):
    """The message goes to the dead lane. `reason` is a fixed word (exhausted, permanent, …), `why` is free text."""

    reason: str
    why: str = ""
    counts: bool = True


class Quarantine(Struct, frozen=True, gc=False):
    """The message goes to the quarantine lane as poison, out of reach of bulk redrives. `crashed` and `in_company` are
    as in RetryAt, since the last run may be one of its crashes."""

    why: str = ""
    reason: str = "crashed"
    counts: bool = True
    crashed: bool = False
    in_company: bool = False


Decision = Ack | RetryAt | DeadLetter | Quarantine


RUNS_CELL = "runs"  # the cell that names the open redrive runs


class Swap(Struct, frozen=True, gc=False):
    """Set cell `key` to `value` if its version is still `version` (0: it must not exist). The value None deletes the
    cell; `ttl_ms=None` means no expiry."""

    key: str
    version: int
    value: bytes | None
    ttl_ms: int | None = None


class Cell(Struct, frozen=True, gc=False):
    """A cell as read: its bytes and its version, which is above 0, rises with every swap and is never reused."""

    version: int
    value: bytes


def version_of(cell: Cell | None) -> int:
    """Return the version that a swap must compare with: 0 without a cell."""
    return 0 if cell is None else cell.version


def decoded(cell: Cell | None, decode: Callable[[bytes], T], default: D) -> T | D:
    """Return the decoded value of a cell; the default without a cell, or if the cell is unreadable: damaged, or written
    by another version. For displays, which a damaged cell must not stop, and for values that are soon known again and
    then overwrite the cell. `redrive store check` reports such cells."""
    try:
        return default if cell is None else decode(cell.value)
    except UNREADABLE:
        return default


def required(key: str, cell: Cell | None, decode: Callable[[bytes], T], default: D) -> T | D:
    """Like `decoded`, for values that the caller acts on or changes. Raises Unreadable if the cell is unreadable, so
    that nothing overwrites the cell."""
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
    """The result of a settlement: `stale` if the receipt is not that of the current claim (nothing was changed),
    `cancelled` if a cancel was requested and the decision was not an ack."""

    OK = "ok"
    STALE = "stale"
    CANCELLED = "cancelled"


class Exchange(Struct, frozen=True):
    """The result of an exchange: a word for each settlement, in order, and the deliveries, in the requests' order.

    `clogged` lists queues in which a request with `skip` stopped after too many skipped messages: a request without
    `skip` reaches the messages behind them. `damaged` lists messages with unreadable rows, which were moved to the
    quarantine lane without stopping the exchange. `batches` lists batches with a settled member that have
    nothing open now, or lost a member to a death: `redrive.batch` decides what follows.
    """

    settled: list[Settled]
    deliveries: list[Delivery]
    clogged: frozenset[str] = frozenset()
    damaged: tuple[Message, ...] = ()
    batches: tuple[str, ...] = ()


class LeaseStatus(StrEnum):
    """The status of one lease, as `extend` returns it."""

    HELD = "held"
    LOST = "lost"
    CANCEL = "cancel_requested"
