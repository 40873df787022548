"""The store on AWS SQS: messages are in queues of SQS, dead letters and shared state in other engines.

SQS hides a received message for a while: that is the lease. SQS has no shared commit with other stores, so a settlement
writes everything else first, and deletes its message last. A crash leaves a duplicate, never a loss (`settle.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from ...codec import Routes, RouteTarget
from ...errors import ConfigError, StoreError, StoreUnavailable, Unsupported
from ...message import (
    RESTING,
    Cancel,
    ClaimRequest,
    Counts,
    Delivery,
    Draft,
    Edit,
    Exchange,
    FailureGroup,
    Filter,
    Group,
    GroupOrder,
    Handle,
    Hasten,
    Keep,
    Lane,
    LeaseStatus,
    Message,
    OnDead,
    Page,
    Postpone,
    PutResult,
    Receipt,
    Settlement,
    Swap,
    Verdict,
)
from ...store import OpenCells, Store, Usage, Work
from ...store.cells import Cells
from ...store.traits import Traits
from .. import validation
from ..clock import wall_ms
from ..counts import total
from ..failpoints import no_failpoint
from ..state_dir import state_dir
from .batch_moves import CountedBatches, SteppedMembers
from .batches import BatchCells
from .cells import (
    NO_EDIT,
    NO_HASTE,
    PAUSES_EVERY_S,
    BesideStores,
    QueuePauses,
    apply_swaps,
    check_swaps,
    need,
    traits_of,
)
from .claim import Adopting, Claims, SqsLeases
from .client import THREADS, Sqs
from .deletes import Deletes
from .in_flight import InFlightMessages
from .keys import TrackedSends
from .outbox import Outbox
from .preflight import Preflight, QueueFacts
from .put import Puts
from .queues import QueueDirectory
from .receive import THREADS as RECEIVERS
from .receive import Receivers
from .records import Records
from .search import UNSEEN, InFlightLimit, SqsCounts, SqsSearch
from .send import Sender, SendRequest
from .settle import Ending, Settlements, SqsSettling
from .steps import Steps
from .track import Track
from .triage import SqsTriage
from .url import SqsUrl


class SqsStore(CountedBatches):
    """Queues of SQS under one prefix.

    `clock_ms` replaces this machine's clock in tests. `triage` and `cells` replace those that the URL names, and are
    closed with the store; `open_store` and `open_cells` open the URL's. `requests` counts the calls to SQS by action.
    Raises ConfigError for an invalid URL, or if boto3 is not installed.
    """

    url: str
    prefix: str
    region: str
    triage_store: Store | None
    cells: Cells
    routes: Any
    blobs_place: str
    traits: Traits

    adopts = True
    sqs_queues: QueueDirectory

    def __init__(
        self,
        url: str,
        *,
        clock_ms: Callable[[], int] | None = None,
        triage: Store | None = None,
        cells: OpenCells | None = None,
        open_store: Callable[[str], Store] | None = None,
        open_cells: Callable[[str], OpenCells] | None = None,
    ) -> None:
        self.failpoint: Callable[[str], None] = no_failpoint  # tests set one that kills the process or raises
        at = SqsUrl.parse(url)
        self.at: SqsUrl = at
        self.url, self.prefix, self.region = url, at.prefix, at.region
        self._clock_ms = clock_ms or wall_ms
        self._tell_to: Callable[[str, str], None] | None = None
        self._sqs = Sqs(at.region, at.endpoint, connections=THREADS + RECEIVERS, boto3=at.boto3)
        self.state_dir: Path | None = state_dir(f"sqs/{at.endpoint_host or at.region}/{at.prefix}")
        self.requests: Counter[str] = self._sqs.requests
        self._beside = beside = BesideStores(at, triage, cells, open_store, open_cells)
        self.triage_store, self.cells, self.routes = beside.triage, beside.cells, Routes()
        self.blobs_place = f"sqs-{at.region}-{at.prefix}"  # prefix of this store's blobs in a shared blob storage
        self.traits = traits_of(at, cells=beside.some_cells is not None, triage=self.triage_store is not None)
        self._at_once = at.poll_s == 0  # True with short polls: a call then finishes all its work before it returns
        self._closed = False
        self.sqs_queues = QueueDirectory(self._sqs, at)
        self._make_parts()

    def _make_parts(self) -> None:
        at, queues, cells, triage = self.at, self.sqs_queues, self._beside.some_cells, self.triage_store
        now_ms, tell, failpoint = self.now_ms, self._tell, self._reached
        self._in_flight = in_flight = InFlightMessages()
        self._pauses = QueuePauses(cells)
        batches = None if cells is None else BatchCells(cells, prefix=at.prefix, now_ms=now_ms, failpoint=failpoint)
        self.batch_cells = batches
        self._track = track = Track(self.cells, now_ms=now_ms) if at.track else None
        tracked_sends = (
            None if track is None else TrackedSends(track, self.cells, triage, now_ms=now_ms, failpoint=failpoint)
        )
        self._triage = None if triage is None else SqsTriage(
            triage, self.send, tracked_sends, batches, owner=f"{at.region}/{at.prefix}",
            ordered=lambda queue: queues.of(queue).fifo, traits=self.traits, now_ms=now_ms, tell=tell,
        )  # fmt: skip
        self._records = records = Records(cells, self.routes, now_ms=now_ms)
        self._deletes = deletes = Deletes(self._sqs, now_ms=now_ms, tell=tell)
        self._receivers = receivers = Receivers(
            self._sqs, poll_s=at.poll_s, most=at.receivers, now_ms=now_ms, tell=tell,
            give_back=lambda queue, received: deletes.end(records.given_back(queue, received), last=True),
        )  # fmt: skip
        self._sender = sender = Sender(self._sqs, prefix=at.prefix, now_ms=now_ms)
        limit = InFlightLimit(queues, receivers, tell=tell)
        steps = Steps(at, queues, cells, triage, now_ms=now_ms, near_limit=limit.is_near)
        settling = SqsSettling(
            sender, queues, cells, triage, steps=steps, track=track, members=SteppedMembers(batches),
            failpoint=failpoint, tell=tell,
        )  # fmt: skip
        self._ending = ending = Ending(
            steps, in_flight, records, receivers, deletes, at_once=self._at_once, now_ms=now_ms, failpoint=failpoint
        )
        self._settlements = Settlements(
            queues, steps, settling, ending, in_flight, track=track, tracked_sends=tracked_sends, send=self.send
        )
        self._leases = leases = SqsLeases(self._sqs, in_flight, records, steps, ending, track=track, now_ms=now_ms)
        self._claims = claims = Claims(
            queues, receivers, records, leases, in_flight, steps, settling, ending, tracked=at.track, now_ms=now_ms
        )
        self._adopting = Adopting(queues, claims, in_flight, receivers, deletes, now_ms=now_ms)
        self._search = SqsSearch(in_flight, triage, track, batches)
        self._puts = Puts(
            self.send, tracked_sends, self._search, self.cells, self.traits, batches,
            routes=self.routes, now_ms=now_ms, failpoint=failpoint,
        )  # fmt: skip
        self._counting = SqsCounts(queues, receivers, in_flight, triage, now_ms=now_ms)
        self._preflight = Preflight(self._sqs, at, queues, cells=cells is not None, triage=triage is not None)

    def _reached(self, point: str) -> None:
        self.failpoint(point)

    @property
    def sqs(self) -> Sqs:
        return self._sqs

    @property
    def outbox(self) -> Outbox:
        """The outbox, which sends redriven messages back to SQS. Raises Unsupported without a triage store."""
        return need(self._triage).outbox

    def own_triage(self) -> None:
        self.outbox.own()

    @property
    def processed(self) -> int:
        """The number of messages that left their SQS queue for good in this process."""
        return self._ending.processed

    def usage(self) -> Usage:
        return Usage(self.requests + self._beside.requests(), self.processed)

    def now_ms(self) -> int:
        return self._clock_ms()

    def on_notice(self, notify: Callable[[str, str], None]) -> None:
        self._tell_to = notify

    def route(self, queue: str, route: RouteTarget) -> None:
        self.routes.add(queue, route)

    def give_names(self, queue: str, *, sqs: str | None = None, dlq: str | None = None) -> None:
        self.sqs_queues.give_names(queue, sqs=sqs, dlq=dlq)

    def _tell(self, about: str, text: str) -> None:
        if self._tell_to is not None:
            self._tell_to("sqs", f"{about}: {text}")

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        if tx is not None:
            raise Unsupported("SQS has no transactions to write in; enqueue without tx=")
        self._alive()
        if not drafts and swaps and self.triage_store is not None and self._beside.commits(swaps):
            return self.triage_store.put([], swaps=swaps)  # a redrive run needs one commit
        return self._puts.put(drafts, swaps)

    def _alive(self) -> None:
        if self._closed:
            raise StoreError("this SQS store is closed; open another")

    def send(self, messages: Sequence[Message]) -> list[StoreError | ConfigError | None]:
        """Send messages unchanged to their queues; returns for each its error, or None if SQS accepted it."""
        return self._sender.sent([SendRequest(self.sqs_queues.of(message.queue), message) for message in messages])

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        self._alive()
        follow_ups = [draft for s in settlements for draft in s.follow_ups]
        self._puts.check(follow_ups, bool(swaps) or any(s.swaps for s in settlements))
        try:
            self._settlements.check(settlements)
            check_swaps(self.cells, swaps)
            settled = self._settlements.settle(settlements)
            apply_swaps(self.cells, swaps)
            try:
                deliveries = self._claim(asks, patient=self._at_once or not settlements)
            except (StoreError, ConfigError):
                if not settlements:
                    raise
                deliveries = []  # the settlements count; the next claim raises this error
            return Exchange(settled, deliveries, batches=self._settlements.named())
        except ConfigError as error:
            if not self._receivers.received:
                raise
            raise StoreUnavailable(str(error)) from error  # the same settings worked when the worker began

    def _claim(self, asks: Sequence[ClaimRequest], *, patient: bool) -> list[Delivery]:
        if asks and self._triage is not None:
            if self._at_once:
                self._triage.outbox.pump(sum(ask.limit for ask in asks))
            else:
                self._triage.outbox.begin()
        paused = self.paused() if asks else frozenset()
        if paused:
            self._receivers.quiesce(paused)
        placed = [(ask, self.sqs_queues.of(ask.queue)) for ask in asks if ask.queue not in paused and ask.limit > 0]
        return self._claims.claim(placed, patient=patient)

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        words = self._leases.extend(receipts, lease_ms=lease_ms, alone=alone)
        self._claims.keep_unclaimed()
        return words

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        return self._records.checkpoint(self._in_flight.held.get(receipt), state)

    # -- messages that Lambda received

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str = "") -> list[Delivery]:
        return self._adopting.adopt(queue, raws, lease_ms=lease_ms, worker=worker)

    def let_go(self, handles: Collection[str]) -> set[str]:
        return self._adopting.let_go(handles)

    def delete_adopted(self, handles: Collection[str]) -> set[str]:
        return self._adopting.delete(handles)

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        self._claims.keep_unclaimed()
        paused = self.paused() if asks else frozenset()
        if paused.intersection(ask.queue for ask in asks):
            timeout_ms = min(timeout_ms, int(PAUSES_EVERY_S * 1000))
        queues = [self.sqs_queues.of(ask.queue) for ask in asks if ask.queue not in paused and ask.limit > 0]
        self._receivers.wait(queues, timeout_ms=timeout_ms)

    def nudge(self) -> None:
        self._receivers.nudge()

    def quiesce(self, queues: Collection[str] | None = None) -> None:
        self._receivers.quiesce(queues)

    # -- queries

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        self._alive()
        return self._search.find(ids)

    def counts(self, queue: str | None = None) -> Counts:
        if queue is None:
            return total([self.counts(name) for name in self.queues()])
        return self._counting.of(queue)

    def counts_by_queue(self) -> dict[str, Counts]:
        return {queue: self.counts(queue) for queue in self.queues()}

    def queues(self) -> list[str]:
        resting = [] if self.triage_store is None else self.triage_store.queues()
        return sorted({*self.sqs_queues.names(), *resting})

    def outgoing(self) -> dict[str, Counts]:
        return {} if self._triage is None else self._triage.outgoing()

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        validation.read_cursor(cursor)
        if lane not in RESTING:
            how = "by its state (--state dead)" if self.triage_store is not None else "where the URL has triage="
            raise Unsupported(f"{UNSEEN}; what is dead or in quarantine can be listed {how}")
        return need(self.triage_store).peek(lane, where=where, limit=limit, cursor=cursor)

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        return need(self.triage_store).failure_groups(where=where, trend=trend)

    # -- administration

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        if isinstance(verdict, Hasten | Postpone):
            raise Unsupported(NO_HASTE)
        if isinstance(verdict, Edit):
            raise Unsupported(NO_EDIT)
        return need(self._triage).judge(handles, verdict, swaps)

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        return need(self._triage).restore(messages, swaps)

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        self._alive()
        check_swaps(self.cells, swaps)
        done = self._search.cancel(ids)
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
        self.sqs_queues.check_configuration(queue, group_width, group_order, on_dead)
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
        validation.admit_names(queue, group)
        if width not in (None, 0, 1) or resume:
            raise Unsupported(f"queue {queue!r}: SQS has no widths of groups, and no group waits for a dead message")
        apply_swaps(self.cells, swaps)

    def groups(self, queue: str) -> list[Group]:
        raise Unsupported(f"queue {queue!r}: SQS does not say which groups a queue holds")

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        return (0, 0) if self._triage is None else self._triage.retain(queue, done, dead)

    def paused(self) -> frozenset[str]:
        return self._pauses.queues()

    # -- checks

    def check(self) -> list[str]:
        return [] if self.triage_store is None else self.triage_store.check()

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        return [] if self.triage_store is None else self.triage_store.repair(keep)

    def facts(self, queue: str) -> QueueFacts:
        """Return what SQS says of a queue of the app. Raises ConfigError for a missing queue, and StoreError."""
        return self._preflight.facts(queue, probe=True)

    def doctor(self) -> list[str]:
        return [*self._preflight.doctor(), *self._beside.doctor()]

    def preflight(self, works: Iterable[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        """Report as `Preflight.check` does. Opens the stores that the URL names first."""
        self._beside.open()
        return self._preflight.check([*works], advise=advise, function_s=function_s)

    def info(self) -> dict[str, str | int]:
        said: dict[str, str | int] = {"engine": f"SQS in {self.at.region}", "mode": self.at.mode.value}
        if self.triage_store is not None:
            said["dead letters"] = str(self.triage_store.info().get("engine", self.triage_store.traits.name))
        return said

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._triage is not None:
            self._triage.outbox.close()
        for queue, received in self._receivers.drop():
            self._deletes.end(self._records.given_back(queue, received), last=False)
        self._deletes.close()
        self._beside.close()
        self._sqs.close()
