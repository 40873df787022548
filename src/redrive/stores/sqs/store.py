"""The SQS store: messages lie in queues of SQS, dead letters and shared state in a store and cells of other engines.

SQS hides a received message for a while: that is the lease. It commits nothing with anything else, so what has to be
elsewhere is sent first and the message deleted last: a crash leaves a duplicate, never a loss (`settle.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...codec import Routes
from ...errors import ConfigError, EnqueueError, StoreError, StoreUnavailable, Unsupported
from ...fault import Fault
from ...ids import new_id
from ...message import (
    RESTING,
    Ask,
    Cancel,
    Counts,
    Delivery,
    Draft,
    Exchange,
    FailureGroup,
    Group,
    GroupOrder,
    Handle,
    Hold,
    Keep,
    Lane,
    Message,
    OnDead,
    Page,
    Put,
    Receipt,
    Settlement,
    Started,
    Swap,
    Verdict,
    Where,
)
from ...store import Cells, OpenCells, Store, Work
from ...urls import split
from .. import lifecycle, validation
from ..clock import wall_ms
from ..counts import total
from ..failpoints import no_seam
from ..lazy import Later
from ..state_dir import state_dir
from .adopted import Adopted, Adopting
from .claim import Claims
from .client import THREADS, Sqs
from .counts import Counting
from .dead_letters import (
    NO_CELLS,
    NoCells,
    apply_swaps,
    check_swaps,
    need,
    with_triage,
)
from .deletes import Tail
from .end import Ending
from .exchange import Settlements
from .facts import Looks
from .fifo import Order
from .in_flight import Holding
from .in_flight_limit import Crowds
from .keys import Putting, Told
from .lease import Leases
from .outbox import Outbox
from .parts import cells_of, opened_cells, opened_store, traits_of
from .pauses import EVERY_S as PAUSES_EVERY_S
from .pauses import Pauses
from .queues import Queues
from .receive import THREADS as RECEIVERS
from .receive import Receivers
from .records import Records
from .search import Finding
from .send import Send, Sender
from .settle import Settling
from .track import Track
from .triage import Triage
from .url import SqsUrl

_UNSEEN = "SQS can look at no message that waits or runs in it"


class SqsStore:
    """Queues of SQS under one prefix.

    `clock_ms` replaces this machine's clock in tests; `triage` and `cells`, open already, stand for those that the URL
    names, and are closed with it. `requests` counts the calls of SQS, by action. Raises ConfigError for a URL that
    cannot be, or where boto3 is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        clock_ms: Callable[[], int] | None = None,
        triage: Store | None = None,
        cells: OpenCells | None = None,
    ) -> None:
        self.seam: Callable[[str], None] = no_seam  # tests put a function here that kills or fails at a named point
        self.at = at = SqsUrl.parse(url)
        self._clock_ms = clock_ms or wall_ms
        self._tell_to: Callable[[str, str], None] | None = None
        self._sqs = Sqs(at.region, at.endpoint, connections=THREADS + RECEIVERS, boto3=at.boto3)
        self.state_dir: Path | None = state_dir(f"sqs/{_place(at.endpoint) or at.region}/{at.prefix}")
        self.requests: Counter[str] = self._sqs.requests
        self.places = places = Queues(self._sqs, at)
        self.triage_store = rests = triage or (opened_store(at.triage) if at.triage else None)
        self._own_cells = cells or opened_cells(at.cells, at.region)
        self.cells: Cells = cells_of(self._own_cells, rests)
        kept = None if isinstance(self.cells, NoCells) else self.cells
        if at.track and kept is None:
            raise ConfigError(f"store URL {at.shown!r}: track=true needs a place for its records. {NO_CELLS}")
        self.routes = Routes()
        self.blobs_place = f"sqs-{at.region}-{at.prefix}"  # its part of a blob storage that others use too
        self.traits = traits_of(at, cells=kept is not None, triage=rests is not None)
        self._at_once = at.poll_s == 0  # with short polls a call does all it can before it returns
        self._closed = False

        now_ms, tell, seam = self.now_ms, self._tell, self._reached
        self._pauses = Pauses(kept)
        self._track = Track(self.cells, now_ms=now_ms) if at.track else None
        self._putting = (
            None if self._track is None else Putting(self._track, self.cells, rests, now_ms=now_ms, seam=seam)
        )
        self._triage = None if rests is None else Triage(
            rests, self.send, self._putting, place=f"{at.region}/{at.prefix}",
            ordered=lambda queue: places.of(queue).fifo, traits=self.traits, now_ms=now_ms, tell=tell,
        )  # fmt: skip
        self._holding, order, adopted = Holding(), Order(), Adopted()
        self._records = records = Records(kept, self.routes, now_ms=now_ms)
        self._tail = tail = Tail(self._sqs, now_ms=now_ms, tell=tell)
        self._receivers = receivers = Receivers(
            self._sqs, poll_s=at.poll_s, most=at.receivers, now_ms=now_ms, tell=tell,
            give_back=lambda place, received: tail.end(records.given_back(place, received), last=True),
        )  # fmt: skip
        self._sender = Sender(self._sqs, prefix=at.prefix, now_ms=now_ms)
        self._settling = settling = Settling(
            at, self._sender, places, kept, rests, track=self._track, now_ms=now_ms,
            crowded=Crowds(places, receivers, tell=tell).crowded, seam=seam, tell=tell,
        )  # fmt: skip
        self._ending = ending = Ending(
            settling, self._holding, order, records, receivers, tail, adopted,
            at_once=self._at_once, now_ms=now_ms, seam=seam,
        )  # fmt: skip
        self._settlements = Settlements(
            places, settling, ending, self._holding, track=self._track, putting=self._putting, send=self.send
        )
        self._leases = leases = Leases(
            self._sqs, self._holding, order, records, settling, ending, track=self._track, now_ms=now_ms
        )
        self._claims = Claims(
            places, receivers, records, leases, order, self._holding, settling, ending,
            tracked=at.track, now_ms=now_ms,
        )  # fmt: skip
        self._adopting = Adopting(adopted, places, self._claims, self._holding, receivers, tail, now_ms=now_ms)
        self._finding = Finding(self._holding, rests, self._track)
        self._counting = Counting(places, receivers, self._holding, rests, now_ms=now_ms)
        self._looks = Looks(self._sqs, at, places, cells=kept is not None, triage=rests is not None)

    def _reached(self, point: str) -> None:
        self.seam(point)

    @property
    def sqs(self) -> Sqs:
        """How SQS is called."""
        return self._sqs

    @property
    def outbox(self) -> Outbox:
        """The way back of what rests. Raises Unsupported where there is no triage store."""
        return need(self._triage).outbox

    @property
    def processed(self) -> int:
        """How many messages this process brought to their end."""
        return self._ending.processed

    def now_ms(self) -> int:
        return self._clock_ms()

    def listen(self, tell: Callable[[str, str], None]) -> None:
        """Have this called with the name of a notice and a text where something is odd."""
        self._tell_to = tell

    def _tell(self, about: str, text: str) -> None:
        if self._tell_to is not None:
            self._tell_to("sqs", f"{about}: {text}")

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[Put]:
        if tx is not None:
            raise Unsupported("SQS has no transactions to write in; enqueue without tx=")
        self._alive()
        if not drafts and swaps and self.triage_store is not None and (self._own_cells is None or with_triage(swaps)):
            return self.triage_store.put([], swaps=swaps)  # one commit, as runs need it
        self._admit(drafts)
        if swaps and not self.traits.cells:
            raise Unsupported(NO_CELLS)
        now = self.now_ms()
        messages = [lifecycle.enqueued(draft, draft.id or new_id(now), now) for draft in drafts]
        check_swaps(self.cells, swaps)
        self.seam("put")
        told = self._told(messages, drafts)
        self.seam("acknowledge")
        failed = [word for word in told if word is not None and not isinstance(word, str)]
        if failed:
            sent = len(told) - len(failed)
            raise type(failed[0])(f"{failed[0]}; {sent} of {len(told)} messages were sent, the others were not")
        apply_swaps(self.cells, swaps)
        states = self._states([word for word in told if isinstance(word, str)])
        return [
            Put(word, True, states[word]) if isinstance(word, str) else Put(message.id, state=message.state(now))
            for message, word in zip(messages, told, strict=True)
        ]

    def _told(self, messages: Sequence[Message], drafts: Sequence[Draft]) -> Sequence[Told]:
        if self._putting is None:
            return self.send(messages)
        self._putting.refuse_known([m for m, draft in zip(messages, drafts, strict=True) if draft.id is not None])
        return self._putting.put(messages, self.send, keys_for_ms=[draft.key_for_ms for draft in drafts])

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        """Of who holds a key; of one that is no more, and was to hold it longer, done."""
        now, found = self.now_ms(), self.find(ids) if ids else []
        return {id: "done" if one is None else one.state(now) for id, one in zip(ids, found, strict=True)}

    def _alive(self) -> None:
        if self._closed:
            raise StoreError("this SQS store is closed; open another")

    def _admit(self, drafts: Sequence[Draft]) -> None:
        validation.admit(drafts, self.traits)
        ids = Counter(draft.id for draft in drafts if draft.id is not None)
        if len(ids) < ids.total():
            raise EnqueueError(f"id {ids.most_common(1)[0][0]} is given twice in one call; nothing was sent")

    def send(self, messages: Sequence[Message]) -> list[StoreError | ConfigError | None]:
        """Send these messages, as they are, to their queues; what went wrong with each."""
        return self._sender.sent([Send(self.places.of(message.queue), message) for message in messages])

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[Ask], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        self._alive()
        self._admit([draft for s in settlements for draft in s.follow_ups])
        if not self.traits.cells and (swaps or any(s.swaps for s in settlements)):
            raise Unsupported(NO_CELLS)
        try:
            self._settlements.check(settlements)
            check_swaps(self.cells, swaps)
            settled = self._settlements.settle(settlements)
            apply_swaps(self.cells, swaps)
            try:
                return Exchange(settled, self._claim(asks, patient=self._at_once or not settlements))
            except (StoreError, ConfigError):
                if not settlements:
                    raise
                return Exchange(settled, [])  # what is settled is settled; the next claim says what is wrong
        except ConfigError as error:
            if not self._receivers.received:
                raise
            raise StoreUnavailable(str(error)) from error  # all was right when the worker began, and may be so again

    def _claim(self, asks: Sequence[Ask], *, patient: bool) -> list[Delivery]:
        if asks and self._triage is not None:
            if self._at_once:
                self._triage.outbox.pump(sum(ask.limit for ask in asks))
            else:
                self._triage.outbox.begin()
        paused = self.paused() if asks else frozenset()
        placed = [(ask, self.places.of(ask.queue)) for ask in asks if ask.queue not in paused and ask.limit > 0]
        return self._claims.claim(placed, patient=patient)

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[Hold]:
        return self._leases.extend(receipts, lease_ms=lease_ms, alone=alone)

    def release(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        return 0, 0  # nobody knows what a dead worker had: it comes back when its visibility ends

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        if not self.traits.cells:
            raise Unsupported(f"a checkpoint needs a place to be kept. {NO_CELLS}")
        held = self._holding.held.get(receipt)
        if held is None or not self._records.write(held, replace(held.kept, progress=state)):
            return False
        held.message = replace(held.message, progress=state)
        return True

    # -- what somebody else received

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str = "") -> list[Delivery]:
        """Deliveries of messages that somebody else received, as Lambda does for a function, and holds for `lease_ms`.

        They are settled as any others, but that none is deleted: `let_go` says which of them whoever received them is
        to delete. One whose time has not come is put off here, and is not among the deliveries.
        """
        return self._adopting.adopt(queue, raws, lease_ms=lease_ms, worker=worker)

    def let_go(self, handles: Collection[str]) -> set[str]:
        """Forget these adopted messages; those that nothing is left to be done with, once the others are hidden."""
        return self._adopting.let_go(handles)

    def delete_adopted(self, handles: Collection[str]) -> set[str]:
        """Delete now what nothing is left to be done with of these adopted messages; those others are as before."""
        return self._adopting.delete(handles)

    # -- waiting

    def wait(self, asks: Sequence[Ask], *, timeout_ms: int) -> None:
        paused = self.paused() if asks else frozenset()
        if paused.intersection(ask.queue for ask in asks):
            timeout_ms = min(timeout_ms, int(PAUSES_EVERY_S * 1000))
        places = [self.places.of(ask.queue) for ask in asks if ask.queue not in paused and ask.limit > 0]
        self._receivers.wait(places, timeout_ms=timeout_ms)

    def nudge(self) -> None:
        self._receivers.nudge()

    def hush(self) -> None:
        """A worker drains: until somebody asks again, what was received and not claimed is for others."""
        self._receivers.hush()

    # -- looking

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        self._alive()
        return self._finding.find(ids)

    def counts(self, queue: str | None = None) -> Counts:
        if queue is None:
            return total([self.counts(name) for name in self.queues()])
        return self._counting.of(queue)

    def counts_by_queue(self) -> dict[str, Counts]:
        return {queue: self.counts(queue) for queue in self.queues()}

    def queues(self) -> list[str]:
        resting = [] if self.triage_store is None else self.triage_store.queues()
        return sorted({*self.places.names(), *resting})

    def peek(
        self, lane: Lane | str | None, *, where: Where = Where(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        validation.read_cursor(cursor)
        if lane not in RESTING:
            how = "by its state (--state dead)" if self.triage_store is not None else "where the URL has triage="
            raise Unsupported(f"{_UNSEEN}; what is dead or in quarantine can be listed {how}")
        return need(self.triage_store).peek(lane, where=where, limit=limit, cursor=cursor)

    def failure_groups(self, *, where: Where = Where(), trend: bool = False) -> list[FailureGroup]:
        return need(self.triage_store).failure_groups(where=where, trend=trend)

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        return need(self._triage).judge(handles, verdict, swaps)

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        return need(self._triage).restore(messages, swaps)

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        if self._track is None:
            raise Unsupported(
                f"{_UNSEEN}, so none can be cancelled; let the handler ask whether its work is still wanted, or keep a "
                "record of each message: track=true in the store's URL"
            )
        self._alive()
        check_swaps(self.cells, swaps)
        done = self._finding.cancel(self._track, ids)
        apply_swaps(self.cells, swaps)
        return done

    def configure(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        group_width: int | None = None,
        group_order: GroupOrder | str | None = None,
        on_dead: OnDead | str | None = None,
        swaps: Sequence[Swap] = (),
    ) -> None:
        validation.admit_width(group_width, 1)
        order = validation.word(GroupOrder, group_order, "group_order")
        dead = validation.word(OnDead, on_dead, "on_dead")
        fifo = order is not None and self.places.of(queue).fifo
        wide, blocks = group_width not in (None, 1), dead is OnDead.BLOCK
        if wide or blocks or (order is not None and fifo != (order is GroupOrder.STRICT)):
            raise Unsupported(
                f"queue {queue!r}: SQS serves the groups of a FIFO queue (its name ends in .fifo) one message at a "
                "time, in order, and skips a dead one; a standard queue has no order, and no width"
            )
        check_swaps(self.cells, swaps)
        if paused is not None:
            self._pauses.set(queue, paused)
            self.nudge()
        apply_swaps(self.cells, swaps)

    def configure_group(
        self,
        queue: str,
        group: str | None,
        *,
        width: int | None = None,
        resume: bool = False,
        swaps: Sequence[Swap] = (),
    ) -> None:
        validation.admit_width(width, 0)
        validation.admit_group(group)
        if width not in (None, 0, 1) or resume:
            raise Unsupported(f"queue {queue!r}: SQS has no widths of groups, and no group waits for a dead message")
        apply_swaps(self.cells, swaps)

    def groups(self, queue: str) -> list[Group]:
        raise Unsupported(f"queue {queue!r}: SQS does not say which groups a queue holds")

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        return (0, 0) if self.triage_store is None else self.triage_store.retain(queue, done=done, dead=dead)

    def paused(self) -> frozenset[str]:
        return self._pauses.queues()

    # -- keeping

    def check(self) -> list[str]:
        return [] if self.triage_store is None else self.triage_store.check()

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        return [] if self.triage_store is None else self.triage_store.repair(keep)

    def doctor(self) -> list[str]:
        parts = [part for part in (self.triage_store, self._own_cells) if part is not None]
        return [*self._looks.doctor(), *(line for part in parts for line in part.doctor())]

    def vet(self, works: Sequence[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        """Why these works cannot be done, each line with the fix; with `advise` also what is doubtful. `function_s`:
        the timeout of a Lambda function that does them. Raises ConfigError for a queue that is not there, and what
        opening the stores of the URL raises."""
        for part in (self.triage_store, getattr(self._own_cells, "store", None)):
            if isinstance(part, Later):
                part.opened()
        return self._looks.vet(works, advise=advise, function_s=function_s)

    def about(self) -> dict[str, str | int]:
        said: dict[str, str | int] = {"engine": f"SQS in {self.at.region}", "mode": self.at.mode.value}
        if self.triage_store is not None:
            said["dead letters"] = str(self.triage_store.about().get("engine", self.triage_store.traits.name))
        return said

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._triage is not None:
            self._triage.outbox.close()
        for place, received in self._receivers.drop():
            self._tail.end(self._records.given_back(place, received), last=False)
        self._tail.close()
        for part in (self.triage_store, self._own_cells):
            if part is not None:
                part.close()
        self._sqs.close()


def _place(endpoint: str | None) -> str:
    """Where another endpoint is, without user and password: it names a folder."""
    return "" if endpoint is None else split(endpoint, "endpoint").hosts
