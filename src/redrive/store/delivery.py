"""Delivery, the first part of a store: put messages, claim them, hold them, settle them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import Unsupported
from ..fault import Fault
from ..message import (
    ClaimRequest,
    Delivery,
    Draft,
    Exchange,
    LeaseStatus,
    PutResult,
    Receipt,
    Settlement,
    Started,
    Swap,
)
from .base import StoreBase


class DeliveryOperations(StoreBase):
    """What producers and workers call. A store writes `put`, `exchange`, `wait`, `nudge` and `extend`."""

    @abstractmethod
    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        """Write all drafts (and swaps) in one commit; durable when it returns.

        A draft whose unique key is held yields the holder, `duplicate=True`, and is not written. With `tx`, an open
        connection or session on the same database, they are written in its transaction: visible once it commits.
        Raises Conflict if a swap does not apply, EnqueueError for a draft that no store could take, Unsupported for a
        `tx` it cannot write in, a key (`traits.unique`) or swaps (`traits.cells`) it does not have, StoreError if the
        commit failed: then nothing was written. Without `traits.finds` an id is not looked up: a draft that is put
        twice is stored twice.
        """

    @abstractmethod
    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        """Settle all, then claim in the order of the asks: one commit. Either part may be empty.

        A settlement with a stale receipt changes nothing and says so; each other one is atomic with its follow-ups
        and swaps. Claiming raises `fence`, and `attempt` of a message that was ready or `crashes` of one whose lease
        ran out. Messages come by priority, then by due time; never more than the limit of an ask. Raises Conflict if
        one of `swaps` does not apply.

        Without `traits.atomic_moves` a settlement sends its follow-ups first, then makes its swaps, then deletes its
        message: interrupted in between, the message comes again, and nothing is lost. Swaps that do not apply at the
        beginning make the settlement stale all the same. A message that dies may then be found as `restore` would
        leave it.

        For an ask with `skip` it examines the first SKIP_LOOKED due messages of each priority. Where there are more,
        and those examined did not reach the limit, the queue is in `clogged`.
        """

    @abstractmethod
    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        """Return when one of the asks may find something, on nudge, or after `timeout_ms`. A put in another process
        ends it.

        For an ask with `skip` it examines as many messages as a claim does: it sleeps no longer than until the first
        message that it did not examine is due."""

    @abstractmethod
    def nudge(self) -> None:
        """End every wait of this store object, now or the next one."""

    @abstractmethod
    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        """Move the end of these leases to now + lease_ms, in one commit.

        `alone` says that from now on each of these runs alone in its process: a lease that then runs out, or lapses,
        raises `crashes_alone` too.
        """

    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        """Take back at once what a dead worker of this identity had claimed: (released, lapsed).

        A message in `started` lapses, if that is still its claim: the next claim counts a crash. The others are
        released, their attempt given back. None: it is not known what was started, so all lapse. `fault`, how the
        worker died, joins the history of each that lapses. Only the holder of the identity's lock may call this.
        Without `traits.releases` it takes nothing back: the leases run out.
        """
        return 0, 0

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        """Keep `state` with the message, fenced; False if the receipt is stale. Raises Unsupported without
        `traits.cells`."""
        raise Unsupported(f"{self.traits.name} keeps no checkpoints")

    # -- what a store may leave out

    def quiesce(self, queues: Collection[str] | None = None) -> None:
        """A worker claims no more from these queues (None: from any, as it drains): until the next claim, give back
        what was received and not claimed."""

    def on_notice(self, notify: Callable[[str, str], None]) -> None:
        """Call `notify` with a name and a text when something is odd that no call can raise, such as in a thread of
        the store."""

    def route(self, queue: str, route: str | tuple[str, ...] | Callable[[Any, Mapping[str, str]], str | None]) -> None:
        """Give messages of this queue that redrive did not write to a task: its name, the names that a sender may
        choose from, or a function of body and attributes that returns one. Without effect on a store that only redrive
        writes to."""

    def give_names(self, queue: str, *, sqs: str | None = None, dlq: str | None = None) -> None:
        """Use these names in SQS for a queue and its dead-letter queue. Without effect on another store."""

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str = "") -> list[Delivery]:
        """Take messages that a service received for this process, such as Lambda, and holds for `lease_ms`.

        They are settled as any others, but none is deleted: `let_go` says which of them the service is to delete. A
        message that is not due yet is put off, and is not among the deliveries. Raises Unsupported without `adopts`.
        """
        raise Unsupported(f"{self.traits.name} receives its messages itself")

    def let_go(self, handles: Collection[str]) -> set[str]:
        """Forget these adopted messages; returns those that are settled, for the service to delete."""
        return set()

    def delete_adopted(self, handles: Collection[str]) -> set[str]:
        """Delete those of these adopted messages that are settled, and return them; the others stay adopted."""
        return set()
