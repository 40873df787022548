"""The reference store: everything in this process's memory, under one lock, in plain Python.

What it does is what every store shall do; `redrive.testing.StoreContract` holds all of them to it. Only what it holds dies with
the process: it promises neither durability nor sharing.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..errors import Conflict, EnqueueError, StoreError
from ..fault import Fault
from ..ids import new_id
from ..message import (
    FAULTS_KEPT_EACH_END,
    PRIORITIES,
    RESTING,
    Ack,
    Ask,
    Cancel,
    Cell,
    Counts,
    DeadLetter,
    Delivery,
    Discard,
    Draft,
    Exchange,
    FailureGroup,
    Handle,
    Hold,
    Isolate,
    Lane,
    Message,
    Page,
    Put,
    Quarantine,
    Receipt,
    Redrive,
    RetryAt,
    Settled,
    Settlement,
    Swap,
    Verdict,
    Where,
)
from ..store import Traits
from . import _door

CANCELLED_KEPT_MS = 24 * 3600 * 1000  # a cancelled message can be looked up that long
SWEEP_EVERY_MS = 60_000
LOOK_EVERY_S = 0.01  # how often a waiter looks at a clock that is not the wall clock
FOREVER_MS = float("inf")
_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


class _Kept(NamedTuple):
    """A stored message, and the fault that brought it to rest, by which it is found and grouped."""

    message: Message
    fault: Fault | None = None


class _Holder(NamedTuple):
    """Who holds a unique key: while that message is not done, and at least until `until_ms`."""

    id: str
    until_ms: int


class _CellRow(NamedTuple):
    """A cell; a deleted one (value None) stays, so that its versions are never used twice."""

    version: int
    value: bytes | None
    expires_ms: int | None


class _Tables:
    """The data: dicts and, per queue and priority, one line sorted by due time. Every change can be undone until `commit`."""

    def __init__(self) -> None:
        self.kept: dict[int, _Kept] = {}  # by seq, which is never used twice
        self.seqs: dict[str, int] = {}  # by id
        self.lines: dict[str, tuple[list[tuple[int, Lane, int]], ...]] = {}  # (due_ms, lane, seq) of what can be claimed
        self.holders: dict[tuple[str, str], _Holder] = {}  # by (task, key)
        self.cells: dict[str, _CellRow] = {}
        self.paused: dict[str, bool] = {}  # by queue
        self._undo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._next_seq = count(1)

    def add(self, message: Message) -> None:
        self.write(next(self._next_seq), _Kept(message))

    def write(self, seq: int, kept: _Kept | None) -> None:
        """Keep this under `seq` instead of what is there; None removes it, and gives back a key it held for its life only."""
        old = self.kept.get(seq)
        self._undo.append((self._place, (seq, old)))
        self._place(seq, kept)
        if kept is None and old is not None and old.message.key is not None:
            name = (old.message.task, old.message.key)
            if self.holders.get(name) == (old.message.id, 0):
                self.set(self.holders, name, None)

    def set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Set an entry of one of the plain tables; None removes it."""
        self._undo.append((_assign, (table, key, table.get(key))))
        _assign(table, key, value)

    def mark(self) -> int:
        return len(self._undo)

    def undo(self, mark: int = 0) -> None:
        while len(self._undo) > mark:
            do, args = self._undo.pop()
            do(*args)

    def commit(self) -> None:
        self._undo.clear()

    def line(self, message: Message) -> list[tuple[int, Lane, int]]:
        lines = self.lines.get(message.queue)
        if lines is None:
            lines = self.lines[message.queue] = tuple([] for _ in PRIORITIES)
        return lines[message.priority]

    def _place(self, seq: int, kept: _Kept | None) -> None:
        old = self.kept.pop(seq, None)
        if old is not None:
            del self.seqs[old.message.id]
            if old.message.due_ms is not None:
                line = self.line(old.message)
                del line[bisect_left(line, (old.message.due_ms, old.message.lane, seq))]
        if kept is not None:
            self.kept[seq] = kept
            self.seqs[kept.message.id] = seq
            if kept.message.due_ms is not None:
                insort(self.line(kept.message), (kept.message.due_ms, kept.message.lane, seq))


class MemoryStore:
    """A store in memory, for tests and for trying things out; any number of threads. `clock_ms` replaces the wall clock."""

    traits = Traits(name="memory", durable=False, shared=False)
    state_dir: Path | None = None

    def __init__(self, clock_ms: Callable[[], int] | None = None) -> None:
        self._clock_ms = clock_ms or _wall_ms
        self._look_every_s = LOOK_EVERY_S if clock_ms else threading.TIMEOUT_MAX
        self._changed = threading.Condition()
        self._tables = _Tables()
        self._nudges, self._nudges_seen = 0, threading.local()
        self._swept_ms = self._clock_ms()
        self._closed = False
        self.cells = MemoryCells(self)

    def now_ms(self) -> int:
        return self._clock_ms()

    @contextmanager
    def _look(self) -> Iterator[tuple[_Tables, int]]:
        """The tables under the lock, and the time."""
        with self._changed:
            if self._closed:
                raise StoreError("this memory store is closed; open another")
            yield self._tables, self._clock_ms()

    @contextmanager
    def _commit(self) -> Iterator[tuple[_Tables, int]]:
        """The same, to change them: all is undone if the block raises, else waiters look again."""
        with self._look() as (tables, now):
            try:
                yield tables, now
            except BaseException:
                tables.undo()
                raise
            tables.commit()
            self._changed.notify_all()

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = ()) -> list[Put]:
        _door.admit(drafts, self.traits)
        with self._commit() as (tables, now):
            puts = [_put(tables, draft, now) for draft in drafts]
            _swap_all(tables, swaps, now)
            return puts

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[Ask], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        _door.admit((draft for s in settlements for draft in s.follow_ups), self.traits)
        with self._commit() as (tables, now):
            settled = [_settle(tables, settlement, now) for settlement in settlements]
            for settlement, word in zip(settlements, settled, strict=True):
                if word is not Settled.STALE:  # last, so that a key which an ack frees is free for them
                    for draft in settlement.follow_ups:
                        _put(tables, draft, now)
            _swap_all(tables, swaps, now)
            deliveries = [delivery for ask in asks for delivery in _claim(tables, ask, now)]
            self._sweep(tables, now)
            return Exchange(settled, deliveries)

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int) -> list[Hold]:
        with self._commit() as (tables, now):
            return [_extend(tables, receipt, now + lease_ms) for receipt in receipts]

    def release(self, worker: str, started: Sequence[str] | None) -> tuple[int, int]:
        with self._commit() as (tables, now):
            released = lapsed = 0
            for seq, kept in list(tables.kept.items()):
                message = kept.message
                if message.lane is not Lane.LEASED or message.worker != worker:
                    continue
                if started is None or message.id in started:
                    tables.write(seq, _Kept(replace(message, due_ms=now)))
                    lapsed += 1
                else:
                    back = replace(message, lane=Lane.READY, due_ms=now, attempt=message.attempt - 1)
                    tables.write(seq, _Kept(back))
                    released += 1
            return released, lapsed

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        with self._commit() as (tables, _):
            message = _held(tables, receipt)
            if message is None:
                return False
            tables.write(int(receipt.handle), _Kept(replace(message, progress=state)))
            return True

    # -- waiting

    def wait(self, asks: Sequence[Ask], *, timeout_ms: int) -> None:
        end_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not self._closed and not self._nudged():
                due_s = (self._next_due_ms(asks) - self._clock_ms()) / 1000
                left_s = end_s - time.monotonic()
                if due_s <= 0 or left_s <= 0:
                    return
                self._changed.wait(min(left_s, due_s, self._look_every_s))

    def _nudged(self) -> bool:
        """Whether this thread has a nudge to take; it takes all there are."""
        seen = getattr(self._nudges_seen, "count", 0)
        self._nudges_seen.count = self._nudges
        return seen != self._nudges

    def _next_due_ms(self, asks: Sequence[Ask]) -> float:
        return min(
            (due for ask in asks if ask.limit > 0 for line in _lines(self._tables, ask) for due, _ in islice(line, 1)),
            default=FOREVER_MS,
        )

    def nudge(self) -> None:
        with self._changed:
            self._nudges += 1
            self._changed.notify_all()

    # -- looking

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        with self._look() as (tables, _):
            return [tables.kept[seq].message if (seq := tables.seqs.get(id)) is not None else None for id in ids]

    def counts(self, queue: str | None = None) -> Counts:
        with self._look() as (tables, now):
            found = dict.fromkeys(("ready", "scheduled", "leased", "dead", "quarantine", "done"), 0)
            oldest_ms = now
            for kept in tables.kept.values():
                message = kept.message
                if queue is not None and message.queue != queue:
                    continue
                lane = "done" if message.lane is Lane.DONE else message.state(now)
                found[lane] += 1
                if lane == "ready" and message.due_ms is not None:
                    oldest_ms = min(oldest_ms, message.due_ms)
            return Counts(**found, oldest_age_s=(now - oldest_ms) / 1000)

    def queues(self) -> list[str]:
        with self._look() as (tables, _):
            return sorted({kept.message.queue for kept in tables.kept.values()} | set(tables.paused))

    def peek(
        self, lane: Lane | None, *, where: Where = Where(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        after = _cursor(cursor)
        with self._look() as (tables, _):
            found = sorted(
                (kept.message.rested_ms or 0, seq)
                for seq, kept in tables.kept.items()
                if (lane is None or kept.message.lane is lane) and _matches(kept, where)
            )
            page = list(islice((place for place in found if place > after), limit))
            more = f"{page[-1][0]}.{page[-1][1]}" if page and page[-1] != found[-1] else None
            return Page([tables.kept[seq].message for _, seq in page], more)

    def failure_groups(self, *, where: Where = Where()) -> list[FailureGroup]:
        groups: dict[tuple[str, str], list[_Kept]] = {}
        with self._look() as (tables, _):
            for kept in tables.kept.values():
                if kept.message.lane is Lane.DEAD and _matches(kept, where):
                    fingerprint = kept.fault.fingerprint if kept.fault else ""
                    groups.setdefault((fingerprint, kept.message.task), []).append(kept)
        found = [_failure_group(fingerprint, task, members) for (fingerprint, task), members in groups.items()]
        return sorted(found, key=lambda group: (-group.count, group.fingerprint, group.task))

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict) -> list[bool]:
        with self._commit() as (tables, now):
            return [_judge(tables, handle, verdict, now) for handle in handles]

    def cancel(self, ids: Sequence[str]) -> list[Cancel]:
        with self._commit() as (tables, now):
            return [_cancel(tables, id, now) for id in ids]

    def configure(self, queue: str, *, paused: bool | None = None) -> None:
        with self._commit() as (tables, _):
            tables.set(tables.paused, queue, tables.paused.get(queue, False) if paused is None else paused)

    def paused(self) -> frozenset[str]:
        with self._look() as (tables, _):
            return frozenset(queue for queue, paused in tables.paused.items() if paused)

    # -- keeping

    def _sweep(self, tables: _Tables, now: int) -> None:
        """Forget old cancelled messages, and keys whose time is over and whose message is gone."""
        if now - self._swept_ms < SWEEP_EVERY_MS:
            return
        self._swept_ms = now
        old = [
            seq
            for seq, kept in tables.kept.items()
            if kept.message.lane is Lane.DONE and (kept.message.rested_ms or 0) < now - CANCELLED_KEPT_MS
        ]
        for seq in old:
            tables.write(seq, None)
        free = [name for name, held in tables.holders.items() if held.until_ms <= now and held.id not in tables.seqs]
        for name in free:
            tables.set(tables.holders, name, None)

    def check(self) -> list[str]:
        with self._look() as (tables, _):
            stand = sum(len(line) for lines in tables.lines.values() for line in lines)
            due = sum(kept.message.due_ms is not None for kept in tables.kept.values())
            return [] if stand == due else [f"{due} messages can become due, but {stand} stand in line"]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class MemoryCells:
    """Cells beside the messages, under the same lock."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        with self._store._look() as (tables, now):
            return [_live(tables.cells.get(key), now) for key in keys]

    def swap(self, swaps: Sequence[Swap]) -> list[bool]:
        with self._store._commit() as (tables, now):
            return [_swap(tables, swap, now) for swap in swaps]


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _assign(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


# -- putting


def _put(tables: _Tables, draft: Draft, now: int) -> Put:
    id = draft.id or new_id(now)
    if draft.key is not None:
        held = _holder(tables, draft.task, draft.key, now)
        if held is not None:
            return held
        until_ms = now + draft.key_for_ms if draft.key_for_ms else 0
        tables.set(tables.holders, (draft.task, draft.key), _Holder(id, until_ms))
    if id in tables.seqs:
        raise EnqueueError(f"a message with id {id} is already stored; nothing was written")
    message = _message(draft, id, now)
    tables.add(message)
    return Put(id, False, message.state(now))


def _holder(tables: _Tables, task: str, key: str, now: int) -> Put | None:
    held = tables.holders.get((task, key))
    if held is None:
        return None
    seq = tables.seqs.get(held.id)
    message = tables.kept[seq].message if seq is not None else None
    if (message is None or message.lane is Lane.DONE) and held.until_ms <= now:
        return None
    return Put(held.id, True, message.state(now) if message else "done")


def _message(draft: Draft, id: str, now: int) -> Message:
    # A millisecond more, for the one that is under way already: nothing shall be early.
    due_ms = draft.due_ms if draft.due_ms is not None else now + draft.delay_ms + (draft.delay_ms > 0)
    return Message(
        id=id,
        task=draft.task,
        queue=draft.queue,
        body=draft.body,
        content=draft.content,
        priority=draft.priority,
        due_ms=due_ms,
        enqueued_ms=now,
        life_ms=now,
        deadline_ms=draft.deadline_ms,
        version=draft.version,
        key=draft.key,
        group=draft.group,
        headers=dict(draft.headers or {}),
        correlation_id=draft.correlation_id or id,
        causation_id=draft.causation_id,
        producer=draft.producer,
        traceparent=draft.traceparent,
    )


# -- settling and claiming


def _lines(tables: _Tables, ask: Ask) -> Iterator[Iterator[tuple[int, int]]]:
    """Per priority (due_ms, seq) of what the ask may get now or later, in the order of due times."""
    if not tables.paused.get(ask.queue):
        for line in tables.lines.get(ask.queue, ()):
            yield ((due_ms, seq) for due_ms, _, seq in line if tables.kept[seq].message.task not in ask.skip)


def _claim(tables: _Tables, ask: Ask, now: int) -> list[Delivery]:
    due = (seq for line in _lines(tables, ask) for _, seq in takewhile(lambda place: place[0] <= now, line))
    return [_lease(tables, seq, ask, now) for seq in list(islice(due, max(0, ask.limit)))]


def _lease(tables: _Tables, seq: int, ask: Ask, now: int) -> Delivery:
    """The claim is counted before it runs. What was still leased had run out: that is a crash, not an attempt."""
    message = tables.kept[seq].message
    lapsed = message.lane is Lane.LEASED
    claimed = replace(
        message,
        lane=Lane.LEASED,
        due_ms=now + ask.lease_ms,
        fence=message.fence + 1,
        attempt=message.attempt + (not lapsed),
        crashes=message.crashes + lapsed,
        worker=ask.worker,
    )
    tables.write(seq, _Kept(claimed))
    return Delivery(claimed, Receipt(seq, claimed.fence), now + ask.lease_ms)


def _held(tables: _Tables, receipt: Receipt) -> Message | None:
    """The message this receipt holds; None if it is stale. A lease that ran out holds until somebody else claims."""
    kept = tables.kept.get(receipt.handle)  # type: ignore[call-overload]  # a handle of another store is simply not there
    if kept is None or kept.message.lane is not Lane.LEASED or kept.message.fence != receipt.fence:
        return None
    return kept.message


def _extend(tables: _Tables, receipt: Receipt, until_ms: int) -> Hold:
    message = _held(tables, receipt)
    if message is None:
        return Hold.LOST
    tables.write(int(receipt.handle), _Kept(replace(message, due_ms=until_ms)))
    return Hold.CANCEL if message.cancel else Hold.HELD


def _settle(tables: _Tables, settlement: Settlement, now: int) -> Settled:
    mark = tables.mark()
    message = _held(tables, settlement.receipt)
    if message is None or not all(_swap(tables, swap, now) for swap in settlement.swaps):
        tables.undo(mark)
        return Settled.STALE
    seq = int(settlement.receipt.handle)
    if type(settlement.decision) is Ack:
        tables.write(seq, None)
        return Settled.OK
    moved = replace(_decided(message, settlement.decision, now), faults=_history(message.faults, settlement.fault))
    if message.cancel:  # done, whatever was decided
        moved = replace(moved, lane=Lane.DONE, due_ms=None, reason="cancelled", rested_ms=now)
    tables.write(seq, _Kept(moved, settlement.fault if moved.due_ms is None else None))
    return Settled.CANCELLED if message.cancel else Settled.OK


def _decided(message: Message, decision: object, now: int) -> Message:
    match decision:
        case RetryAt(at_ms, _, counts, held):
            held_ms = message.held_ms + (max(0, at_ms - now) if held else 0)
            back = replace(message, lane=Lane.READY, due_ms=at_ms, held_ms=held_ms)
        case DeadLetter(reason, _, counts):
            back = replace(message, lane=Lane.DEAD, due_ms=None, reason=reason, rested_ms=now)
        case Quarantine(_, reason, counts):
            back = replace(message, lane=Lane.QUARANTINE, due_ms=None, reason=reason, rested_ms=now)
        case _:
            raise TypeError(f"not a decision: {decision!r}")
    return back if counts else replace(back, attempt=back.attempt - 1)


def _history(faults: tuple[Fault, ...], fault: Fault | None) -> tuple[Fault, ...]:
    """The first ten and the last ten."""
    if fault is None:
        return faults
    kept = FAULTS_KEPT_EACH_END
    return (*faults[:kept], *faults[kept:][1 - kept :], fault)


# -- cells


def _live(row: _CellRow | None, now: int) -> Cell | None:
    if row is None or row.value is None or (row.expires_ms is not None and row.expires_ms <= now):
        return None
    return Cell(row.version, row.value)


def _swap(tables: _Tables, swap: Swap, now: int) -> bool:
    row = tables.cells.get(swap.key)
    live = _live(row, now)
    if (live.version if live else 0) != swap.version:
        return False
    expires_ms = now + swap.ttl_ms if swap.ttl_ms is not None else None
    tables.set(tables.cells, swap.key, _CellRow(row.version + 1 if row else 1, swap.value, expires_ms))
    return True


def _swap_all(tables: _Tables, swaps: Iterable[Swap], now: int) -> None:
    for swap in swaps:
        if not _swap(tables, swap, now):
            raise Conflict(f"cell {swap.key!r} is not at version {swap.version}; nothing was written, read it again")


# -- looking and changing by hand


def _matches(kept: _Kept, where: Where) -> bool:
    message, fault = kept
    at_ms = message.enqueued_ms if message.rested_ms is None else message.rested_ms
    return (
        where.queue in (None, message.queue)
        and where.task in (None, message.task)
        and where.reason in (None, message.reason)
        and where.fingerprint in (None, fault.fingerprint if fault else None)
        and where.error in (None, fault.error if fault else None)
        and (where.ids is None or message.id in where.ids)
        and (where.since_ms is None or at_ms >= where.since_ms)
        and (where.until_ms is None or at_ms < where.until_ms)
    )


def _cursor(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return -1, -1
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise ValueError(f"cursor {cursor!r} is not one this store gave; start again without one")
    return int(match[1]), int(match[2])


def _failure_group(fingerprint: str, task: str, members: list[_Kept]) -> FailureGroup:
    sample = max(members, key=lambda kept: kept.message.id)
    rested = [kept.message.rested_ms or 0 for kept in members]
    error, text = (sample.fault.error, sample.fault.text) if sample.fault else ("", "")
    return FailureGroup(fingerprint, task, error, text, len(members), min(rested), max(rested), sample.message.id)


def _judge(tables: _Tables, handle: Handle, verdict: Verdict, now: int) -> bool:
    seq = tables.seqs.get(handle.id)
    if seq is None:
        return False
    message, fault = tables.kept[seq]
    if message.lane not in RESTING or (message.redrives, message.lane) != (handle.redrives, handle.lane):
        return False
    match verdict:
        case Redrive():
            tables.write(seq, _Kept(_redriven(message, verdict, now)))
        case Discard():
            tables.write(seq, None)
        case Isolate(why):
            isolated = replace(message, lane=Lane.QUARANTINE, reason=why, rested_ms=now)
            tables.write(seq, _Kept(isolated, fault))
    return True


def _redriven(message: Message, verdict: Redrive, now: int) -> Message:
    return replace(
        message,
        lane=Lane.READY,
        due_ms=now + verdict.delay_ms + (verdict.delay_ms > 0),
        queue=verdict.to_queue or message.queue,
        redrives=message.redrives + 1,
        attempt=0,
        crashes=0,
        crashes_alone=0,
        suspect=False,
        life_ms=now,
        held_ms=0,
        attempts_allowed=verdict.attempts,
        run=verdict.run,
        deadline_ms=message.deadline_ms if verdict.keep_deadline else None,
        reason=None,
        rested_ms=None,
    )


def _cancel(tables: _Tables, id: str, now: int) -> Cancel:
    seq = tables.seqs.get(id)
    if seq is None:
        return Cancel.UNKNOWN
    message = tables.kept[seq].message
    if message.lane is Lane.READY:
        done = replace(message, lane=Lane.DONE, due_ms=None, reason="cancelled", rested_ms=now)
        tables.write(seq, _Kept(done))
        return Cancel.CANCELLED
    if message.lane is Lane.LEASED:
        tables.write(seq, _Kept(replace(message, cancel=True)))
        return Cancel.REQUESTED
    return Cancel.TOO_LATE
