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
    """Operations for producers and workers. A store must implement `put`, `exchange`, `wait`, `nudge` and `extend`."""

    @abstractmethod
    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        """Write all drafts (and swaps) in one commit; durable when it returns.

        A draft whose unique key is held yields the holder, `duplicate=True`, and is not written. A draft with a `batch`
        counts as an open member of it, or as a duplicate, in the same commit. With `tx`, an open connection or session
        on the same database, they are written in its transaction: visible once it commits. Raises Conflict if a swap
        does not apply, EnqueueError for a draft that no store could take, Unsupported for a `tx` it cannot write in, or
        a key (`traits.unique`), a batch (`traits.batches`) or swaps (`traits.cells`) it does not have, StoreError if
        the commit failed: then nothing was written. Without `traits.finds` ids are not checked: a draft that is put
        twice is stored twice.
        """

    @abstractmethod
    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        """Settle all, then claim in the order of the asks: one commit. Either part may be empty.

        A settlement with a stale receipt changes nothing and its result says so; each other one is atomic with its
        follow-ups and swaps. Claiming raises `fence`, and `attempt` of a message that was ready or `crashes` of one
        whose lease ran out. Messages come by priority, then by due time; never more than the limit of an ask. Raises
        Conflict if one of `swaps` does not apply.

        Without `traits.atomic_moves` a settlement sends its follow-ups first, then makes its swaps, then deletes its
        message: if it is interrupted in between, the message is delivered again, and nothing is lost. Swaps that do not
        apply at the beginning make the settlement stale all the same. A dead message may then be stored as `restore`
        stores it.

        For an ask with `skip`, a claim examines the first SKIP_LOOKED due messages of each priority. If more are due,
        and the claim got fewer messages than the limit from those that it examined, the queue is in `clogged`.
        """

    @abstractmethod
    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        """Return when a claim with one of the asks may return messages (also after a put in another process), on
        `nudge`, or after `timeout_ms`.

        For an ask with `skip`, the wait examines as many messages as a claim does. It also returns when the first
        message that it did not examine becomes due.
        """

    @abstractmethod
    def nudge(self) -> None:
        """End every `wait` of this store object that is in progress; if there is none, the next `wait` ends at once."""

    @abstractmethod
    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        """Move the end of these leases to now + lease_ms, in one commit.

        `alone`: from now on each of these messages runs alone in its process, so a lease that then runs out, or lapses,
        raises `crashes_alone` too.
        """

    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        """Take back at once the messages that a dead worker of this identity had claimed; returns the numbers of
        released and lapsed messages.

        A message in `started` lapses, if that is still its claim: the next claim counts a crash. The others are
        released, their attempt given back. With None, the started ones are unknown, so all lapse. `fault`, how the
        worker died, joins the history of each that lapses. Only the holder of the identity's lock may call this.
        Without `traits.releases` nothing is taken back: the leases run out.
        """
        return 0, 0

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        """Store `state` with the message; False if the receipt is stale. Raises Unsupported without `traits.cells`."""
        raise Unsupported(f"{self.traits.name} keeps no checkpoints")

    # -- operations that a store may leave out

    def quiesce(self, queues: Collection[str] | None = None) -> None:
        """Give back the messages of these queues (None: of all queues, as the worker drains) that were received from
        the service but not claimed, and receive no more until the next claim or wait."""

    def on_notice(self, notify: Callable[[str, str], None]) -> None:
        """Call `notify` with a notice's name and text for problems that no call can raise, as in a store's thread."""

    def route(self, queue: str, route: str | tuple[str, ...] | Callable[[Any, Mapping[str, str]], str | None]) -> None:
        """Route messages of this queue that other programs wrote to a task: its name, the names that a sender may
        choose from, or a function of body and attributes that returns one. No effect on a store that only redrive
        writes to."""

    def give_names(self, queue: str, *, sqs: str | None = None, dlq: str | None = None) -> None:
        """Use these names in SQS for a queue and its dead-letter queue. No effect on another store."""

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str = "") -> list[Delivery]:
        """Take messages that a service received for this process, such as Lambda, and holds for `lease_ms`.

        They are settled like others, but not deleted: `let_go` returns those that the service should delete. A message
        that is not due yet is deferred and not among the deliveries. Raises Unsupported without `adopts`.
        """
        raise Unsupported(f"{self.traits.name} receives its messages itself")

    def let_go(self, handles: Collection[str]) -> set[str]:
        """Forget these adopted messages; returns the handles of the settled ones, which the service should delete."""
        return set()

    def delete_adopted(self, handles: Collection[str]) -> set[str]:
        """Delete those of these messages that are settled, and return their handles. The others stay adopted."""
        return set()
