"""Stores in memory that promise no more than a cloud queue does, and do no more than they promise.

Messages that wait or run lie in one MemoryStore, in no order and findable by nobody; what rests lies in another, whose
ready lane is what has not been sent back yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from redrive.errors import Conflict, Unsupported
from redrive.fault import Fault
from redrive.message import (
    RESTING,
    Ack,
    Cancel,
    Cell,
    ClaimRequest,
    Counts,
    Decision,
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
    RetryAt,
    Settled,
    Settlement,
    Started,
    Swap,
    Verdict,
)
from redrive.store import Store, Traits
from redrive.stores import lifecycle, validation
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock

TICK_MS = 1000
OUT = ClaimRequest("", 1000, 60_000)


class QueueLikeStore(Store):
    """With cells, and a store for what rests."""

    traits = Traits(
        "queue-like",
        durable=False,
        shared=False,
        fenced=False,
        atomic_moves=False,
        unique=False,
        takes_over=False,
        replaces=False,
        exact_counts=False,
        finds=False,
        cancels=False,
        keeps_done=False,
        priorities=False,
        skips=False,
        widths=False,
        releases=False,
        tick_ms=TICK_MS,
    )
    state_dir: Path | None = None

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._flow, self._rest = MemoryStore(clock), MemoryStore(clock)
        self._given: dict[str, tuple[int, str | None]] = {}  # what the flow is not told: priority and group
        self.cells: Any = self._rest.cells
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        return self._clock()

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        self._flow.wait(asks, timeout_ms=timeout_ms)

    def nudge(self) -> None:
        self._flow.nudge()

    def _tick(self, at_ms: int) -> int:
        """Rounded up to a whole tick from now."""
        left_ms = max(0, at_ms - self._clock())
        return self._clock() - (-left_ms // TICK_MS) * TICK_MS

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        if any(draft.key is not None for draft in drafts):
            raise Unsupported("this store knows no unique keys")
        self._check(swaps)
        validation.admit(drafts, self.traits)
        with self._lock:
            puts = self._flow.put([self._plain(draft) for draft in drafts], tx=tx)
            self._keep(drafts, puts)
        self._swap(swaps)
        return puts

    def _plain(self, draft: Draft) -> Draft:
        due_ms = self._tick(lifecycle.later(self._clock(), draft.delay_ms) if draft.due_ms is None else draft.due_ms)
        return replace(draft, due_ms=due_ms, priority=3 - draft.priority, group=None)

    def _keep(self, drafts: Sequence[Draft], puts: Sequence[PutResult]) -> None:
        for draft, put in zip(drafts, puts, strict=True):
            self._given[put.id] = draft.priority, draft.group

    def _check(self, swaps: Sequence[Swap]) -> bool:
        found = self.cells.read([swap.key for swap in swaps])
        fits = [swap.version == (cell.version if cell else 0) for swap, cell in zip(swaps, found, strict=True)]
        if not all(fits):
            raise Conflict("a cell had another version; nothing was written")
        return True

    def _swap(self, swaps: Sequence[Swap]) -> None:
        if swaps:
            self.cells.swap(swaps)

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        if any(draft.key is not None for s in settlements for draft in s.follow_ups):
            raise Unsupported("this store knows no unique keys")
        validation.admit((draft for s in settlements for draft in s.follow_ups), self.traits)
        with self._lock:
            self._check(swaps)
            settled = [self._settle(settlement) for settlement in settlements]
            self._swap(swaps)
            self._send_back()
            return Exchange(settled, [d for ask in asks for d in self._claim(ask)])

    def _claim(self, ask: ClaimRequest) -> list[Delivery]:
        if ask.queue in self.paused():
            return []
        lease_ms = self._tick(self._clock() + ask.lease_ms) - self._clock()
        given = self._flow.exchange([], [replace(ask, skip=frozenset(), lease_ms=lease_ms)]).deliveries
        return [replace(d, message=self._whole(d.message)) for d in given[::-1]]

    def _whole(self, message: Message) -> Message:
        priority, group = self._given.get(message.id, (message.priority, message.group))
        return replace(message, priority=priority, group=group)

    def _settle(self, settlement: Settlement) -> Settled:
        held = self._flow._tables.held(settlement.receipt)
        try:
            self._check(settlement.swaps)
        except Conflict:
            return Settled.STALE
        if held is None:
            return Settled.OK
        plain = [self._plain(draft) for draft in settlement.follow_ups]
        decision = self._decision(settlement.decision)
        if not isinstance(decision, Ack | RetryAt):
            message = lifecycle.decided(self._whole(held), decision, settlement.fault, self._clock())
            self._bury(message)
            decision = Ack()
        done = Settlement(settlement.receipt, decision, settlement.fault, tuple(plain))
        before = set(self._flow._tables.seqs)
        (word,) = self._flow.exchange([done], []).settled
        fresh = [id for id in self._flow._tables.seqs if id not in before]
        self._keep(settlement.follow_ups, [PutResult(id) for id in fresh])
        self._swap(settlement.swaps)
        return word

    def _decision(self, decision: Decision) -> Decision:
        if isinstance(decision, RetryAt):
            return replace(decision, at_ms=self._tick(decision.at_ms))
        return Ack() if isinstance(decision, Ack) else decision

    def _bury(self, message: Message) -> None:
        self._rest.restore([message])

    def _send_back(self) -> None:
        """What was redriven and is due goes back to its queue."""
        waiting = {m.id: m for m in self._rest.peek(Lane.READY, limit=1000).messages}
        for queue in self._rest.queues():
            left = self._rest.exchange([], [replace(OUT, queue=queue)]).deliveries
            for delivery in left:
                self._send(waiting[delivery.message.id])
            self._rest.exchange([Settlement(delivery.receipt, Ack()) for delivery in left], [])

    def _send(self, message: Message) -> None:
        self._given[message.id] = message.priority, message.group
        tables = self._flow._tables
        with self._flow._commit():
            tables.restore(replace(message, lane=Lane.READY, due_ms=self._clock(), group=None))

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        words = self._flow.extend(receipts, lease_ms=self._tick(self._clock() + lease_ms) - self._clock(), alone=alone)
        return [LeaseStatus.HELD if word is LeaseStatus.LOST else word for word in words]

    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        return 0, 0

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        return self._flow.checkpoint(receipt, state)

    # -- looking

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        held = [message and self._whole(message) for message in self._flow.find(ids)]
        return [
            mine if mine is not None and mine.lane is Lane.LEASED else rests
            for mine, rests in zip(held, self._rest.find(ids), strict=True)
        ]

    def counts(self, queue: str | None = None) -> Counts:
        return Counts()

    def counts_by_queue(self) -> dict[str, Counts]:
        return {queue: Counts() for queue in self.queues()}

    def queues(self) -> list[str]:
        return sorted({*self._flow.queues(), *self._rest.queues()})

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        validation.read_cursor(cursor)
        if lane not in RESTING:
            raise Unsupported("what waits or runs cannot be listed here")
        return self._rest.peek(lane, where=where, limit=limit, cursor=cursor)

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        return self._rest.failure_groups(where=where, trend=trend)

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        if isinstance(verdict, Hasten | Postpone | Edit):
            raise Unsupported("what waits cannot be made due here")
        return self._rest.triage(handles, verdict, swaps=swaps)

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        return self._rest.restore(messages, swaps=swaps)

    def cancel(self, ids: Sequence[str]) -> list[Cancel]:
        raise Unsupported("what waits or runs cannot be cancelled here")

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
        if group_width is not None or group_order is not None or on_dead is not None:
            raise Unsupported("this store has no widths and orders of groups")
        self._check(swaps)
        self._flow.configure(queue, paused=paused)
        self._swap(swaps)

    def configure_group(self, queue: str, group: str | None, *, width: int | None = None, resume: bool = False) -> None:
        validation.admit_width(width, 0)
        validation.admit_names(queue, group)
        raise Unsupported("this store has no widths of groups")

    def groups(self, queue: str) -> list[Group]:
        raise Unsupported("this store does not list groups")

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        return self._rest.retain(queue, dead=dead)

    def paused(self) -> frozenset[str]:
        return self._flow.paused()

    def check(self) -> list[str]:
        return self._rest.check()

    def doctor(self) -> list[str]:
        return []

    def info(self) -> dict[str, str | int]:
        return {"engine": "two memories"}

    def close(self) -> None:
        self._flow.close()
        self._rest.close()


class NoCells:
    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        return [None] * len(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        raise Unsupported("this store has no cells")


class BareStore(QueueLikeStore):
    """Without either."""

    traits = replace(QueueLikeStore.traits, name="bare", cells=False, triages=False, counts_crashes=False)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.cells = NoCells()

    def _check(self, swaps: Sequence[Swap]) -> bool:
        if swaps:
            self._no_cells()
        return True

    def _no_cells(self) -> NoReturn:
        raise Unsupported("this store has no cells")

    def _no_triage(self, *args: Any, **parts: Any) -> NoReturn:
        raise Unsupported("this store has none to look at what rests")

    def _whole(self, message: Message) -> Message:
        """A lease that ran out cannot be told from an attempt; what was told (`crashed`) is known."""
        whole = super()._whole(message)
        told = whole.crashes_alone
        return replace(whole, attempt=whole.attempt + whole.crashes - told, crashes=told, suspect=told > 0)

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        return super().extend(receipts, lease_ms=lease_ms)

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        if any(settlement.swaps for settlement in settlements):
            self._no_cells()
        return super().exchange(settlements, asks, swaps=swaps)

    def _bury(self, message: Message) -> None:
        pass

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        self._no_cells()

    def configure(self, queue: str, *, paused: bool | None = None, **parts: Any) -> None:
        super().configure(queue, **parts)
        if paused is not None:
            self._no_cells()

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        validation.read_cursor(cursor)
        self._no_triage()

    failure_groups: Callable[..., list[FailureGroup]] = _no_triage
    triage: Callable[..., list[bool]] = _no_triage
    restore: Callable[..., list[bool]] = _no_triage
