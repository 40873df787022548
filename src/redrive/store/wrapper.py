"""The base class of stores that wrap another one, such as those that encrypt or move large bodies to blobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..fault import Fault
from ..message import (
    BatchCounts,
    BatchMark,
    Cancel,
    ClaimRequest,
    Counts,
    Delivery,
    Draft,
    DueCount,
    Exchange,
    FailureGroup,
    Filter,
    Group,
    GroupOrder,
    Handle,
    Ids,
    Keep,
    Lane,
    LeaseStatus,
    Message,
    OnDead,
    Page,
    PutResult,
    Receipt,
    Settlement,
    Started,
    Swap,
    Verdict,
)
from ..store.base import LargeBodies
from ..store.cells import Cells
from ..store.traits import Traits
from . import Store
from .base import Usage
from .traits import Work


class StoreWrapper(Store):
    """A store that forwards every call to the wrapped store, `inner`. Subclasses override what they change."""

    traits: Traits
    cells: Cells
    state_dir: Path | None
    lock_file: Path | None
    box: Any
    large_bodies: LargeBodies | None
    blobs_place: str | None
    adopts: bool
    inner: Store

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.traits, self.cells = inner.traits, inner.cells
        self.state_dir, self.lock_file = inner.state_dir, inner.lock_file
        self.box, self.large_bodies, self.blobs_place = inner.box, inner.large_bodies, inner.blobs_place
        self.adopts = inner.adopts
        self.drive: Callable[[Callable[[], bool], float | None], None] | None = inner.drive

    @property
    def engine(self) -> Store:
        return self.inner.engine

    def usage(self) -> Usage | None:
        return self.inner.usage()

    def connect(self) -> None:
        self.inner.connect()

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def close(self) -> None:
        self.inner.close()

    # -- delivery

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        return self.inner.put(drafts, swaps=swaps, tx=tx)

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        return self.inner.exchange(settlements, asks, swaps=swaps)

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        self.inner.wait(asks, timeout_ms=timeout_ms)

    def nudge(self) -> None:
        self.inner.nudge()

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        return self.inner.extend(receipts, lease_ms=lease_ms, alone=alone)

    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        return self.inner.reclaim(worker, started, fault=fault)

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        return self.inner.checkpoint(receipt, state)

    def quiesce(self, queues: Collection[str] | None = None) -> None:
        self.inner.quiesce(queues)

    def on_notice(self, notify: Callable[[str, str], None]) -> None:
        self.inner.on_notice(notify)

    def route(self, queue: str, route: str | tuple[str, ...] | Callable[[Any, Mapping[str, str]], str | None]) -> None:
        self.inner.route(queue, route)

    def give_names(self, queue: str, *, sqs: str | None = None, dlq: str | None = None) -> None:
        self.inner.give_names(queue, sqs=sqs, dlq=dlq)

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str = "") -> list[Delivery]:
        return self.inner.adopt(queue, raws, lease_ms=lease_ms, worker=worker)

    def let_go(self, handles: Collection[str]) -> set[str]:
        return self.inner.let_go(handles)

    def delete_adopted(self, handles: Collection[str]) -> set[str]:
        return self.inner.delete_adopted(handles)

    # -- queries

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        return self.inner.find(ids)

    def ids_from(self, first: str, last: str, *, limit: int) -> Ids:
        return self.inner.ids_from(first, last, limit=limit)

    def counts(self, queue: str | None = None) -> Counts:
        return self.inner.counts(queue)

    def due_counts(self, queue: str, bounds_ms: Sequence[int]) -> list[DueCount]:
        return self.inner.due_counts(queue, bounds_ms)

    def counts_by_queue(self) -> dict[str, Counts]:
        return self.inner.counts_by_queue()

    def queues(self) -> list[str]:
        return self.inner.queues()

    def outgoing(self) -> dict[str, Counts]:
        return self.inner.outgoing()

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        return self.inner.peek(lane, where=where, limit=limit, cursor=cursor)

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        return self.inner.failure_groups(where=where, trend=trend)

    def batch_counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        return self.inner.batch_counts(ids)

    def batch_ids(self, *, after: str = "", limit: int = 100, failed: bool = False) -> list[str]:
        return self.inner.batch_ids(after=after, limit=limit, failed=failed)

    def changed_batches(self, *, after: str = "", limit: int = 100) -> list[str]:
        return self.inner.changed_batches(after=after, limit=limit)

    def groups(self, queue: str) -> list[Group]:
        return self.inner.groups(queue)

    def paused(self) -> frozenset[str]:
        return self.inner.paused()

    # -- administration

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        return self.inner.triage(handles, verdict, swaps=swaps)

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        return self.inner.restore(messages, swaps=swaps)

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        return self.inner.cancel(ids, swaps=swaps)

    def mark_batches(self, marks: Sequence[BatchMark]) -> None:
        self.inner.mark_batches(marks)

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
        settings: dict[str, Any] = {"group_width": group_width, "group_order": group_order, "on_dead": on_dead}
        self.inner.configure(queue, paused=paused, swaps=swaps, **settings)

    def configure_group(
        self,
        queue: str,
        group: str | None,
        *,
        width: int | None = None,
        resume: bool = False,
        swaps: Sequence[Swap] = (),
    ) -> None:
        self.inner.configure_group(queue, group, width=width, resume=resume, swaps=swaps)

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        return self.inner.retain(queue, done=done, dead=dead)

    def preflight(self, works: Iterable[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        return self.inner.preflight(works, advise=advise, function_s=function_s)

    def check(self) -> list[str]:
        return self.inner.check()

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        return self.inner.repair(keep)

    def doctor(self) -> list[str]:
        return self.inner.doctor()

    def info(self) -> dict[str, str | int]:
        return self.inner.info()
