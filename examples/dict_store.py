"""A store of your own: messages in a dict, made durable by a file. For one process at a time.

Each change works on a copy of the data, writes the copy to a new file and puts that in the place of the old one: a
change is whole or absent, also after a power cut. A commit takes time that grows with the number of messages. The steps
of a message's life come from `redrive.stores.lifecycle`, the checks of arguments from `redrive.stores.validation`.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from redrive.errors import Conflict, EnqueueError, StoreError, StoreUnavailable, Unsupported
from redrive.ids import new_id

from redrive.message import (  # isort: skip
    RESTING, Ack, Cancel, Cell, ClaimRequest, Counts, Delivery, Draft, Exchange, Filter, GroupOrder, Lane, LeaseStatus,
    Message, OnDead, Page, PutResult, Receipt, Settled, Settlement, Swap, version_of,
)  # fmt: skip
from redrive.store import Store, Traits
from redrive.stores import lifecycle, validation
from redrive.stores.counts import counted
from redrive.stores.retry_share import chosen

CANCELS = {None: Cancel.UNKNOWN, Lane.READY: Cancel.CANCELLED, Lane.LEASED: Cancel.REQUESTED}
DAY_MS = 86_400_000  # how long a cancelled message can still be found


class Row(Struct, frozen=True):
    """A stored message; `seq` is its place in the order of puts."""

    message: Message
    seq: int
    alone: bool = False  # whether its current claim runs alone


class CellRow(Struct, frozen=True):
    version: int
    value: bytes
    expires_ms: int | None


class Data(Struct):
    """All that is stored."""

    number: int = 0  # the last one given to a message or a version of a cell
    rows: dict[str, Row] = {}
    cells: dict[str, CellRow] = {}
    paused: dict[str, bool] = {}

    def copy(self) -> Data:
        return Data(self.number, self.rows.copy(), self.cells.copy(), self.paused.copy())

    def row(self, receipt: Receipt) -> Row | None:
        """The message while this is its current claim."""
        id, _, seq = str(receipt.handle).partition("/")
        row = self.rows.get(id)
        held = row is not None and str(row.seq) == seq and row.message.lane is Lane.LEASED
        return row if row is not None and held and row.message.fence == receipt.fence else None

    def cell(self, key: str, now: int) -> Cell | None:
        row = self.cells.get(key)
        is_live = row is not None and (row.expires_ms is None or row.expires_ms > now)
        return Cell(row.version, row.value) if row is not None and is_live else None

    def swap(self, swap: Swap, now: int) -> bool:
        if swap.version != version_of(self.cell(swap.key, now)):
            return False
        self.number += 1
        self.cells.pop(swap.key, None)
        if swap.value is not None:
            self.cells[swap.key] = CellRow(self.number, swap.value, None if swap.ttl_ms is None else now + swap.ttl_ms)
        return True

    def swap_all(self, swaps: Sequence[Swap], now: int) -> None:
        for swap in swaps:
            if not self.swap(swap, now):
                raise Conflict(f"cell {swap.key!r} is not at version {swap.version}; nothing was written")

    def put(self, draft: Draft, now: int) -> PutResult:
        if draft.key is not None:
            raise Unsupported("this store has no unique keys")
        id = draft.id or new_id(now)
        if id in self.rows:
            raise EnqueueError(f"a message with id {id} is already stored; nothing was written")
        self.number += 1
        message = lifecycle.enqueued(draft, id, now)
        self.rows[id] = Row(message, self.number)
        return PutResult(id, state=message.state_at(now))


class DictStore(Store):
    """A store in the file at `path`. `clock_ms` replaces the wall clock in tests. Raises StoreUnavailable where the
    file cannot be opened, or another process has it."""

    traits = Traits(
        "dict", one_machine=True, shared=False, unique=False, widths=False, keeps_done=False, triages=False,
        releases=False, skips=False,
    )  # fmt: skip

    def __init__(self, path: str | os.PathLike[str], clock_ms: Callable[[], int] | None = None) -> None:
        self.path, self._clock_ms = Path(path).absolute(), clock_ms
        self._changed = threading.Condition(threading.RLock())
        self._nudges, self._seen = 0, threading.local()
        try:
            self._lock_file = self.path.with_name(f"{self.path.name}-lock").open("ab")
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock_file.close()
            raise StoreUnavailable(f"another process has {self.path} open") from error
        except OSError as error:
            raise StoreUnavailable(f"cannot open {self.path}: {error}") from error
        exists = self.path.exists()
        self._data = msgspec.msgpack.decode(self.path.read_bytes(), type=Data) if exists else Data()
        self.cells = DictCells(self)

    def now_ms(self) -> int:
        return self._clock_ms() if self._clock_ms else time.time_ns() // 1_000_000

    @contextmanager
    def look(self) -> Iterator[tuple[Data, int]]:
        with self._changed:
            if self._lock_file.closed:
                raise StoreError("this store is closed; open another")
            yield self._data, self.now_ms()

    @contextmanager
    def commit(self) -> Iterator[tuple[Data, int]]:
        """A copy of the data to change. It is written when the block ends, and dropped if that raises."""
        with self.look() as (old, now):
            new = old.copy()
            yield new, now
            if new == old:
                return
            for key in [key for key in new.cells if new.cell(key, now) is None]:
                del new.cells[key]
            self._save(new)
            self._data = new
            self._changed.notify_all()

    def _save(self, data: Data) -> None:
        part = self.path.with_name(f"{self.path.name}-part")
        with part.open("wb") as file:
            file.write(msgspec.msgpack.encode(data))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)  # else a power cut may bring the old file back
        os.close(folder)

    def close(self) -> None:
        with self._changed:
            self._lock_file.close()
            self._changed.notify_all()

    # -- delivery

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        if tx is not None:
            raise Unsupported("this store has no transactions to write in; enqueue without tx=")
        validation.admit(drafts, self.traits)
        with self.commit() as (data, now):
            data.swap_all(swaps, now)
            return [data.put(draft, now) for draft in drafts]

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        validation.admit([draft for s in settlements for draft in s.follow_ups], self.traits)
        with self.commit() as (data, now):
            settled = [self._settle(data, settlement, now) for settlement in settlements]
            data.swap_all(swaps, now)
            for message in [row.message for row in data.rows.values() if row.message.lane is Lane.DONE]:
                if (message.rested_ms or 0) < now - DAY_MS:
                    del data.rows[message.id]
            return Exchange(settled, [delivery for ask in asks for delivery in self._claim(data, ask, now)])

    def _settle(self, data: Data, s: Settlement, now: int) -> Settled:
        row = data.row(s.receipt)
        kept = data.number, dict(data.cells)
        if row is None or not all(data.swap(swap, now) for swap in s.swaps):
            data.number, data.cells = kept
            return Settled.STALE
        if isinstance(s.decision, Ack):
            del data.rows[row.message.id]
        else:
            moved = lifecycle.decided(row.message, s.decision, s.fault, now)
            data.rows[moved.id] = replace(row, message=moved, alone=False)
            if row.message.cancel:
                return Settled.CANCELLED
        for draft in s.follow_ups:
            data.put(draft, now)
        return Settled.OK

    def _line(self, data: Data, ask: ClaimRequest) -> list[Row]:
        """What the ask may get now or later, by priority and due time."""
        if data.paused.get(ask.queue) or ask.limit <= 0:
            return []
        alive = (Lane.READY, Lane.LEASED)
        found = [row for row in data.rows.values() if row.message.queue == ask.queue and row.message.lane in alive]
        return sorted(found, key=lambda row: (row.message.priority, row.message.due_ms or 0, row.seq))

    def _claim(self, data: Data, ask: ClaimRequest, now: int) -> Iterator[Delivery]:
        due = {row.seq: row for row in self._line(data, ask) if (row.message.due_ms or 0) <= now}
        again = [row for row in due.values() if row.message.lane is Lane.READY and row.message.attempt > 0]
        retries, backlog = ([(row.message.priority, row.seq) for row in rows] for rows in (again, due.values()))
        for row in [due[seq] for seq in chosen(retries, backlog, ask)]:
            message = lifecycle.leased(row.message, ask, row.alone, now)
            data.rows[message.id] = replace(row, message=message, alone=False)
            receipt = Receipt(f"{message.id}/{row.seq}", message.fence)
            yield Delivery(message, receipt, now + ask.lease_ms, row.message.due_ms or 0)

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        end_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not self._lock_file.closed and self._nudges == getattr(self._seen, "count", 0):
                dues = [row.message.due_ms or 0 for ask in asks for row in self._line(self._data, ask)]
                due_s = (min(dues, default=float("inf")) - self.now_ms()) / 1000
                left_s = min(end_s - time.monotonic(), due_s)
                if left_s <= 0:
                    return
                self._changed.wait(min(left_s, 0.01 if self._clock_ms else threading.TIMEOUT_MAX))
            self._seen.count = self._nudges

    def nudge(self) -> None:
        with self._changed:
            self._nudges += 1
            self._changed.notify_all()

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        with self.commit() as (data, now):
            found = [data.row(receipt) for receipt in receipts]
            for row in [row for row in found if row]:
                message = replace(row.message, due_ms=now + lease_ms, suspect=row.message.suspect or alone)
                data.rows[message.id] = replace(row, message=message, alone=row.alone or alone)
            return [
                LeaseStatus.LOST if row is None else LeaseStatus.CANCEL if row.message.cancel else LeaseStatus.HELD
                for row in found
            ]

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        with self.commit() as (data, _):
            if (row := data.row(receipt)) is None:
                return False
            data.rows[row.message.id] = replace(row, message=replace(row.message, progress=state))
            return True

    # -- queries

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        with self.look() as (data, _):
            seen = {id: row.message for id, row in data.rows.items() if row.message.lane not in RESTING}
            return [seen.get(id) for id in ids]

    def counts(self, queue: str | None = None) -> Counts:
        with self.look() as (data, now):
            messages = [row.message for row in data.rows.values()]
            return counted((message for message in messages if queue in (None, message.queue)), now)

    def queues(self) -> list[str]:
        with self.look() as (data, _):
            return sorted({row.message.queue for row in data.rows.values()} | data.paused.keys())

    def paused(self) -> frozenset[str]:
        with self.look() as (data, _):
            return frozenset(queue for queue, paused in data.paused.items() if paused)

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane, after = validation.lane_of(lane), validation.read_cursor(cursor)
        if lane is None or lane in RESTING:
            raise Unsupported("this store has no access to dead messages")
        with self.look() as (data, _):
            rows = [row for row in data.rows.values() if row.message.lane is lane]
        found = {row.seq: row.message for row in rows if lifecycle.matches(row.message, None, where)}
        places = sorted(place for seq, m in found.items() if (place := (m.rested_ms or 0, seq)) > after)
        more = f"{places[limit - 1][0]}.{places[limit - 1][1]}" if len(places) > limit else None
        return Page([found[seq] for _, seq in places[:limit]], more)

    # -- administration

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        with self.commit() as (data, now):
            data.swap_all(swaps, now)
            rows = {id: data.rows.get(id) for id in ids}
            lanes = {id: row.message.lane if row else None for id, row in rows.items()}
            for id, row in rows.items():
                if row and lanes[id] is Lane.READY:
                    data.rows[id] = replace(row, message=lifecycle.cancelled(row.message, now))
                elif row and lanes[id] is Lane.LEASED:
                    data.rows[id] = replace(row, message=replace(row.message, cancel=True))
            return [CANCELS.get(lanes[id], Cancel.TOO_LATE) for id in ids]

    def configure(
        self, queue: str, *, paused: bool | None = None, group_width: int | None = None,
        group_order: GroupOrder | str | None = None, on_dead: OnDead | str | None = None, swaps: Sequence[Swap] = (),
    ) -> None:  # fmt: skip
        validation.admit_width(group_width, 1)
        if (group_width, group_order, on_dead) != (None, None, None):
            raise Unsupported("this store has no widths and orders of groups")
        with self.commit() as (data, now):
            if paused is not None:
                data.paused[queue] = paused
            data.swap_all(swaps, now)


class DictCells:
    """Cells in the same file."""

    def __init__(self, store: DictStore) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        with self._store.look() as (data, now):
            return [data.cell(key, now) for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        with self._store.commit() as (data, now):
            return [data.swap(swap, now) for swap in swaps]
