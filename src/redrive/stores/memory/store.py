"""The reference store: all data in this process's memory, under one lock, in plain Python.

It defines the behaviour of every store, which `redrive.testing.StoreContract` tests. The data ends with the process:
the store promises neither durability nor sharing.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...errors import StoreError, Unsupported
from ...fault import Fault
from ...message import (
    RESTING,
    BatchCounts,
    BatchMark,
    Cancel,
    Cell,
    ClaimRequest,
    Counts,
    Delivery,
    Draft,
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
    Replace,
    Settled,
    Settlement,
    Started,
    Swap,
    Verdict,
)
from ...store import Cells, Store, Traits
from .. import lifecycle, validation
from ..batches import STORED, has_failed, is_news, miscounted, state_of
from ..clock import wall_ms
from ..counts import counted
from ..failure_groups import grouped
from ..groups import PLACE
from . import writes
from .tables import Tables

SWEEP_EVERY_MS = 60_000
LOOK_EVERY_S = 0.01  # how often a waiting thread reads `clock_ms`, a clock set by hand


class MemoryStore(Store):
    """A store in memory, for tests and for trying things out, thread-safe.

    `clock_ms` replaces this machine's wall clock.
    """

    traits: Traits = Traits(
        name="memory",
        durable=False,
        one_machine=True,
        shared=False,
        batches=True,
        hastens=True,
        edits=True,
        takes_over=True,
        replaces=True,
    )  # fmt: skip
    state_dir: Path | None = None

    def __init__(self, clock_ms: Callable[[], int] | None = None) -> None:
        self._clock_ms = clock_ms or wall_ms
        self._look_every_s = LOOK_EVERY_S if clock_ms else threading.TIMEOUT_MAX
        self._changed = threading.Condition()
        self._tables = Tables()
        self._nudges, self._nudges_seen = 0, threading.local()
        self._swept_ms = self._clock_ms()
        self._closed = False
        self.cells: Cells = MemoryCells(self)

    def now_ms(self) -> int:
        return self._clock_ms()

    @contextmanager
    def _look(self) -> Iterator[tuple[Tables, int]]:
        """Lock the store; yield the tables and the time. Raises StoreError if the store is closed."""
        with self._changed:
            if self._closed:
                raise StoreError("this memory store is closed; open another")
            yield self._tables, self._clock_ms()

    @contextmanager
    def _commit(self) -> Iterator[tuple[Tables, int]]:
        """Lock the store; yield tables and time. Then commit and wake waiters, or undo all if the block raises."""
        with self._look() as (tables, now):
            try:
                yield tables, now
            except BaseException:
                tables.undo()
                raise
            tables.sweep_cells(now)
            tables.commit()
            self._changed.notify_all()

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        if tx is not None:
            raise Unsupported("this memory store has no transactions to write in; enqueue without tx=")
        validation.admit(drafts, self.traits)
        with self._commit() as (tables, now):
            puts = [writes.put(tables, draft, now) for draft in drafts]
            tables.admit(now)
            tables.swap_all(swaps, now)
            return puts

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        validation.admit((draft for s in settlements for draft in s.follow_ups), self.traits)
        with self._commit() as (tables, now):
            held = [tables.held(settlement.receipt) for settlement in settlements]
            waiting = {message.batch for message in held if message is not None and message.batch is not None}
            died = {batch: tables.counts_of(batch).died for batch in waiting}
            settled = [writes.settle(tables, settlement, now) for settlement in settlements]
            for settlement, word in zip(settlements, settled, strict=True):
                if word is Settled.OK:  # acks come first, so that a follow-up can use a key that an ack frees
                    for draft in settlement.follow_ups:
                        writes.put(tables, draft, now)
            tables.swap_all(swaps, now)
            tables.admit(now)
            deliveries: list[Delivery] = []
            clogged = frozenset(ask.queue for ask in asks if writes.claim(tables, ask, deliveries, now))
            if now - self._swept_ms >= SWEEP_EVERY_MS:
                tables.sweep(now)
                self._swept_ms = now
            counts = {batch: tables.counts_of(batch) for batch in waiting}
            news = (batch for batch, n in counts.items() if n.open == 0 or n.died > died[batch])
            return Exchange(settled, deliveries, clogged, batches=tuple(sorted(news)))

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        with self._commit() as (tables, now):
            return [writes.extend(tables, receipt, now + lease_ms, alone) for receipt in receipts]

    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        with self._commit() as (tables, now):
            released = lapsed = 0
            for seq, kept in [*tables.kept.items()]:
                message = kept.message
                if message.lane is not Lane.LEASED or message.worker != worker:
                    continue
                if started is None or (message.id, message.fence) in started:
                    tables.change(int(seq), lifecycle.lapsed(message, fault, now))
                    lapsed += 1
                else:
                    given_back = lifecycle.given_back(message, now)
                    tables.write(int(seq), kept._replace(message=given_back, alone=False))
                    released += 1
            return released, lapsed

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        with self._commit() as (tables, _):
            message = tables.held(receipt)
            if message is None:
                return False
            tables.change(int(receipt.handle), replace(message, progress=state))
            return True

    # -- waiting

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        end_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not self._closed and not self._nudged():
                due_s = (self._next_due_ms(asks) - self._clock_ms()) / 1000
                left_s = end_s - time.monotonic()
                if due_s <= 0 or left_s <= 0:
                    return
                self._changed.wait(min(left_s, due_s, self._look_every_s))

    def _nudged(self) -> bool:
        """True if there was a nudge that this thread has not seen; marks all nudges as seen by the thread."""
        seen = getattr(self._nudges_seen, "count", 0)
        self._nudges_seen.count = self._nudges
        return seen != self._nudges

    def _next_due_ms(self, asks: Sequence[ClaimRequest]) -> float:
        asks = [ask for ask in asks if ask.limit > 0]
        firsts = [due_ms for ask in asks for line in self._tables.lines(ask) for due_ms, _ in islice(line, 1)]
        firsts += [due_ms for ask in asks for due_ms in islice(self._tables.waiting(ask.queue), 1)]
        return min(firsts, default=float("inf"))

    def nudge(self) -> None:
        with self._changed:
            self._nudges += 1
            self._changed.notify_all()

    # -- queries

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        with self._look() as (tables, _):
            return [tables.message(id) for id in ids]

    def ids_from(self, first: str, last: str, *, limit: int) -> Ids:
        with self._look() as (tables, _):
            ids = (kept.message.id for kept in tables.kept.values())
            return Ids(tuple(sorted(id for id in ids if first <= id <= last)[:limit]))

    def counts(self, queue: str | None = None) -> Counts:
        with self._look() as (tables, now):
            messages = (kept.message for kept in tables.kept.values())
            return counted((message for message in messages if queue in (None, message.queue)), now)

    def counts_by_queue(self) -> dict[str, Counts]:
        with self._look() as (tables, now):
            queues: dict[str, list[Message]] = {name: [] for name in tables.settings}
            for kept in tables.kept.values():
                queues.setdefault(kept.message.queue, []).append(kept.message)
            return {queue: counted(messages, now) for queue, messages in queues.items()}

    def queues(self) -> list[str]:
        with self._look() as (tables, _):
            return sorted({kept.message.queue for kept in tables.kept.values()} | tables.settings.keys())

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        after = validation.read_cursor(cursor)
        with self._look() as (tables, _):
            places = sorted(
                (message.rested_ms or 0, int(seq))
                for seq, (message, fault, *_) in tables.kept.items()
                if lane in (None, message.lane) and lifecycle.matches(message, fault, where)
            )
            page = list(islice((place for place in places if place > after), limit))
            more = f"{page[-1][0]}.{page[-1][1]}" if page and page[-1] != places[-1] else None
            return Page([tables.kept[seq].message for _, seq in page], more)

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        with self._look() as (tables, now):
            dead = [(kept.message, kept.fault) for kept in tables.kept.values() if kept.message.lane is Lane.DEAD]
        deaths = (death for death in dead if lifecycle.matches(*death, where))
        return grouped(deaths, now if trend else None)

    def batch_counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        with self._look() as (tables, _):
            return [tables.counts_of(id) for id in ids]

    def batch_ids(self, *, after: str = "", limit: int = 100, failed: bool = False) -> list[str]:
        with self._look() as (tables, _):
            rows = tables.batches.items()
            return sorted(id for id, row in rows if id > after and (not failed or has_failed(row.counts)))[:limit]

    def changed_batches(self, *, after: str = "", limit: int = 100) -> list[str]:
        with self._look() as (tables, _):
            rows = tables.batches.items()
            return sorted(id for id, row in rows if row.changed and id > after and is_news(row.counts))[:limit]

    # -- administration

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        handles = validation.admit_verdict(handles, verdict, self.traits)
        with self._commit() as (tables, now):
            moved = [writes.judge(tables, handle, verdict, at, now) for at, handle in enumerate(handles)]
            if moved != [False] or not isinstance(verdict, Replace):
                tables.swap_all(swaps, now)
            tables.admit(now)
            return moved

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        messages = validation.admit_restored(messages, self.traits)
        with self._commit() as (tables, now):
            tables.swap_all(swaps, now)
            return [writes.restore(tables, message, now) for message in messages]

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        with self._commit() as (tables, now):
            tables.swap_all(swaps, now)
            words = {id: writes.cancel(tables, id, now) for id in dict.fromkeys(ids)}
            tables.admit(now)
            return [words[id] for id in ids]

    def mark_batches(self, marks: Sequence[BatchMark]) -> None:
        with self._commit() as (tables, now):
            for id, counts, keep_ms in marks:
                row = tables.batches.get(id)
                if row is not None and row.counts == counts:
                    tables.mark_batch(id, None if keep_ms is None else now + keep_ms)

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
        order, dead = validation.admit_settings(queue, group_width, group_order, on_dead)
        said = {"paused": paused, "width": group_width, "order": order, "on_dead": dead}
        with self._commit() as (tables, now):
            tables.configure(queue, {name: value for name, value in said.items() if value is not None}, now)
            tables.swap_all(swaps, now)
            tables.admit(now)

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
        with self._commit() as (tables, now):
            if width is not None:
                tables.set_width(queue, group, width)
            tables.swap_all(swaps, now)
            line = tables.groups.get((queue, group or ""))
            for seq in [*line.taken] if line is not None and resume else ():
                if tables.kept[seq].message.lane in RESTING:
                    tables.write(seq, tables.kept[seq]._replace(turn=None))
            tables.admit(now)

    def groups(self, queue: str) -> list[Group]:
        with self._look() as (tables, _):
            names = {name for (of, name), line in tables.groups.items() if of == queue and (line.taken or line.parked)}
            names |= {name for of, name in tables.own_widths if of == queue and name is not None}
            return [writes.group(tables, queue, name) for name in sorted(names, key=str.encode)]

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        with self._commit() as (tables, now):
            bounds = (Lane.DONE, done), (Lane.DEAD, dead)
            removed = [writes.retain(tables, queue, lane, keep, now) for lane, keep in bounds]
            tables.admit(now)
            return removed[0], removed[1]

    def paused(self) -> frozenset[str]:
        with self._look() as (tables, _):
            return frozenset(queue for queue, settings in tables.settings.items() if settings.paused)

    # -- checks

    def check(self) -> list[str]:
        with self._look() as (tables, _):
            alive = [kept for kept in tables.kept.values() if kept.message.lane in (Lane.READY, Lane.LEASED)]
            due = sum(kept.message.group is None or kept.turn == PLACE for kept in alive)
            stand = tables.in_line()
            problems = [] if due == stand else [f"{due} messages can become due, but {stand} stand in line"]
            problems += self._miscounted(tables)
            return problems + [
                f"queue {queue!r}, group {name!r}: a message is parked though a place is free"
                for (queue, name), line in tables.groups.items()
                if line.parked and len(line.taken) < tables.width(queue, name)
            ]

    def _miscounted(self, tables: Tables) -> list[str]:
        stored: defaultdict[tuple[str, str], int] = defaultdict(int)
        for message, *_ in tables.kept.values():
            if message.batch is not None:
                stored[message.batch, state_of(message)] += 1
        return [
            miscounted(id, field, counted, stored[id, field])
            for id, row in tables.batches.items()
            for field in STORED
            if (counted := getattr(row.counts, field)) != stored[id, field]
        ]

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        return []

    def doctor(self) -> list[str]:
        return []

    def info(self) -> dict[str, str | int]:
        return {"engine": "memory of this process"}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class MemoryCells:
    """The cells of a memory store, under the lock of its messages."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        with self._store._look() as (tables, now):
            return [tables.cell(key, now) for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        with self._store._commit() as (tables, now):
            return [tables.swap(swap, now) for swap in swaps]
